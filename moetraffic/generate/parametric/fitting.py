r"""Fit the dynamics of the load and the variation of rows to token counts.

In steps, each by what identifies it without the others: the log-weights of a window's
mean shares are the levels of the course; variograms of the log-weights, less those of
the course and of the rows' noise, are sums of the components' variograms with variances
of at least 0; the covariance of rows within an iteration gives the factors.  Then all
are calibrated by simulated moments (:mod:`.calibration`).
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from scipy.linalg import eigh
from scipy.optimize import nnls

from moetraffic.arrays import Bool, Float64, Int32, Int64

from . import windows
from .constants import CONSTANTS
from .dynamics import Dynamics
from .rows import RowVariation
from .shares import log_weights, response


def fit_dynamics(counts: Int32, *, k: int, tokens: int) -> Dynamics:
    """Fit course and movement.

    Parameters
    ----------
    counts
        ``[n, L, R, E]`` int32; rows of all micro-batches of a layer side by side.
    k, tokens
        Experts per token, tokens of a row.
    """
    n, layers, ranks, _ = counts.shape
    least = 0.5 / (ranks * tokens)
    pi = counts.mean(axis=2) / tokens
    x = log_weights(pi, k, least)
    borders = windows.edges(n)
    knots = windows.centers(borders)
    weight = _means(pi, borders)
    # of the mean share: that of an expert without a token is none, not half a token
    width = np.diff(borders)[:, None, None]
    level = log_weights(weight, k, least / width)
    weight /= weight.sum(axis=2, keepdims=True)
    course = windows.interpolated(knots, level, np.arange(float(n)))
    noise = _noise(counts, pi, borders, k=k, tokens=tokens, least=least)
    grid = _grid()
    variance = np.zeros((len(knots), layers, len(grid)))
    for knot, (first, last) in enumerate(pairwise(borders)):
        reach = min(0.8 * (last - first), n - first - 4)
        lags = np.array([h for h in CONSTANTS.lags if h <= max(4, reach)])
        found = _variogram(x, course, noise, weight[knot], range(first, last), lags)
        variance[knot] = [_components(grid, lags, each) for each in found.T]
    # calibration scales what is there: a little of a fast and of a slow component
    little = CONSTANTS.least_component * variance.sum(axis=2, keepdims=True)
    variance[..., [0, CONSTANTS.decays.index(10.0)]] += little
    used: Bool = np.asarray((variance > 0).any(axis=(0, 1)))
    if not used.any():
        used[0] = True
    kept, adjacent = _kept(level)
    return Dynamics(
        knots=knots,
        level=level,
        kept=kept,
        adjacent=adjacent,
        damping=grid[used, 0],
        frequency=grid[used, 1],
        variance=variance[..., used],
        saturation=np.zeros(level.shape[:2]),
    )


def fit_rows(counts: Int32, *, tokens: int) -> RowVariation:
    """Fit the factors of the rows; arguments as of :func:`fit_dynamics`."""
    n, layers, ranks, experts = counts.shape
    cells, shape = layers * experts, (layers, experts)
    if ranks < 2:
        # one rank shows no differences: those of counting are left
        return RowVariation(
            factors=np.zeros((*shape, 0)), own=np.full(shape, tokens**-0.5)
        )
    least = 0.5 / (ranks * tokens)
    covariance = np.zeros((cells, cells))
    for first, last in pairwise(windows.edges(n)):
        rows = counts[first:last] / tokens
        pi = rows.mean(axis=2, keepdims=True)
        z = (rows - pi) / np.sqrt(np.maximum(pi * (1 - pi), least))
        z = z.transpose(0, 2, 1, 3).reshape(-1, cells)
        covariance += z.T @ z / (n * (ranks - 1))
    least_kept = max(0, cells - CONSTANTS.factors)
    value, vector = eigh(covariance, subset_by_index=(least_kept, cells - 1))
    factors = vector * np.sqrt(np.maximum(value, 0))
    own = covariance.diagonal() - (factors**2).sum(axis=1)
    return RowVariation(
        factors=factors.reshape(*shape, -1),
        own=np.sqrt(np.maximum(own, 0)).reshape(shape),
    )


def _means(values: Float64, borders: Int64) -> Float64:
    """Means of windows, ``[K, ...]`` of ``[n, ...]``."""
    width = np.diff(borders).reshape(-1, *[1] * (values.ndim - 1))
    return np.asarray(np.add.reduceat(values, borders[:-1], axis=0) / width)


def _noise(
    counts: Int32, pi: Float64, borders: Int64, *, k: int, tokens: int, least: float
) -> Float64:
    """Variance ``[n, L, E]`` of an iteration's log-weights due to its few rows."""
    ranks = counts.shape[2]
    spread = pi * (1 - pi)
    if ranks > 1:
        square = ((counts / tokens - pi[:, :, None]) ** 2).sum(axis=2) / (ranks - 1)
    else:
        square = spread / tokens
    ratio = _means(square, borders) / np.maximum(_means(spread, borders), least)
    ratio = np.repeat(ratio, np.diff(borders), axis=0)
    near = np.maximum(pi, least)
    slope = np.maximum(response(near, k), least)
    relative = ratio * np.maximum(near * (1 - near), 0) / ranks / slope**2
    # the logarithm of a cell with few copies varies less than its relative error
    return np.asarray(np.minimum(relative, 1.0))


def _grid() -> Float64:
    """Damping and frequency ``[J, 2]`` of all components."""
    still = [(np.exp(-1 / decay), 0.0) for decay in CONSTANTS.decays]
    swinging = [
        (np.exp(-1 / decay), 2 * np.pi / period)
        for decay in CONSTANTS.swing_decays
        for period in CONSTANTS.periods
    ]
    return np.array(still + swinging)


def _variogram(
    x: Float64,
    course: Float64,
    noise: Float64,
    weight: Float64,
    span: range,
    lags: Int64,
) -> Float64:
    """Mean square change of the movement over each lag, weighted by load, ``[H, L]``.

    Of log-weights, their course, and their noise's variance, ``[n, L, E]`` each;
    ``weight [L, E]`` has the sum 1: the noise of cold experts is known badly.  Changes
    are taken from the iterations of ``span``.
    """
    found = []
    for h in lags:
        t = np.arange(span.start, min(span.stop, len(x) - h))
        square = (x[t + h] - x[t]) ** 2 - (course[t + h] - course[t]) ** 2
        square -= noise[t + h] + noise[t]
        found.append((square * weight).sum(axis=2).mean(axis=0))
    return np.maximum(found, 0)


def _components(grid: Float64, lags: Int64, variogram: Float64) -> Float64:
    """Variances ``[J]`` of components whose variograms add up to one."""
    h = lags[:, None]
    each = 2 * (1 - grid[:, 0] ** h * np.cos(grid[:, 1] * h))
    return np.asarray(nnls(each, variogram)[0], np.float64)


def _kept(level: Float64) -> tuple[Float64, Float64]:
    """How much of the order of levels seeds share, and from knot to knot, ``[K]``.

    As much as the run has left of its beginning.  Two samples that have rho of the run
    in common have rho^2 of each other.
    """
    adjacent = np.r_[1.0, [_alike(a, b) for a, b in pairwise(level)]]
    shared = np.array([_alike(level[0], each) for each in level])
    return np.sqrt(np.clip(shared, 0, 1)), np.clip(adjacent, 0, 1)


def _alike(a: Float64, b: Float64) -> float:
    """Correlation of levels ``[L, E]``, whose means are 0."""
    size = np.sqrt((a**2).sum() * (b**2).sum())
    return float((a * b).sum() / size) if size > 0 else 0.0
