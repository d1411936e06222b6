r"""The trend of a layer's states: from where they start to where they converge.

:math:`\mu(t) = \mu_\infty + (\mu_0 - \mu_\infty) \exp(-t/\tau)`: linear in both ends,
which least squares gives for each tau of a grid.  From there :mod:`.far_start` goes on:
what is left over has memory, so the squares are those of :math:`r^T V^{-1} r`, V the
Toeplitz covariance of the memories: each residual less its best forecast from the ORDER
before, over that forecast's error (Vecchia, J. R. Stat. Soc. B 50 (1988) 297).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import cholesky, solve_toeplitz, solve_triangular, toeplitz
from scipy.signal import lfilter

from .memories import Memories

Float64 = npt.NDArray[np.float64]

GRID = 60
"""Values of tau that are tried."""

ORDER = 200
"""Rows before one that tell what is new in it."""

LONGEST = 20000
"""Iterations that are used: of longer runs the first, in which the trend is."""

SLOWEST = 1 / 3
"""tau is at most this share of the run: else where it leads is not seen."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trend:
    """A fitted trend of E experts."""

    start: Float64  # [E]
    level: Float64  # [E]
    tau: float
    start_error: Float64  # [E] standard errors at the tau that was found
    level_error: Float64  # [E]
    tau_bounds: tuple[float, float]  # 95%

    def curve(self, count: int) -> Float64:
        """mu(t), ``[n, E]``."""
        faded = np.exp(-np.arange(count) / self.tau)[:, None]
        return np.asarray(self.level + (self.start - self.level) * faded, np.float64)


def fit_trend(state: Float64) -> Trend:
    """Fit the trend of ``[n, E]`` states, what is left over taken for white.

    Parameters
    ----------
    state
        Centered logarithms.
    """
    x = state[:LONGEST]
    count, experts = x.shape
    taus = np.geomspace(1.0, max(2.0, count * SLOWEST), GRID)
    steps = np.arange(count)
    basis = np.column_stack([np.ones(count), *(np.exp(-steps / tau) for tau in taus)])
    squares = (x**2).sum()
    grams = basis.T @ basis
    hits = basis.T @ x
    left = np.empty(GRID)
    ends = np.empty((GRID, 2, experts))
    for at in range(GRID):
        pair = np.ix_([0, at + 1], [0, at + 1])
        ends[at] = np.linalg.solve(grams[pair], hits[[0, at + 1]])
        left[at] = squares - (ends[at] * hits[[0, at + 1]]).sum()
    left *= count * experts / max(left.min(), 1e-300)
    best = int(left.argmin())
    tau = _between(np.log(taus), left, best)
    inside = np.flatnonzero(left <= left.min() + 3.84)
    low, high = taus[max(inside[0] - 1, 0)], taus[min(inside[-1] + 1, GRID - 1)]
    inverse = np.linalg.inv(grams[np.ix_([0, best + 1], [0, best + 1])])
    errors = np.sqrt([inverse[0, 0], inverse[0, 0] + inverse[1, 1] + 2 * inverse[0, 1]])
    # centered logarithms share out one degree of freedom
    errors *= np.sqrt(1 - 1 / experts)
    return Trend(
        level=ends[best, 0],
        start=ends[best].sum(axis=0),
        tau=float(np.exp(tau)),
        level_error=np.full(experts, errors[0]),
        start_error=np.full(experts, errors[1]),
        tau_bounds=(float(low), float(high)),
    )


def whitened(columns: Float64, memories: Memories) -> Float64:
    """Columns ``[n, C]`` as what is new in each row, with variance 1.

    Parameters
    ----------
    columns
        Of which each has the memories' autocorrelation and variance 1.
    memories
        With noise.
    """
    count = len(columns)
    order = min(ORDER, count - 1)
    lags = np.arange(order + 1)
    acov = (memories.share[:, None] * memories.phi[:, None] ** lags).sum(axis=0)
    acov[0] = memories.share.sum() + memories.noise + 1e-9
    out = np.empty_like(columns)
    # the first rows exactly, those behind them from the ORDER before
    head = cholesky(toeplitz(acov[:order]), lower=True)
    out[:order] = solve_triangular(head, columns[:order], lower=True)
    weights = solve_toeplitz(acov[:order], acov[1:])
    left = acov[0] - float(weights @ acov[1:])
    told = lfilter(np.r_[1.0, -weights], [1.0], columns, axis=0)
    out[order:] = told[order:] / np.sqrt(max(left, 1e-12))
    return np.asarray(out, np.float64)


def _between(x: Float64, y: Float64, at: int) -> float:
    """Where the parabola through a minimum and its neighbors is lowest."""
    if not 0 < at < len(x) - 1:
        return float(x[at])
    before, here, after = (float(v) for v in y[at - 1 : at + 2])
    bend = before - 2 * here + after
    aside = 0.5 * (before - after) / bend if bend > 0 else 0.0
    return float(x[at] + aside * (x[1] - x[0]))
