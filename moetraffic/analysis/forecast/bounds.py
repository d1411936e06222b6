r"""Lower bound on the error of linear one-step forecasts, from the spectrum.

No linear forecast from the whole past of a stationary series has a smaller mean squared
error than its innovation variance (Kolmogorov).  :func:`limits` divides it by the error
of the mean of the past on the test part, as the NMSE of a forecaster is: both are of
the same iterations, in the same unit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.ndimage import maximum_filter1d, median_filter
from scipy.special import spence

from moetraffic.analysis.rhythm.stationarity import kpss_statistic
from moetraffic.arrays import Bool, Float64, Int64
from moetraffic.errors import AnalysisError

from .candidates import MEAN_OF_PAST, SeriesBlock
from .origins import gain, split

NAN = float("nan")

SHORTEST = 32
"""Minimum number of steps of a spectrum."""

AROUND = 12
"""Frequencies on either side whose median is the level that a line must exceed."""

LINE = 1e-3
"""Probability that any ordinate of a smooth spectrum is taken for a line."""

STATIONARY = 0.463
"""KPSS statistic of a stationary series that is exceeded with a probability of 5%."""


@dataclass(frozen=True, kw_only=True)
class Innovations:
    """Innovation variance of each series; arrays ``[C]``, NaN where too short."""

    variance: Float64  # of the errors of the best linear one-step forecast, unit^2
    error: Float64  # standard error of its logarithm
    steps: Int64  # that were used: the longest stretch without a gap


@dataclass(frozen=True, kw_only=True)
class PredictabilityBounds:
    """Lower bound on the NMSE of linear forecasts one step ahead, on the test part.

    The interval covers the error of the spectrum and the sampling error of an NMSE on a
    test part of this length: it is for comparison with the NMSE of forecasters.  What a
    forecaster reached on the test part is an upper limit of the bound and its interval.
    """

    nmse: float = NAN  # innovation variance / MSE of the mean of the past
    low: float = NAN  # 95% interval
    high: float = NAN
    mse: float = NAN  # the bound in the unit of the series (times weights) squared
    kpss: float = NAN  # mean of the series, weighted with their variance
    steps: int = 0  # iterations of the spectrum
    reason: str = ""  # why it is unavailable


def innovation_variance(series: npt.ArrayLike) -> Innovations:
    r"""Estimate the variance of the errors of the best linear one-step forecast.

    :math:`\ln \sigma^2 = \frac{1}{2\pi} \int \ln f`, with f a periodogram with a Hann
    taper, which keeps periodic parts and slow changes at their frequencies.  Its
    logarithm is too small by Euler's constant, which is added.  Ordinates are not
    averaged over frequencies first: a line would raise its neighbors.  Lines (periodic
    parts) are known exactly and are no innovation: where an ordinate exceeds the median
    of its neighborhood by more than a smooth spectrum's would, it and two on either
    side are replaced by that level.  Frequencies 0 and 1, which went with the mean, are
    put back at the level of the next.

    ``series``: ``[T, C]``, time first, evenly spaced; of a series with NaN the longest
    stretch without one is used.

    Returns
    -------
    Innovations
        NaN below :data:`SHORTEST` steps; 0 where a series does not vary.

    References
    ----------
    A. N. Kolmogorov, Bull. Acad. Sci. URSS Math. 5 (1941) 3; H. T. Davis and R. H.
    Jones, J. Am. Stat. Assoc. 63 (1968) 141.

    Examples
    --------
    >>> noise = np.random.default_rng(0).normal(size=(4000, 1))
    >>> innovation_variance(3 * noise).variance.round().tolist()
    [9.0]
    """
    x = np.asarray(series, np.float64)
    found: Float64 = np.full((2, x.shape[1]), np.nan)
    runs = np.array([longest_run(column) for column in np.isfinite(x).T], np.int64)
    runs = runs.reshape(-1, 2)
    for first, last in np.unique(runs, axis=0).tolist():
        if last - first >= SHORTEST:
            same = (runs == (first, last)).all(axis=1)
            found[:, same] = _innovations(x[first:last, same])
    return Innovations(variance=found[0], error=found[1], steps=runs[:, 1] - runs[:, 0])


def longest_run(known: Bool) -> tuple[int, int]:
    """Find the first longest run of True: its begin, and the index after its end."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], known, [False]))))
    begin, end = edges[::2], edges[1::2]
    if not len(begin):
        return 0, 0
    longest = int(np.argmax(end - begin))
    return int(begin[longest]), int(end[longest])


def _innovations(x: Float64) -> Float64:
    """Compute the innovation variance and the error of its logarithm, ``[2, M]``."""
    n = len(x)
    # Step 1: the periodogram with a Hann taper, without frequencies 0, 1 and n/2.
    taper = np.sin(np.pi * (np.arange(n) + 0.5) / n) ** 2
    centered = x - taper @ x / taper.sum()
    variance = (centered**2).mean(axis=0)
    varies = variance > 1e-24 * (x**2).mean(axis=0)  # less is rounding
    scaled = centered / np.sqrt(np.where(varies, variance, 1.0))
    tapered = scaled * (taper / np.sqrt((taper**2).sum()))[:, None]
    power = np.abs(np.fft.rfft(tapered, axis=0)[2 : (n - 1) // 2 + 1]) ** 2
    m = len(power)
    # rounding is the least that a periodic series leaves
    logs = np.log(np.maximum(power, 1e-30))
    # Step 2: lines, which are replaced by the level around them; the mean of the
    # logarithm of an ordinate is below its level by Euler's constant, and its median
    # by -ln ln 2.
    level = median_filter(logs, size=(2 * AROUND + 1, 1), mode="nearest")
    highest = np.log(-np.log(LINE / m)) - np.log(np.log(2)) + 0.5
    line = logs > level + highest
    # a unit root or a trend rises towards frequency 0, and is no line
    line[: AROUND // 2] = False
    line = maximum_filter1d(line.view(np.uint8), 5, axis=0, mode="constant") > 0
    logs = np.where(line, level - np.log(np.log(2)) - np.euler_gamma, logs)
    # Step 3: the mean over all frequencies, 0 and 1 at the level of the next three.
    mean = (logs.sum(axis=0) + 1.5 * logs[:3].mean(axis=0)) / (m + 1.5)
    # neighbors are correlated by the taper with 2/3 and 1/6 (spence(1 - z) is Li2(z))
    apart = np.pi**2 / 6 + 2 * (spence(1 - 4 / 9) + spence(1 - 1 / 36))
    doubt = apart / m
    found = np.exp(mean + np.euler_gamma - doubt / 2) * variance
    found = np.where(varies, found, 0.0)
    return np.stack((found, np.full(len(found), np.sqrt(doubt))))


def kpss(series: Float64) -> Float64:
    r"""Compute the KPSS statistic of each series around its mean.

    As :func:`.kpss_statistic`, with :math:`l = 12 (T/100)^{1/4}` lags.

    ``series``: ``[T, C]`` without NaN.

    Returns
    -------
    float64 array ``[C]``
        0 where a series does not vary.

    References
    ----------
    D. Kwiatkowski, P. C. B. Phillips, P. Schmidt, Y. Shin, J. Econometrics 54 (1992)
    159.

    Examples
    --------
    >>> kpss(np.repeat([[0.0], [1.0]], 50, axis=0)).round(1).tolist()
    [0.7]
    """
    n = len(series)
    apart = series - series.mean(axis=0)
    varies = (apart**2).mean(axis=0) > 1e-24 * (series**2).mean(axis=0)
    lags = min(int(12 * (n / 100) ** 0.25), n - 1)
    return kpss_statistic(np.where(varies, apart, 0.0), lags)


def limits(
    series: npt.ArrayLike,
    *,
    weights: npt.ArrayLike = 1.0,
    reached: float = float("inf"),
) -> PredictabilityBounds:
    """Compute the lower bound on the NMSE of linear forecasts one step ahead.

    The spectrum is that of the second half of the run (validation and test part), in
    which forecasts are tuned and evaluated.  The bound is unavailable where this half
    is not stationary: the mean KPSS statistic of the series, weighted with their
    variance, is above :data:`STATIONARY`, as of a level change or a unit root.

    The errors of the best linear forecast on the test part are a part of those of any
    forecaster, as what a forecast misses of it is independent of the innovations.  So
    the bound and its interval end at the NMSE that was reached; if the interval begins
    above it, a premise fails, and the bound is unavailable.

    Parameters
    ----------
    series
        ``[T, C]``: loads of experts, cells of a matrix, or shares of these.
    weights
        Bytes that one unit of the series stands for, one number or ``[C]``.
    reached
        Lowest NMSE of the forecasters one step ahead on the test part.

    Raises
    ------
    AnalysisError
        If the series are not ``[T, C]``.

    Examples
    --------
    >>> noise = np.random.default_rng(0).normal(size=(2000, 4))
    >>> found = limits(noise)
    >>> found.low < 1 < found.high
    True
    """
    x = np.asarray(series, np.float64)
    if x.ndim != 2:
        raise AnalysisError(
            f"limits are of series [T, C], but the array has shape {x.shape}: give a "
            f"row a step and a column a series"
        )
    cut = split(len(x))
    late = x[cut.train_end :]
    if not x.shape[1]:
        return PredictabilityBounds(reason="there are no cells")
    if len(late) < SHORTEST:
        return PredictabilityBounds(
            steps=len(late),
            reason=f"run too short (needs {2 * SHORTEST} iterations, has {len(x)})",
        )
    found = innovation_variance(late)
    usable = np.isfinite(found.variance)
    if not usable.any():
        return PredictabilityBounds(
            reason=f"no {SHORTEST} iterations of the second half are without a gap"
        )
    steps = int(found.steps[usable].min())
    # Step 1: the error of the mean of the past on the test part, as of a forecaster.
    origins = cut.test(1)
    block = SeriesBlock(x[:, usable], cut)
    missed = block.forecast(MEAN_OF_PAST, origins, 1) - block.series[:, origins + 1]
    square = np.square(np.broadcast_to(np.asarray(weights, np.float64), len(usable)))
    scale = square[usable]
    # a gap has no error, as in the scores of forecasters
    known = np.isfinite(missed)
    each = np.maximum(known.sum(axis=1), 1)
    reference = float((np.where(known, missed, 0.0) ** 2).sum(axis=1) / each @ scale)
    if not reference > 0:
        return PredictabilityBounds(
            steps=steps, reason="the test part equals the mean of the past"
        )
    # Step 2: premises.
    filled = block.held[:, cut.train_end :].T
    filled = np.where(np.isfinite(filled), filled, 0.0)
    amount = filled.var(axis=0) * scale
    unsteady = float(kpss(filled) @ amount / amount.sum()) if amount.any() else 0.0
    if unsteady > STATIONARY:
        return PredictabilityBounds(
            kpss=unsteady,
            steps=steps,
            reason=f"the second half of the run is not stationary (KPSS "
            f"{unsteady:.2g}, limit {STATIONARY})",
        )
    # Step 3: the bound, and the error of its logarithm.  Spectra and squared errors of
    # two series are correlated by the square of the series' correlation.
    part = found.variance[usable] * scale
    bound = float(part.sum())
    spread = filled.std(axis=0)
    alike = (filled - filled.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    alike = alike * np.sqrt(part / max(bound, 1e-300) / len(alike))
    gram = alike.T @ alike if alike.shape[1] <= len(alike) else alike @ alike.T
    shared = float((gram**2).sum())
    # Of a test part this long, a sum of squares varies as of a normal distribution, or
    # as changes from step to step do where these are rare and large.
    moved = (np.diff(filled, axis=0) ** 2) @ scale
    varied = gain(moved, np.full(len(moved), moved.mean()))
    jumps = varied.error**2 * len(moved) / len(origins)
    sampled = float(np.nanmax([2 * shared / len(origins), jumps]))
    doubt = shared * float(found.error[usable].max()) ** 2 + sampled
    reach = float(np.exp(1.96 * np.sqrt(doubt)))
    # Step 4: what was reached is no lower than the bound.
    estimate = bound / reference
    if estimate / reach > reached:
        return PredictabilityBounds(
            kpss=unsteady,
            steps=steps,
            reason=f"a forecaster reached an NMSE of {reached:.2g}, below the interval "
            f"of the estimate ({estimate / reach:.2g} to {estimate * reach:.2g})",
        )
    nmse = min(estimate, reached)
    return PredictabilityBounds(
        nmse=nmse,
        low=estimate / reach,
        high=min(estimate * reach, reached),
        mse=nmse * reference / int(usable.sum()),
        kpss=unsteady,
        steps=steps,
    )
