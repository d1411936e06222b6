"""Forecasters: what a series will be, from its own past.

A *forecaster* takes a series ``[T, ...]``, time first, and a horizon h, and gives an
array of the same shape whose entry t is the forecast of ``series[t]`` from
``series[:t - h + 1]``; the first entries, with nothing to go by, are NaN.  Nothing
looks ahead: changing the future changes no forecast (rolling origin).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import numpy.typing as npt
import scipy

from moetraffic.errors import AnalysisError

Float64 = npt.NDArray[np.float64]
Forecaster = Callable[..., Float64]


def persistence(series: npt.ArrayLike, *, horizon: int = 1) -> Float64:
    """Forecast that nothing changes: the last value known.

    Parameters
    ----------
    series
        ``[T, ...]``, time first.
    horizon
        Steps ahead, h >= 1.

    Returns
    -------
    float64 array ``[T, ...]``
        Forecasts of each step; the first h are NaN.

    Examples
    --------
    >>> persistence([1, 2, 4]).tolist()
    [nan, 1.0, 2.0]
    """
    return _ahead(np.asarray(series, dtype=np.float64), horizon)


def window_mean(series: npt.ArrayLike, *, window: int = 8, horizon: int = 1) -> Float64:
    """Forecast the mean of the last values known.

    Parameters
    ----------
    series
        ``[T, ...]``, time first.
    window
        Values averaged; at the beginning, those that there are.
    horizon
        Steps ahead, h >= 1.

    Returns
    -------
    float64 array ``[T, ...]``
        Forecasts of each step; the first h are NaN.  A NaN in the series is left out of
        the mean.

    Raises
    ------
    AnalysisError
        If the window or the horizon is below 1.

    Examples
    --------
    >>> window_mean([1, 3, 5, 7], window=2).tolist()
    [nan, 1.0, 2.0, 4.0]
    """
    if window < 1:
        raise AnalysisError(
            f"a window holds at least one value, but window is {window}: "
            f"choose 1 or more"
        )
    x = np.asarray(series, dtype=np.float64)
    known = np.isfinite(x)
    filled = np.where(known, x, 0.0)
    # Means of short windows summed directly: differences of running totals would carry
    # the rounding error of the whole past.
    total, count = np.zeros_like(x), np.zeros_like(x)
    if window <= 64:
        for back in range(min(window, len(x))):
            total[back:] += filled[: len(x) - back]
            count[back:] += known[: len(x) - back]
    else:
        total, count = _rolling(filled, window), _rolling(known * 1.0, window)
    mean: Float64 = np.full_like(x, np.nan)
    np.divide(total, count, out=mean, where=count > 0.5)
    return _ahead(mean, horizon)


def _rolling(x: Float64, window: int) -> Float64:
    """Sums of the last ``window`` rows, of fewer at the beginning."""
    offset = x.mean(axis=0) if len(x) else 0.0
    sums = np.cumsum(x - offset, axis=0)
    sums[window:] = sums[window:] - sums[:-window]
    held = np.minimum(np.arange(1, len(x) + 1), window)
    rolled: Float64 = sums + held.reshape(-1, *([1] * (x.ndim - 1))) * offset
    return rolled


def ema(series: npt.ArrayLike, *, alpha: float = 0.3, horizon: int = 1) -> Float64:
    """Forecast the exponential moving average, ``m += alpha (x - m)`` at each step.

    Parameters
    ----------
    series
        ``[T, ...]``, time first.
    alpha
        Weight of the newest value, above 0 and at most 1 (persistence).
    horizon
        Steps ahead, h >= 1.

    Returns
    -------
    float64 array ``[T, ...]``
        Forecasts of each step; the first h are NaN.  The average starts at the first
        value; after a NaN it goes on from what it was.

    Raises
    ------
    AnalysisError
        If alpha is not in (0, 1] or the horizon is below 1.

    Examples
    --------
    >>> ema([0, 8, 8], alpha=0.5).tolist()
    [nan, 0.0, 4.0]
    """
    if not 0 < alpha <= 1:
        raise AnalysisError(
            f"alpha is above 0 and at most 1, but is {alpha}: 1 is persistence, a "
            f"small alpha a long memory"
        )
    x = np.asarray(series, dtype=np.float64)
    known = np.isfinite(x)
    if not len(x):
        return x
    if known.all():
        start = (1 - alpha) * x[:1]
        level, _ = scipy.signal.lfilter([alpha], [1, alpha - 1], x, axis=0, zi=start)
    else:
        level = np.empty_like(x)
        now = x[0]
        for step, (value, here) in enumerate(zip(x, known, strict=True)):
            moved = np.where(np.isfinite(now), now + alpha * (value - now), value)
            now = level[step] = np.where(here, moved, now)
    return _ahead(np.asarray(level, dtype=np.float64), horizon)


def seasonal(series: npt.ArrayLike, *, period: int, horizon: int = 1) -> Float64:
    """Forecast the last known value of the same phase: ``x[t - m P]``, m as it must be.

    Parameters
    ----------
    series
        ``[T, ...]``, time first.
    period
        P, in steps.
    horizon
        Steps ahead, h >= 1; beyond a period the last whole one that is known counts.

    Returns
    -------
    float64 array ``[T, ...]``
        Forecasts of each step; NaN as long as no step of the phase is known.

    Raises
    ------
    AnalysisError
        If the period or the horizon is below 1.

    Examples
    --------
    >>> seasonal([1, 2, 3, 1, 2, 3], period=3).tolist()
    [nan, nan, nan, 1.0, 2.0, 3.0]
    """
    if period < 1:
        raise AnalysisError(
            f"a season is at least one step long, but period is {period}: choose 1 or "
            f"more"
        )
    if horizon < 1:
        return _ahead(np.asarray(series, dtype=np.float64), horizon)
    back = period * -(-horizon // period)
    return _ahead(np.asarray(series, dtype=np.float64), back)


def _ahead(known: Float64, horizon: int) -> Float64:
    """Row t of the result is row t - h of what was known; NaN before."""
    if horizon < 1:
        raise AnalysisError(
            f"a forecast looks at least one step ahead, but horizon is {horizon}: "
            f"choose 1 or more"
        )
    forecast: Float64 = np.full_like(known, np.nan)
    forecast[horizon:] = known[: max(len(known) - horizon, 0)]
    return forecast


def best_so_far(
    series: npt.ArrayLike,
    forecasts: Mapping[str, npt.ArrayLike],
    *,
    horizon: int = 1,
) -> Float64:
    """Forecast, at each step, as the forecaster with the least squared error so far.

    The choice is made for each series from the errors known when the forecast is made,
    so it is a forecaster like the others.  (To pick the winner afterwards and quote its
    score would be looking ahead.)

    Parameters
    ----------
    series
        ``[T, ...]``, time first.
    forecasts
        Forecasts ``[T, ...]`` at this horizon by the forecaster's name.
    horizon
        Steps ahead, h >= 1.

    Returns
    -------
    float64 array ``[T, ...]``
        Forecasts; of the first forecaster as long as no error is known.

    Examples
    --------
    >>> x = [0, 1, 0, 1, 0, 1]
    >>> candidates = {"last": persistence(x), "mean": window_mean(x, window=2)}
    >>> best_so_far(x, candidates).tolist()
    [nan, 0.0, 1.0, 0.5, 0.5, 0.5]
    """
    x = np.asarray(series, dtype=np.float64)
    made = np.stack([np.asarray(f, dtype=np.float64) for f in forecasts.values()])
    errors = (made - x) ** 2
    common = np.isfinite(errors).all(axis=0)
    total = np.cumsum(np.where(common, errors, 0.0), axis=1)
    known = np.zeros_like(total)
    known[:, horizon:] = total[:, : max(len(x) - horizon, 0)]
    choice = np.argmin(known, axis=0)
    chosen: Float64 = np.take_along_axis(made, choice[None], axis=0)[0]
    return chosen


FORECASTERS: dict[str, Forecaster] = {
    "persistence": persistence,
    "window_mean": partial(window_mean, window=8),
    "ema": partial(ema, alpha=0.3),
}
"""The built-in forecasters by name, with their usual settings."""
