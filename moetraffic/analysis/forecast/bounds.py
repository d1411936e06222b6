r"""Predictability bounds: lower bounds on the error of any forecaster.

:func:`spectral_flatness` is the least error of a linear forecast one step ahead;
:mod:`moetraffic.analysis.forecast.entropy_rate` bounds the predictability of symbols,
which :func:`hot_symbols` and :func:`level_symbols` derive from traffic.

Series are ``[T, C]``, time first.  Bounds are estimated from one run, with
standard error ``error``; a transient in the run affects them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import digamma, polygamma

from moetraffic.errors import AnalysisError

from .accuracy import mean_of_known
from .entropy_rate import EntropyRate, entropy_rate

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

SHORTEST = 16
"""Minimum number of steps for a spectrum."""

HALF_WIDTH = 2
"""Half width, in frequencies, of the periodogram's moving average."""


@dataclass(frozen=True, kw_only=True)
class Flatness:
    """Lower bound on the NMSE of linear one-step forecasts, arrays ``[...]``.

    NaN where a series does not vary or has fewer than 16 steps without a gap.
    """

    nmse: Float64  # innovation variance over variance: 0 told exactly, 1 white noise
    error: Float64  # standard error of ln nmse
    low: Float64  # 95% interval of nmse, at most 1
    high: Float64
    variance: Float64  # of the series, its unit squared
    steps: Int64  # that were used: the longest stretch without a gap


def spectral_flatness(series: npt.ArrayLike) -> Flatness:
    r"""Geometric over arithmetic mean of the spectrum: Kolmogorov's one-step limit.

    :math:`\sigma^2 = \exp \frac{1}{2\pi} \int \ln f`, so that no linear forecast from
    the whole past has a smaller mean squared error over the variance than
    :math:`\exp(\overline{\ln f}) / \bar f`.

    f is the periodogram, averaged over K = 5 neighboring frequencies.  Three biases
    are taken off.  The logarithm of such a mean is too small by
    :math:`\ln K - \psi(K)` (a raw periodogram, K = 1, is off by :math:`e^{-\gamma}`, to
    .5615 on white noise).  Frequency 0 went with the mean and is put back at the level
    of its neighbors.  And the quotient of two uncertain means is too large by its
    variance.

    The mean over simulations, over the true value, for T = 30, 60, 100, 300, 1,000:
    white noise .98, .99, .99, 1.00, 1.00; AR(1) with .5: 1.05, 1.02, 1.01, 1.00, 1.00;
    with .9: 2.3, 1.5, 1.3, 1.06, 1.00: a short stretch of a slow series does not show
    most of its variance.

    Parameters
    ----------
    series
        ``[T, ...]``, time first, evenly spaced; of a series with NaN the longest
        stretch without one is used.

    Returns
    -------
    Flatness

    References
    ----------
    A. N. Kolmogorov, Bull. Acad. Sci. URSS Math. 5 (1941) 3; H. T. Davis and R. H.
    Jones, J. Am. Stat. Assoc. 63 (1968) 141; M. Taniguchi, J. Appl. Prob. 17 (1980) 73.

    Examples
    --------
    >>> noise = np.random.default_rng(0).normal(size=4000)
    >>> round(float(spectral_flatness(noise).nmse), 1)
    1.0
    """
    x = np.asarray(series, dtype=np.float64)
    outer = x.shape[1:]
    flat = x.reshape(len(x), int(np.prod(outer)))
    found: Float64 = np.full((3, flat.shape[1]), np.nan)
    runs = np.array([longest_run(column) for column in np.isfinite(flat).T], np.int64)
    runs = runs.reshape(-1, 2)
    for first, last in np.unique(runs, axis=0).tolist():
        if last - first >= SHORTEST:
            same = (runs == (first, last)).all(axis=1)
            found[:, same] = _flatness(flat[first:last, same])
    nmse, error, variance = (row.reshape(outer)[()] for row in found)
    return Flatness(
        nmse=nmse,
        error=error,
        low=nmse * np.exp(-1.96 * error),
        high=np.minimum(nmse * np.exp(1.96 * error), np.maximum(nmse, 1.0)),
        variance=variance,
        steps=(runs[:, 1] - runs[:, 0]).reshape(outer)[()],
    )


def longest_run(known: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Find the first longest run of True: its begin, and the index after its end."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], known, [False]))))
    begin, end = edges[::2], edges[1::2]
    if not len(begin):
        return 0, 0
    longest = int(np.argmax(end - begin))
    return int(begin[longest]), int(end[longest])


def _flatness(x: Float64) -> Float64:
    """Compute flatness, standard error of its logarithm, and variance of ``[T, M]``."""
    n = len(x)
    centered = x - x.mean(axis=0)
    variance = (centered**2).mean(axis=0)
    varies = variance > 1e-24 * (x**2).mean(axis=0)  # less is rounding
    scaled = centered / np.sqrt(np.where(varies, variance, 1.0))
    # Step 1: the periodogram without frequency 0 and, if n is even, n/2.
    power = np.abs(np.fft.rfft(scaled, axis=0)[1 : (n - 1) // 2 + 1]) ** 2 / n
    m, taps = len(power), 2 * HALF_WIDTH + 1
    # Step 2: averaged over neighbors, the ends reflected.
    padded = np.concatenate(
        (power[HALF_WIDTH - 1 :: -1], power, power[: -HALF_WIDTH - 1 : -1])
    )
    level = sum(padded[place : place + m] for place in range(taps)) / taps
    mean = power.mean(axis=0)
    mean = np.where(mean > 0, mean, 1.0)
    level = np.maximum(level, 1e-30 * mean)  # what is told exactly
    # Step 3: both means, with frequency 0 put back.
    logs = np.log(level)
    middle = logs.mean(axis=0) + np.log(taps) - digamma(taps)
    geometric = middle + (logs[0] - logs.mean(axis=0)) / n
    arithmetic = np.log(mean * (1 + (level[0] / mean - 1) / n))
    # Step 4: the variance of their difference, from ordinates that are exponential.
    spread = (power**2).mean(axis=0) / (2 * m * mean**2)
    own = float(taps * polygamma(1, taps)) / m
    doubt = np.maximum(spread + own - 2 / m, own - 1 / m)
    nmse = np.exp(geometric - arithmetic - (spread + doubt) / 2)
    found = np.stack((nmse, np.sqrt(doubt), variance))
    result: Float64 = np.where(varies, found, np.array([[np.nan], [np.nan], [0.0]]))
    return result


def hot_symbols(loads: npt.ArrayLike, *, top: int = 1) -> Int64:
    """Encode the indices of the largest loads of each step, the first in ties.

    Parameters
    ----------
    loads
        ``[T, E]``.  Steps with a NaN or without any load are left out.
    top
        Number of loads, in order: two are ``first * E + second``.

    Returns
    -------
    int64 array ``[at most T]``
        Empty for fewer than ``top`` experts.

    Examples
    --------
    >>> hot_symbols([[1, 2, 0], [0, 0, 0], [5, 5, 1]]).tolist()
    [1, 0]
    >>> hot_symbols([[1, 2, 0], [5, 5, 1]], top=2).tolist()
    [3, 1]
    """
    values = np.asarray(loads, np.float64)
    experts = values.shape[1]
    if experts < top:
        return np.zeros(0, np.int64)
    whole = np.isfinite(values).all(axis=1)
    used = values[whole & (np.where(np.isfinite(values), values, 0) > 0).any(axis=1)]
    order = np.argsort(-used, axis=1, kind="stable")[:, :top]
    return np.asarray(order @ experts ** np.arange(top)[::-1], np.int64)


def level_symbols(series: npt.ArrayLike, *, levels: int = 4) -> Int64:
    """Quantize a series by its own quantiles.

    Parameters
    ----------
    series
        ``[T]``; NaN are left out.
    levels
        At least 2.  A value that makes up more than a level's share stays in one level,
        so that fewer may occur.

    Returns
    -------
    int64 array ``[at most T]``
        0 the lowest.

    Examples
    --------
    >>> level_symbols([1, 9, 2, 8, 3, 7, 4, 6], levels=2).tolist()
    [0, 1, 0, 1, 0, 1, 0, 1]
    """
    x = np.asarray(series, np.float64)
    x = x[np.isfinite(x)]
    if not x.size:
        return np.zeros(0, np.int64)
    edges = np.quantile(x, np.arange(1, levels) / levels)
    found: Int64 = np.searchsorted(edges, x, side="left").astype(np.int64)
    return found


@dataclass(frozen=True, kw_only=True)
class PredictabilityBounds:
    """Predictability bounds of series ``[T, C]``, one step ahead.

    ``pooled_nmse`` weighs each series with its variance: it compares with the NMSE that
    forecasters reach on all of them together.
    """

    flatness: Flatness  # arrays [C]
    pooled_nmse: float
    pooled_error: float  # of its logarithm, as if series were independent
    rates: Mapping[str, EntropyRate]  # by "hottest", "hottest_two", "levels"
    about: Mapping[str, str]  # how the symbols were made, in words


def limits(series: npt.ArrayLike) -> PredictabilityBounds:
    """Bounds on the error of forecasts of loads or cells one step ahead.

    Parameters
    ----------
    series
        ``[T, C]``: loads of experts, cells of a matrix, or shares of these.

    Returns
    -------
    PredictabilityBounds

    Raises
    ------
    AnalysisError
        If the series are not ``[T, C]``.

    Examples
    --------
    >>> turns = np.eye(4)[np.arange(200) % 4] + 1
    >>> found = limits(turns)
    >>> found.pooled_nmse < 0.01, found.rates["hottest"].markov
    (True, 0.0)
    """
    x = np.asarray(series, np.float64)
    if x.ndim != 2:
        raise AnalysisError(
            f"limits are of series [T, C], but the array has shape {x.shape}: give a "
            f"row a step and a column a series"
        )
    flatness = spectral_flatness(x)
    usable = np.isfinite(flatness.nmse) & (flatness.variance > 0)
    pooled = error = float("nan")
    if usable.any():
        part = (flatness.variance * flatness.nmse)[usable]
        pooled = float(part.sum() / flatness.variance[usable].sum())
        if part.sum() > 0:
            doubt = part * flatness.error[usable]
            error = float(np.sqrt((doubt**2).sum()) / part.sum())
    rates: dict[str, EntropyRate] = {}
    about: dict[str, str] = {}
    if x.shape[1] > 1:
        rates["hottest"] = entropy_rate(hot_symbols(x))
        about["hottest"] = f"which of {x.shape[1]} is largest in each step"
        rates["hottest_two"] = entropy_rate(hot_symbols(x, top=2))
        about["hottest_two"] = "which is largest and which second, in this order"
    if x.size and np.isfinite(x).any():
        largest = int(np.argmax(np.nan_to_num([mean_of_known(one) for one in x.T])))
        rates["levels"] = entropy_rate(level_symbols(x[:, largest]))
        about["levels"] = (
            f"level of series {largest}, the one with the largest mean, among "
            "4 quantiles of its own"
        )
    return PredictabilityBounds(
        flatness=flatness,
        pooled_nmse=pooled,
        pooled_error=error,
        rates=rates,
        about=about,
    )
