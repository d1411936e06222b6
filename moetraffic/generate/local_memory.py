r"""The memory of states that are still on their way: autocovariances around a time.

Routers that have just begun move in ways that no sum of AR(1) has: smoothly, swinging
about (a balancing loss under an optimiser with momentum) or back and forth (a bias that
is turned each step).  So around each knot the autocovariance of what the trend leaves
over is taken as it is, less the chance that counts add at lag 0,

.. math:: c_h = \sum_t \sqrt{w_t w_{t+h}} \sum_e q_e x_{e,t} x_{e,t+h} / \sum_t w_t,

w a Gaussian kernel in :math:`\log(1 + t)` and q the experts' shares of the load; the
partial autocorrelations of ORDER lags are those of the Durbin-Levinson recursion.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import toeplitz

from .dynamics import at_knots

Float64 = npt.NDArray[np.float64]

ORDER = 6
"""Lags of the recursion."""

WIDTH = 0.18
"""Standard deviation of the kernel in log(1 + t)."""

LEAST_WIDTH = 5.0
"""Standard deviation of the kernel, iterations, where the run is young."""

STEADIEST = 0.985
"""Largest partial autocorrelation."""

NUGGET = 0.03
"""White part of the variance that any has: noise leaves autocovariances unsure."""

TRUST = 12.0
"""Iterations at which an expert's own size counts for half."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalMemory:
    """How far and how smoothly L layers of E experts move around K knots."""

    partial: Float64  # [K, L, ORDER] partial autocorrelations
    sd: Float64  # [K, L]
    scale: Float64  # [K, L, E] mean square 1 by load

    def placed(self) -> dict[str, Float64]:
        """As fields of :class:`~.Dynamics`: the only memory is the last."""
        return {
            "phi": self.partial[..., :1],
            "sd": self.sd[..., None],
            "scale": self.scale,
            "partial": self.partial,
        }


def fit_local(
    apart: Float64,
    noise: Float64,
    share: Float64,
    moved: Float64,
    answer: Float64,
    knots: Float64,
) -> LocalMemory:
    """Look around each knot.

    Parameters
    ----------
    apart
        ``[n, L, E]`` states less their trend.
    noise
        ``[n, L, E]`` variance of their error.
    share
        ``[n, L, E]`` of each expert in the load, the sum over E 1.
    moved
        ``[n, L, E]`` loads less those of the trend: what hangs together is told by
        them, for the logarithms of little are mostly chance.
    answer
        ``[n, L, E]`` how loads answer to states.
    knots
        ``[K]`` iterations.
    """
    count, layers, experts = apart.shape
    partial = np.zeros((len(knots), layers, ORDER))
    sd = np.zeros((len(knots), layers))
    scale = np.ones((len(knots), layers, experts))
    # what moved far would count for more than what is near
    energy = (moved**2 / np.maximum(share, 1e-12)).sum(axis=2)  # [n, L]
    kernels = np.array([kernel(count, float(knot)) for knot in knots])
    logs = np.log(np.maximum(kernels @ energy, 1e-12))
    size = np.exp([at_knots(knots, logs, t) for t in range(count)])
    moved, chances = moved / np.sqrt(size)[..., None], noise * answer**2
    chances = chances / size[..., None]
    for at, w in enumerate(kernels):
        root = np.sqrt(w)
        q = np.einsum("t,tle->le", w, share)
        # what loads are off here on average is put right in the trend
        x = moved - np.einsum("t,tle->le", w, moved)
        x = x * root[:, None, None] / np.sqrt(np.maximum(q, 1e-12))
        lagged = np.array(
            [
                (x[: count - h] * x[h:]).sum(axis=(0, 2))
                for h in range(min(ORDER, count - 1) + 1)
            ]
        )  # [h, L]
        by_chance = np.einsum("t,tle->le", w, chances)
        chance = (by_chance / np.maximum(q, 1e-12)).sum(axis=1)
        for layer in range(layers):
            c = lagged[:, layer].copy()
            whole = c[0]
            c[0] = max(c[0] - chance[layer], 1e-3 * whole, c[1:].max())
            c[1:] *= _possible(c)
            partial[at, layer] = _partial(c)
        own = np.einsum("t,tle->le", w, apart**2)
        own = np.maximum(own - np.einsum("t,tle->le", w, noise), 0.05 * own)
        mean = np.maximum((own * q).sum(axis=1, keepdims=True), 1e-12)
        sd[at] = np.sqrt(mean[:, 0])
        trust = 1 / (w**2).sum() / (1 / (w**2).sum() + TRUST)
        found = np.clip(own / mean, 0.02, 50.0) ** (trust / 2)
        scale[at] = found / np.sqrt((found**2 * q).sum(axis=1, keepdims=True))
    return LocalMemory(partial=partial, sd=sd, scale=scale)


def kernel(count: int, knot: float) -> Float64:
    """Weights ``[n]`` of the iterations around a knot, with the sum 1."""
    width = max(WIDTH * (1 + knot), LEAST_WIDTH)
    w = np.exp(-0.5 * ((np.arange(count) - knot) / width) ** 2)
    return np.asarray(w / w.sum(), np.float64)


def _possible(c: Float64) -> float:
    """By what lags above 0 are scaled for a process whose spectrum has no hole."""
    lowest = float(np.linalg.eigvalsh(toeplitz(c))[0])
    return min(1.0, float((1 - NUGGET) * c[0]) / max(float(c[0]) - lowest, 1e-300))


def _partial(c: Float64) -> Float64:
    """Partial autocorrelations of autocovariances ``[P + 1]``, kept below 1."""
    order = len(c) - 1
    out = np.zeros(ORDER)
    weights = np.zeros(0)
    left = max(c[0], 1e-300)
    for h in range(1, order + 1):
        told = (c[h] - weights @ c[h - 1 : 0 : -1]) / left
        out[h - 1] = np.clip(told, -STEADIEST, STEADIEST)
        weights = np.r_[weights - out[h - 1] * weights[::-1], out[h - 1]]
        left *= 1 - out[h - 1] ** 2
    return out


def between(apart: Float64, knots: Float64) -> tuple[Float64, Float64]:
    """What at the knots, with straight lines in log(1 + t) between them, fits best.

    Parameters
    ----------
    apart
        ``[n, L, E]``.
    knots
        ``[K]`` iterations, ascending.

    Returns
    -------
    float64 arrays
        ``[K, L, E]`` at the knots, and ``[n, L, E]`` what is left over.
    """
    count = len(apart)
    unit = np.eye(len(knots))
    basis = np.array([at_knots(knots, unit, t) for t in range(count)])  # [n, K]
    flat = apart.reshape(count, -1)
    ends = np.linalg.lstsq(basis, flat, rcond=None)[0]
    left = flat - basis @ ends
    return ends.reshape(len(knots), *apart.shape[1:]), left.reshape(apart.shape)
