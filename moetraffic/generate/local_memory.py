r"""Local autocovariances of states that are not stationary.

Routers that have just begun move in ways that no sum of AR(1) has: smoothly, swinging
about (a balancing loss under an optimizer with momentum) or back and forth (a bias that
is turned each step).  So around each knot the autocovariance of what the trend leaves
over is taken as it is, less the chance that counts add at lag 0,

.. math:: c_{e,h} = \sum_t \sqrt{w_t w_{t+h}} x_{e,t} x_{e,t+h} / (q_e \sum_t w_t),

w a Gaussian kernel in :math:`\log(1 + t)` and q the experts' shares of the load.  Some
experts swing back and forth where others hardly stir: each has its own, as far as its
counts tell it, and else that of those which move as far.  The partial autocorrelations
of ORDER lags are those of the Durbin-Levinson recursion.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from .dynamics import at_knots, coefficients

Float64 = npt.NDArray[np.float64]

ORDER = 6
"""Lags of the recursion."""

WIDTH = 0.05
"""Standard deviation of the kernel in log(1 + t)."""

MEMORY_WIDTH = 0.15
"""As WIDTH, of what tells memories: they change less than sizes, and need more."""

LEAST_WIDTH = 5.0
"""Standard deviation of the kernel, iterations, where the run is young."""

STEADIEST = 0.998
"""Largest partial autocorrelation."""

NUGGET = 0.003
"""White part of the variance that any has: noise leaves autocovariances unsure."""

OWN_TRUST = 15.0
"""Iterations at which an expert's own memory counts for half, beside those alike."""

ALIKE = 0.7
"""Of the logarithms of variances: how near they are of experts that move alike."""

FAINT = 0.01
"""Variance over the mean expert's, below which chance hides how far one moves."""

FREQUENCIES = 49
"""At which spectra are looked at."""

TURNS = 8
"""Iterations of estimating the drift of a window's mean, and its autocorrelation."""

MOST_WANDER = 0.6
"""Share of the variance; a larger drift is a trend."""

SLIGHT = 1e-3
"""Overlap of a window with itself that is none."""

TRUST = 12.0
"""Iterations at which an expert's own size counts for half."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalMemory:
    """How far and how smoothly L layers of E experts move around K knots."""

    alike: Float64  # [K, L, E, ORDER + 1] autocorrelations of loads
    phi: Float64  # [K, L] the first of them, of all experts together
    sd: Float64  # [K, L]
    scale: Float64  # [K, L, E] mean square 1 by load
    balance: Float64  # [K, L, E] how loads answer to states, the sum over E 1

    def placed(self) -> dict[str, Float64]:
        """As fields of :class:`~.Dynamics`: the only memory is the last."""
        return {
            "phi": self.phi[..., None],
            "sd": self.sd[..., None],
            "scale": self.scale,
            "partial": partial_of(self.alike),
            "balance": self.balance,
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
    alike = np.zeros((len(knots), layers, experts, ORDER + 1))
    phi = np.zeros((len(knots), layers))
    sd = np.zeros((len(knots), layers))
    scale = np.ones((len(knots), layers, experts))
    balance = np.empty((len(knots), layers, experts))
    # what moved far would count for more than what is near
    energy = (moved**2 / np.maximum(share, 1e-12)).sum(axis=2)  # [n, L]
    kernels = np.array([kernel(count, float(knot)) for knot in knots])
    logs = np.log(np.maximum(kernels @ energy, 1e-12))
    size = np.exp([at_knots(knots, logs, t) for t in range(count)])
    moved, chances = moved / np.sqrt(size)[..., None], noise * answer**2
    chances = chances / size[..., None]
    for at, (knot, w) in enumerate(zip(knots, kernels, strict=True)):
        wide = kernel(count, float(knot), MEMORY_WIDTH)
        phi[at], alike[at] = _memories(moved, chances, share, wide)
        balance[at] = np.einsum("t,tle->le", w, answer)
        balance[at] /= balance[at].sum(axis=1, keepdims=True)
        q = np.einsum("t,tle->le", w, share)
        own = np.einsum("t,tle->le", w, apart**2)
        own = np.maximum(own - np.einsum("t,tle->le", w, noise), 0.05 * own)
        mean = np.maximum((own * q).sum(axis=1, keepdims=True), 1e-12)
        sd[at] = np.sqrt(mean[:, 0])
        trust = 1 / (w**2).sum() / (1 / (w**2).sum() + TRUST)
        found = np.clip(own / mean, 0.02, 50.0) ** (trust / 2)
        scale[at] = found / np.sqrt((found**2 * q).sum(axis=1, keepdims=True))
    return LocalMemory(alike=alike, phi=phi, sd=sd, scale=scale, balance=balance)


def _memories(
    moved: Float64, chance: Float64, share: Float64, w: Float64
) -> tuple[Float64, Float64]:
    """Of layers phi ``[L]``, of experts autocorrelations ``[L, E, P + 1]``.

    Parameters
    ----------
    moved, chance
        ``[n, L, E]`` movement of loads, in units of its size, and its error's variance.
    share
        ``[n, L, E]`` of each expert in the load.
    w
        ``[n]`` weights of a window.
    """
    count, layers, experts = moved.shape
    q = np.maximum(np.einsum("t,tle->le", w, share), 1e-12)
    # what loads are off here on average is put right in the trend
    x = moved - np.einsum("t,tle->le", w, moved)
    x = x * np.sqrt(w)[:, None, None] / np.sqrt(q)
    lags = range(min(ORDER, count - 1) + 1)
    lagged = np.array([(x[: count - h] * x[h:]).sum(axis=0) for h in lags])  # [h, L, E]
    by_chance = np.einsum("t,tle->le", w, chance) / q
    overlap = np.array([(w[: count - h] * w[h:]).sum() for h in range(count)])
    overlap = overlap[overlap > SLIGHT * overlap[0]]
    phi, alike = np.empty(layers), np.empty((layers, experts, ORDER + 1))
    for layer in range(layers):
        phi[layer], alike[layer] = _each(
            lagged[:, layer], by_chance[layer], 1 / float(overlap[0]), overlap
        )
    return phi, alike


def kernel(count: int, knot: float, width: float = WIDTH) -> Float64:
    """Weights ``[n]`` of the iterations around a knot, with the sum 1."""
    width = max(width * (1 + knot), LEAST_WIDTH)
    w = np.exp(-0.5 * ((np.arange(count) - knot) / width) ** 2)
    return np.asarray(w / w.sum(), np.float64)


def _each(
    lagged: Float64, chance: Float64, known: float, overlap: Float64
) -> tuple[float, Float64]:
    """Of a layer's experts together phi, and of each the autocorrelations.

    Parameters
    ----------
    lagged
        ``[P + 1, E]`` autocovariances of what is seen.
    chance
        ``[E]`` variance of its error.
    known
        Iterations that they were taken from.
    overlap
        ``[H]`` sums of products of the window's weights h iterations apart.
    """
    experts = lagged.shape[1]
    whole = with_spectrum(lagged.sum(axis=1), float(chance.sum()))
    alone = np.stack(
        [with_spectrum(c, float(n)) for c, n in zip(lagged.T, chance, strict=True)]
    )  # [E, P + 1]
    # those that move as far move alike: some swing, some hardly stir
    far = np.log(np.maximum(alone[:, 0], FAINT * whole[0] / experts))
    # chance that makes a variance large makes its memory short: where it is told badly
    # it must not choose who is alike
    unsure = 2 / known * (lagged[0] / np.maximum(alone[:, 0], 1e-300)) ** 2
    near = ALIKE**2 + np.add.outer(unsure, unsure)
    alike = np.exp(-0.5 * np.subtract.outer(far, far) ** 2 / near)
    out = np.empty((experts, ORDER + 1))
    for expert, own in enumerate(alone):
        among = with_spectrum(lagged @ alike[expert], float(chance @ alike[expert]))
        # as far as an expert's own is known, and no chance
        told = known * (own[0] / max(float(lagged[0, expert]), 1e-300)) ** 2
        told /= told + OWN_TRUST
        c = told * own / own[0] + (1 - told) * among / among[0]
        out[expert] = _whole(c, overlap)
    return float(whole[1] / whole[0]), out


def _whole(c: Float64, overlap: Float64) -> Float64:
    """Autocorrelations ``[P + 1]`` of autocovariances about a window's mean.

    The mean itself wanders, by so much of the variance as the memory says, and with it
    all autocovariances are larger.
    """
    out = c / c[0]
    for _ in range(TURNS):
        alike = _correlations(_partial(out), len(overlap))
        part = min(overlap[0] + 2 * float(overlap[1:] @ alike[1:]), MOST_WANDER)
        out = c / c[0] * (1 - part) + part
    return np.asarray(out, np.float64)


def with_spectrum(c: Float64, chance: float = 0.0) -> Float64:
    """Autocovariances ``[P + 1]`` of the states, of those of what is seen.

    Chance leaves them such as no process has: the nearest that have a spectrum, which
    is nowhere negative, are taken (C. L. Lawson, R. J. Hanson, Solving Least Squares
    Problems, 1974, chapter 23).
    """
    least = max(1e-3 * float(c[0]), 1e-300)
    seen = np.r_[max(c[0] - chance, least), c[1:]] / max(float(c[0]), 1e-300)
    waves = np.cos(np.outer(np.arange(len(c)), np.linspace(0, np.pi, FREQUENCIES)))
    power, _ = nnls(waves, seen)
    out = waves @ power * max(float(c[0]), 1e-300)
    out[0] = max(out[0], least)
    out[1:] *= 1 - NUGGET
    return np.asarray(out, np.float64)


def _correlations(partial: Float64, count: int) -> Float64:
    """Autocorrelations ``[count]`` of an AR of such partial ones."""
    weights, _ = coefficients(partial)
    out = np.zeros(max(count, len(weights) + 1))
    out[0] = 1.0
    short = np.zeros(0)
    for h in range(1, len(weights) + 1):  # backwards through Durbin and Levinson
        here, _ = coefficients(partial[:h])
        left = np.prod(1 - partial[: h - 1] ** 2)
        out[h] = short @ out[h - 1 : 0 : -1] + partial[h - 1] * left
        short = here
    for h in range(len(weights) + 1, count):
        out[h] = weights @ out[h - 1 : h - len(weights) - 1 : -1]
    return out[:count]


def partial_of(alike: Float64) -> Float64:
    """Partial autocorrelations ``[..., P]`` of autocorrelations ``[..., P + 1]``."""
    flat = alike.reshape(-1, alike.shape[-1])
    out = np.array([_partial(c) for c in flat])
    return out.reshape(*alike.shape[:-1], alike.shape[-1] - 1)


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
