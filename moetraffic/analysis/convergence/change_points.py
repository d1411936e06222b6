r"""Change points: steps at which the level of one or many series changes.

The model is a level that is constant between changes, plus an autoregressive process:

    x_t = mu_segment + u_t,    u_t = sum_j a_j u_{t-j} + e_t.

Training series are autocorrelated, and methods that assume independent noise detect
spurious changes in them.  Here a segmentation is scored by its gain in likelihood over
an autoregression *without* any change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.forecast.autoregression import moments, solve
from moetraffic.errors import AnalysisError

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

SHORTEST = 16
"""Minimum number of steps for a search."""

SEGMENT = 4
"""Minimum number of steps, or blocks of steps, between two changes."""

MOST_CHANGES = 16

LONGEST_MEMORY = 8
"""Maximum order of the autoregression."""

_PENALTIES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)
_FEW = 4  # number of changes also placed without a penalty
_AT_ONCE = 2_000_000


@dataclass(frozen=True, kw_only=True)
class ChangePoints:
    """Change points of a series; K changes make K + 1 segments."""

    index: Int64  # [K], first step of each new level, an index into the series
    gain: Float64  # [K], loss of 2 ln likelihood if this change is removed
    penalty: float  # minimum gain of a change; NaN: too short or constant
    levels: Float64  # [K + 1, ...], mean of each segment, the series' unit
    order: int  # of the autoregression
    memory: float  # median over series of the sum of coefficients; 1: random walk
    resolution: int  # steps per averaged block: precision of the changes
    used: Int64  # columns used, those with the largest variance


def change_points(
    series: npt.ArrayLike,
    *,
    false_alarms: float = 0.05,
    max_points: int = 512,
    max_series: int = 64,
    resamples: int = 199,
    seed: int = 0,
) -> ChangePoints:
    r"""Detect changes of level in one series, or common to several series.

    Candidates come from PELT on the squared error, each series over its long-run
    standard deviation, at a range of penalties.  Of these, and of what is left when
    their weakest changes are taken out, the one with the largest

    .. math:: \sum_i n \ln \frac{RSS_{0i}}{RSS_i} - K \beta

    is kept, with no change at 0; RSS are the squared residuals of the autoregression
    with the segments' levels taken off, and without any.  That is a BIC whose penalty
    :math:`\beta` is not :math:`(d + 1) \ln n`, far too strict for many series and too
    lax for few steps, but calibrated: the quantile ``1 - false_alarms / 2`` of what the
    best single change gains in ``resamples`` series without one (the other half of the
    chance is left to several changes at once).  These are made of the
    autoregression without a change, its dominant root corrected for its bias
    (:math:`(1 + 3a)/n`), and of its residuals, drawn with replacement, all series'
    residuals of a step together, so that what ties the series to each other is kept.
    :math:`\beta` is never below :math:`2 \ln n`.

    A drift, or a transient, has no level: it shows as a staircase.

    Parameters
    ----------
    series
        ``[T]`` or ``[T, C]``, step first.  Steps with a NaN are left out.
    false_alarms
        Chance of a change where there is none.
    max_points
        Longer series are first averaged over blocks of equal numbers of steps.
    max_series
        Of more columns, those with the largest variance are used.
    resamples, seed
        Of the series without a change.

    Returns
    -------
    ChangePoints

    Raises
    ------
    AnalysisError
        If the series have another shape or the chance is not between 0 and 1.

    References
    ----------
    R. Killick, P. Fearnhead and I. A. Eckley, J. Am. Stat. Assoc. 107 (2012) 1590:
    PELT; S. Chakar et al., Bernoulli 23 (2017) 1408: changes under an AR(1) and its
    robust coefficient; P. Bühlmann, Bernoulli 3 (1997) 123: the sieve bootstrap; M. G.
    Kendall, Biometrika 41 (1954) 403: the bias.

    Examples
    --------
    >>> noise = np.random.default_rng(0).normal(size=100)
    >>> found = change_points(noise + 3 * (np.arange(100) >= 60))
    >>> found.index.tolist(), found.levels.round(0).tolist()
    ([60], [0.0, 3.0])
    """
    x = np.asarray(series, dtype=np.float64)
    if x.ndim not in (1, 2) or not 0 < false_alarms < 1 or max_points < SHORTEST:
        raise AnalysisError(
            f"changes are of series [T] or [T, C], with a chance of false alarms "
            f"between 0 and 1 and {SHORTEST} points or more, but the shape is "
            f"{x.shape}, the chance {false_alarms} and max_points {max_points}: "
            f"correct them"
        )
    flat = x.reshape(len(x), int(np.prod(x.shape[1:])))
    steps = np.flatnonzero(np.isfinite(flat).all(axis=1))
    size = max(1, -(-len(steps) // max_points))
    used = _varying(flat[steps], max_series)
    n = len(steps) // size
    if n < SHORTEST or not len(used):
        return _described(x, steps, size, (), used)
    y = flat[steps[: n * size]][:, used].reshape(n, size, -1).mean(axis=1)
    y = (y - y.mean(axis=0)) / y.std(axis=0)
    # From the length alone: sampling noise on a slow state has a long autocorrelation,
    # which the low orders chosen by AIC miss; it would be detected as changes.
    order = max(1, min(LONGEST_MEMORY, n // 12))
    coefficients, residuals = _without_change(y, order)
    without = (residuals**2).sum(axis=0)
    gains = _null_gains(coefficients, residuals, n, resamples, seed)
    strict = float(np.quantile(gains, 1 - false_alarms / 2, method="higher"))
    penalty = max(strict, 2 * float(np.log(n)))

    @cache
    def gain(changes: tuple[int, ...]) -> float:
        return _gain(y, changes, order, without)

    best: tuple[int, ...] = ()
    for candidate in _candidates(y, penalty, coefficients, residuals):
        changes = _pruned(candidate, gain, penalty)
        worth = gain(changes) - penalty * len(changes)
        if worth > gain(best) - penalty * len(best) + 1e-9:
            best = changes
    lost = [gain(best) - gain(_without(best, one)) for one in best]
    return _described(
        x,
        steps,
        size,
        best,
        used,
        gain=np.array(lost, np.float64),
        penalty=penalty,
        order=order,
        memory=float(np.median(coefficients.sum(axis=-1))),
    )


def _varying(x: Float64, most: int) -> Int64:
    """Select the columns with the largest variance, above rounding error."""
    if not len(x):
        return np.zeros(0, np.int64)
    variance = x.var(axis=0)
    spread = np.where(variance > 1e-24 * (x**2).mean(axis=0), variance, 0.0)
    order = np.argsort(-spread, kind="stable")[:most]
    return np.sort(order[spread[order] > 0]).astype(np.int64)


def _described(
    x: Float64,
    steps: Int64,
    size: int,
    changes: tuple[int, ...],
    used: Int64,
    *,
    gain: Float64 | None = None,
    penalty: float = float("nan"),
    order: int = 0,
    memory: float = float("nan"),
) -> ChangePoints:
    at = np.array([steps[change * size] for change in changes], np.int64)
    edges = [0, *at.tolist(), len(x)]
    levels = np.full((len(edges) - 1, *x.shape[1:]), np.nan)
    for segment in range(len(edges) - 1):
        within = steps[(steps >= edges[segment]) & (steps < edges[segment + 1])]
        if len(within):
            levels[segment] = x[within].mean(axis=0)
    return ChangePoints(
        index=at,
        gain=np.zeros(0) if gain is None else gain,
        penalty=penalty,
        levels=levels,
        order=order,
        memory=memory,
        resolution=size,
        used=used,
    )


def _without_change(y: Float64, order: int) -> tuple[Float64, Float64]:
    """Fit an autoregression without changes: coefficients and residuals per series."""
    sums = moments(np.ascontiguousarray(y.T), [0, len(y)], max_order=order)
    found = solve(sums, order, np.ones((1, 1)), stable=False)
    weights = found.weights[0]
    residuals = y[order:] - found.constant[0]
    for lag in range(1, order + 1):
        residuals = residuals - weights[:, lag - 1] * y[order - lag : len(y) - lag]
    return weights, residuals


def _ridged(gram: Float64) -> Float64:
    """Add a ridge of the order of rounding errors to normal equations."""
    trace = np.trace(gram, axis1=-2, axis2=-1)[..., None, None]
    ridged: Float64 = gram + (1e-10 * trace + 1e-12) * np.eye(gram.shape[-1])
    return ridged


def _null_gains(
    coefficients: Float64, residuals: Float64, n: int, resamples: int, seed: int
) -> Float64:
    """Simulate the gain of the best single change in series without one."""
    rng = np.random.default_rng(seed)
    law = _unbiased(coefficients, n)  # [C, p]
    cells, order = law.shape
    burn = 100
    gains = []
    width = max(1, _AT_ONCE // ((n + burn) * cells * order))
    for at in range(0, resamples, width):
        some = min(width, resamples - at)
        drawn = rng.integers(0, len(residuals), (some, n + burn))
        y = residuals[drawn]  # [S, n + burn, C]
        for t in range(1, n + burn):
            for j in range(1, min(order, t) + 1):
                y[:, t] += law[:, j - 1] * y[:, t - j]
        gains.append(_best_single(y[:, burn:], order))
    return np.concatenate(gains)


def _unbiased(coefficients: Float64, n: int) -> Float64:
    """Correct the largest root of autoregressions for bias, keeping them stationary."""
    cells, order = coefficients.shape
    companion = np.zeros((cells, order, order))
    companion[:, 0] = coefficients
    companion[:, np.arange(1, order), np.arange(order - 1)] = 1.0
    root = np.abs(np.linalg.eigvals(companion)).max(axis=1)
    memory = np.clip(coefficients.sum(axis=1), 0.0, 1.0)
    wanted = np.where(memory > 0, root + (1 + 3 * memory) / n, root)
    factor = np.minimum(wanted, 0.99) / np.maximum(root, 1e-6)
    factor = np.where(root > 0.1, factor, 1.0)
    corrected: Float64 = coefficients * factor[:, None] ** np.arange(1, order + 1)
    return corrected


def _best_single(y: Float64, order: int) -> Float64:
    """Compute the largest gain over positions of a single change of level, ``[S]``.

    By Frisch, Waugh and Lovell: with r the residuals without a change, a step s after m
    of n takes (s'r)^2 / s'Ms off their squares, M what the lags leave.
    """
    draws, n, cells = y.shape
    rows = np.ascontiguousarray(y.transpose(0, 2, 1)).reshape(draws * cells, n)
    windows = np.lib.stride_tricks.sliding_window_view(rows, order, axis=1)[:, :-1]
    lags = windows - windows.mean(axis=1, keepdims=True)  # [M, n - p, p]
    now = rows[:, order:] - rows[:, order:].mean(axis=1, keepdims=True)
    root = np.linalg.cholesky(np.linalg.inv(_ridged(lags.transpose(0, 2, 1) @ lags)))
    lags = lags @ root  # orthonormal: their sums of squares are the quadratic forms
    residuals = now - (lags @ (lags.transpose(0, 2, 1) @ now[..., None]))[..., 0]
    rss = np.maximum((residuals**2).sum(axis=1), 1e-12)
    passed = np.cumsum(lags, axis=1)[:, :-1]
    m = np.arange(1, residuals.shape[1])
    left = m * (m[-1] + 1 - m) / (m[-1] + 1) - (passed**2).sum(axis=2)
    taken = np.cumsum(residuals, axis=1)[:, :-1] ** 2 / np.maximum(left, 1e-6)
    inner = slice(SEGMENT - 1, len(m) - SEGMENT + 1)
    share = np.clip(taken[:, inner] / rss[:, None], 0.0, 1 - 1e-9)
    gain = -residuals.shape[1] * np.log1p(-share)
    largest: Float64 = gain.reshape(draws, cells, -1).sum(axis=1).max(axis=1)
    return largest


def _candidates(
    y: Float64, penalty: float, coefficients: Float64, residuals: Float64
) -> list[tuple[int, ...]]:
    """Generate candidate segmentations by PELT at a range of penalties."""
    import ruptures

    # Step 1: long-run variance, by the robust AR(1) coefficient of differences, which
    # changes hardly touch, and by the autoregression without a change.
    one, two = np.abs(y[1:] - y[:-1]), np.abs(y[2:] - y[:-2])
    near, far = _trimmed(one), _trimmed(two)
    memory = np.clip(far / np.maximum(near, 1e-12) - 1, 0.0, 0.9)
    scale = near / 2 / (1 - memory) * (1 + memory) / (1 - memory)
    rest = np.maximum(1 - coefficients.sum(axis=-1), 0.1)
    whole = (residuals**2).mean(axis=0) / rest**2
    found: dict[tuple[int, ...], None] = {}
    for variance in (scale, whole):
        floor = 1e-6 * max(float(variance.max()), 1e-12)
        z = y / np.sqrt(np.maximum(variance, floor))
        finder = ruptures.KernelCPD(kernel="linear", min_size=SEGMENT).fit(z)
        tried = [finder.predict(pen=float(penalty * factor)) for factor in _PENALTIES]
        few = min(_FEW, len(y) // SEGMENT - 1)
        tried += [finder.predict(n_bkps=number) for number in range(1, few + 1)]
        for ends in tried:
            if 1 < len(ends) <= MOST_CHANGES + 1:
                found[tuple(int(end) for end in ends[:-1])] = None
    return list(found)


def _trimmed(difference: Float64) -> Float64:
    """Compute a trimmed mean square without the largest 10%, scaled to normal noise."""
    kept = np.sort(difference, axis=0)[: max(1, int(0.9 * len(difference)))]
    # E[z^2; |z| < 1.645] / 0.9 of a standard normal variable is 0.6229
    mean: Float64 = (kept**2).mean(axis=0) / 0.6229
    return mean


def _gain(y: Float64, changes: tuple[int, ...], order: int, without: Float64) -> float:
    """Compute the gain of a segmentation in 2 ln likelihood."""
    if not changes:
        return 0.0
    level = np.empty_like(y)
    edges = [0, *changes, len(y)]
    for first, last in pairwise(edges):
        level[first:last] = y[first:last].mean(axis=0)
    # the lags take off the levels of their own steps: a change leaves no spike
    u = np.ascontiguousarray((y - level).T)
    lags = np.lib.stride_tricks.sliding_window_view(u, order, axis=1)[:, :-1]
    now = u[:, order:, None]
    turned = lags.transpose(0, 2, 1)
    rest = now - lags @ np.linalg.solve(_ridged(turned @ lags), turned @ now)
    rss = (rest**2).sum(axis=(1, 2))
    ratio = np.maximum(without, 1e-12) / np.maximum(rss, 1e-12)
    return (len(y) - order) * float(np.log(ratio).sum())


def _pruned(
    changes: tuple[int, ...], gain: Callable[[tuple[int, ...]], float], penalty: float
) -> tuple[int, ...]:
    """Remove the weakest change while its gain is below the penalty."""
    while changes:
        fewer = [_without(changes, one) for one in changes]
        gains = [gain(few) for few in fewer]
        best = int(np.argmax(gains))
        if gain(changes) - gains[best] > penalty:
            break
        changes = fewer[best]
    return changes


def _without(changes: tuple[int, ...], one: int) -> tuple[int, ...]:
    return tuple(change for change in changes if change != one)
