"""Rhythm: the on-off pattern of traffic in one description.

Training alternates between computing and communicating, so that its traffic is a
sequence of bursts that comes again with each iteration.  How the time divides is told
by the intervals themselves (:mod:`moetraffic.analysis.intervals`), what recurs by the
autocorrelation of a series in time bins (:mod:`moetraffic.analysis.periodicity`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .bins import on_off_series
from .intervals import (
    Span,
    burst_lengths,
    duty_cycle,
    gap_lengths,
    mean_and_cv,
    merge_intervals,
    observed_span,
)
from .periodicity import fundamental_share, period, period_jitter

Float64 = npt.NDArray[np.float64]

MOST_BINS = 1 << 20


def peak_to_mean(series: npt.ArrayLike) -> Float64:
    """Largest value of a series over its mean.

    Parameters
    ----------
    series
        ``[T, ...]``, time first, not negative.

    Returns
    -------
    float64 array ``[...]``
        1 or more; NaN where nothing is ever on, or there is no step.

    Examples
    --------
    >>> float(peak_to_mean([1, 0, 0, 1]))
    2.0
    """
    x = np.asarray(series, dtype=np.float64)
    result: Float64 = np.full(x.shape[1:], np.nan)
    if len(x):
        mean = x.mean(axis=0)
        np.divide(x.max(axis=0), mean, out=result, where=mean > 0)
    return result[()]


@dataclass(frozen=True, kw_only=True)
class Rhythm:
    """The on-off pattern of one source of traffic; NaN where it cannot be told."""

    duty: float  # share of the time that is on
    bursts: int  # number of bursts
    burst_ns: float  # mean length of a burst
    burst_cv: float  # standard deviation over mean
    gap_ns: float  # mean length of a gap
    gap_cv: float
    period_ns: float  # of the autocorrelation
    strength: float  # autocorrelation at the period, bursts four bins wide or more
    fundamental_share: float  # of AC power, at 1/period, in windows of some cycles
    peak_to_mean: float  # of the on-off series in bins
    jitter: float  # standard deviation of the cycle time over the period
    bin_ns: float  # width of the bins that period and peak were taken from


def rhythm(
    start: npt.ArrayLike,
    end: npt.ArrayLike,
    *,
    span: Span | None = None,
    bin_ns: float | None = None,
    bridge_ns: int = 0,
    period_range_ns: tuple[float, float] = (0.0, float("inf")),
    cycles: int | None = 8,
) -> Rhythm:
    """Describe the on-off pattern of events.

    Parameters
    ----------
    start, end
        ``[n]`` integers, ns, in any order, overlapping or not.
    span
        (from, to) in ns; None: see :func:`observed_span`.
    bin_ns
        Width of the bins of the on-off series.  None: a quarter of the median burst or
        gap, whichever is shorter, but at most 2**20 bins.
    bridge_ns
        Gaps of at most this length do not part two bursts.
    period_range_ns
        Shortest and longest period looked for; whatever it is, a period must be seen
        twice.
    cycles
        As in :func:`fundamental_share`.

    Returns
    -------
    Rhythm

    Raises
    ------
    AnalysisError
        As :func:`merge_intervals` does.

    Examples
    --------
    >>> import numpy as np
    >>> start = np.arange(20) * 1000
    >>> found = rhythm(start, start + 250)
    >>> found.duty, found.period_ns, round(found.fundamental_share, 6), found.jitter
    (0.25, 1000.0, 0.54038, 0.0)
    """
    first, last = merge_intervals(start, end, bridge_ns=bridge_ns)
    bursts, gaps = burst_lengths(first, last), gap_lengths(first, last)
    reach = span or observed_span(first, last)
    extent = reach[1] - reach[0] if reach else 0
    width = bin_ns
    if width is None:
        medians = [float(np.median(runs)) for runs in (bursts, gaps) if runs.size]
        width = max(min(medians, default=4.0) / 4, extent / MOST_BINS, 1.0)
    series = on_off_series(first, last, bin_ns=width, span=span)
    # For the period alone, bursts narrower than four bins are widened, though not by
    # more than half a gap: else where they fall in a bin would hide what recurs.
    lacking = 4 * width - float(np.median(bursts)) if bursts.size else 0.0
    room = float(np.median(gaps)) / 2 if gaps.size else 0.0
    pad = int(max(0.0, min(lacking, room)) / 2)
    widened = on_off_series(first - pad, last + pad, bin_ns=width, span=reach)
    shortest, longest = (limit / width for limit in period_range_ns)
    found = period(
        widened,
        min_lag=max(2, math.ceil(min(shortest, len(series)))),
        max_lag=int(min(longest, len(series) // 2)),
    )
    period_ns = found.length * width
    burst_ns, burst_cv = mean_and_cv(bursts)
    gap_ns, gap_cv = mean_and_cv(gaps)
    return Rhythm(
        duty=duty_cycle(first, last, span=span),
        bursts=len(bursts),
        burst_ns=burst_ns,
        burst_cv=burst_cv,
        gap_ns=gap_ns,
        gap_cv=gap_cv,
        period_ns=period_ns,
        strength=found.strength,
        fundamental_share=fundamental_share(
            first, last, period_ns=period_ns, cycles=cycles, span=span
        ),
        peak_to_mean=float(peak_to_mean(series)),
        jitter=period_jitter(first, last, period_ns=period_ns) / period_ns,
        bin_ns=width,
    )
