r"""Predictability bounds: lower bounds on the error of any forecaster.

:func:`spectral_flatness` is the least error of a linear forecast one step ahead;
:mod:`moetraffic.analysis.forecast.entropy_rate` bounds the predictability of symbols,
which :func:`hot_symbols`, :func:`pair_symbols` and :func:`level_symbols` derive from
traffic.

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

from .entropy_rate import EntropyRate, entropy_rate

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

SHORTEST = 16
"""Minimum number of steps for a spectrum."""

HALF_WIDTH = 2
"""Half width, in frequencies, of the periodogram's moving average."""

_CHUNK = 8_000_000


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

    The mean over simulations, over the truth, for T = 30, 60, 100, 300, 1,000: white
    noise .98, .99, .99, 1.00, 1.00; AR(1) with .5: 1.05, 1.02, 1.01, 1.00, 1.00; with
    .9: 2.3, 1.5, 1.3, 1.06, 1.00.  What is left is no error of the formula: in a short
    stretch of a slow series, most of its variance is not seen.  One run of T = 1,000
    still errs by 14% at .9, as ``error`` says; the interval covers the truth in 93% of
    runs then, but in 67% of those of T = 60.

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
    begin, end = _stretches(np.isfinite(flat))
    for first, last in sorted(set(zip(begin.tolist(), end.tolist(), strict=True))):
        if last - first < SHORTEST:
            continue
        alike = np.flatnonzero((begin == first) & (end == last))
        width = max(1, _CHUNK // (last - first))
        for some in np.array_split(alike, -(-len(alike) // width)):
            found[:, some] = _flatness(flat[first:last, some])
    nmse, error, variance = (row.reshape(outer)[()] for row in found)
    return Flatness(
        nmse=nmse,
        error=error,
        low=nmse * np.exp(-1.96 * error),
        high=np.minimum(nmse * np.exp(1.96 * error), np.maximum(nmse, 1.0)),
        variance=variance,
        steps=(end - begin).reshape(outer)[()],
    )


def _stretches(known: npt.NDArray[np.bool_]) -> tuple[Int64, Int64]:
    """Find begin and end of the first longest run of True in each column."""
    steps, columns = known.shape
    begin, end = np.zeros(columns, np.int64), np.full(columns, steps, np.int64)
    for column in np.flatnonzero(~known.all(axis=0)):
        edge = np.diff(np.concatenate(([0], known[:, column].astype(np.int8), [0])))
        starts, ends = np.flatnonzero(edge == 1), np.flatnonzero(edge == -1)
        if not len(starts):
            end[column] = 0
            continue
        longest = int(np.argmax(ends - starts))
        begin[column], end[column] = starts[longest], ends[longest]
    return begin, end


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


def hot_symbols(loads: npt.ArrayLike) -> Int64:
    """Compute the index of the largest load of each step, the first in ties.

    Parameters
    ----------
    loads
        ``[T, E]``.  Steps with a NaN or without any load are left out.

    Returns
    -------
    int64 array ``[at most T]``

    Examples
    --------
    >>> hot_symbols([[1, 2, 0], [0, 0, 0], [5, 5, 1]]).tolist()
    [1, 0]
    """
    first: Int64 = _ranked(loads, 1)[:, 0]
    return first


def pair_symbols(loads: npt.ArrayLike) -> Int64:
    """Encode the two largest loads of each step, in order, as ``first * E + second``.

    Parameters
    ----------
    loads
        As in :func:`hot_symbols`.

    Returns
    -------
    int64 array ``[at most T]``
        Empty for fewer than two experts.

    Examples
    --------
    >>> pair_symbols([[1, 2, 0], [5, 5, 1]]).tolist()
    [3, 1]
    """
    values = np.asarray(loads, np.float64)
    if values.ndim == 2 and values.shape[1] < 2:
        return np.zeros(0, np.int64)
    ranked = _ranked(values, 2)
    pair: Int64 = ranked[:, 0] * values.shape[1] + ranked[:, 1]
    return pair


def _ranked(loads: npt.ArrayLike, top: int) -> Int64:
    values = np.asarray(loads, np.float64)
    if values.ndim != 2 or values.shape[1] < 1:
        raise AnalysisError(
            f"the hottest is one of the loads [T, E], but the array has shape "
            f"{values.shape}: give a row a step and a column an expert"
        )
    whole = np.isfinite(values).all(axis=1)
    used = values[whole & (np.where(np.isfinite(values), values, 0) > 0).any(axis=1)]
    order: Int64 = np.argsort(-used, axis=1, kind="stable")[:, :top].astype(np.int64)
    return order


def level_symbols(series: npt.ArrayLike, *, levels: int = 4) -> Int64:
    """Quantize a series by its own quantiles.

    Parameters
    ----------
    series
        ``[T]``; NaN are left out.
    levels
        How many.  A value that makes up more than a level's share stays in one level,
        so that fewer may occur.

    Returns
    -------
    int64 array ``[at most T]``
        0 the lowest.

    Raises
    ------
    AnalysisError
        If there are fewer than two levels, or the series has more than one axis.

    Examples
    --------
    >>> level_symbols([1, 9, 2, 8, 3, 7, 4, 6], levels=2).tolist()
    [0, 1, 0, 1, 0, 1, 0, 1]
    """
    x = np.asarray(series, np.float64)
    if levels < 2 or x.ndim != 1:
        raise AnalysisError(
            f"a series [T] has two levels or more, but shape {x.shape} and {levels} "
            f"levels were given: give one series and at least 2 levels"
        )
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


def limits(series: npt.ArrayLike, *, levels: int = 4) -> PredictabilityBounds:
    """Bounds on the error of forecasts of loads or cells one step ahead.

    Parameters
    ----------
    series
        ``[T, C]``: loads of experts, cells of a matrix, or shares of these.
    levels
        Of the quantized series, see :func:`level_symbols`; it is the series with the
        largest mean, so that all is about what weighs most.

    Returns
    -------
    PredictabilityBounds
        Deterministic: nothing is drawn.

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
    weight = np.where(usable, flatness.variance, 0.0)
    pooled = error = float("nan")
    if usable.any():
        part = weight * np.where(usable, flatness.nmse, 0.0)
        pooled = float(part.sum() / weight.sum())
        doubt = part * np.where(usable, flatness.error, 0.0)
        if part.sum() > 0:
            error = float(np.sqrt((doubt**2).sum()) / part.sum())
    rates: dict[str, EntropyRate] = {}
    about: dict[str, str] = {}
    if x.shape[1] > 1:
        rates["hottest"] = entropy_rate(hot_symbols(x))
        about["hottest"] = f"which of {x.shape[1]} is largest in each step"
        rates["hottest_two"] = entropy_rate(pair_symbols(x))
        about["hottest_two"] = "which is largest and which second, in this order"
    if x.size and np.isfinite(x).any():
        known = np.isfinite(x)
        sums = np.where(known, x, 0.0).sum(axis=0)
        means = np.where(known.any(axis=0), sums / np.maximum(known.sum(axis=0), 1), 0)
        heaviest = int(np.argmax(means))
        rates["levels"] = entropy_rate(level_symbols(x[:, heaviest], levels=levels))
        about["levels"] = (
            f"level of series {heaviest}, the one with the largest mean, among "
            f"{levels} quantiles of its own"
        )
    return PredictabilityBounds(
        flatness=flatness,
        pooled_nmse=pooled,
        pooled_error=error,
        rates=rates,
        about=about,
    )
