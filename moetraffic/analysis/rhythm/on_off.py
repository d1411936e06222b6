"""On-off statistics of a sequence of traffic bursts: duty cycle, period, jitter.

Training alternates between computation and communication, so its traffic is a sequence
of bursts that recurs in each iteration.  Duty cycle, bursts and gaps are computed from
the intervals (:mod:`moetraffic.analysis.times.intervals`).  The period is that of the
claim "periodic" (:mod:`moetraffic.analysis.rhythm.burst_claims`), unavailable where it
is not stated; the similarity of cycles is computed by splitting the bursts at cycle
starts
(:mod:`moetraffic.analysis.rhythm.cycles`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.claim import Claim
from moetraffic.analysis.times.intervals import (
    Span,
    mean_and_cv,
    merge_intervals,
    observed_span,
)
from moetraffic.arrays import Float64, Int64

from .bins import on_off_series, time_on_until
from .burst_claims import claim_of_bursts, claim_of_steps, shares_on
from .cycles import cycles as cut_to_cycles
from .periodicity import autocorrelation
from .stationarity import Stationarity, stationarity
from .step_time import StepTime, extent, step_spans, step_time

MOST_BINS = 1 << 20

_NAN = float("nan")

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

BINS_A_DECADE = 10


@dataclass(frozen=True, kw_only=True)
class Durations:
    """Distribution of durations: mean, quantiles and histogram; NaN if empty."""

    number: int
    mean_ns: float
    cv: float  # population standard deviation over mean
    quantiles_ns: Float64  # [5], of QUANTILES, linear between the lengths
    edges_ns: Float64  # [B + 1] of the histogram, BINS_A_DECADE a power of ten
    counts: Int64  # [B] lengths from an edge to below the next; of 0 ns in none


def durations(lengths: npt.ArrayLike) -> Durations:
    """Compute mean, quantiles and histogram of durations.

    The histogram's edges are powers of ten to the tenths, whatever the lengths, so that
    the histograms of two runs can be laid over each other.

    ``lengths``: ``[n]`` ns, not negative.

    Examples
    --------
    >>> found = durations([1000, 1000, 3000])
    >>> found.number, found.quantiles_ns.tolist(), found.counts.tolist()
    (3, [1000.0, 1000.0, 1000.0, 2000.0, 2800.0], [2, 0, 0, 0, 1])
    """
    values = np.asarray(lengths, np.float64)
    mean, cv = mean_and_cv(values)
    positive = values[values > 0]
    edges, counts = np.zeros(0), np.zeros(0, np.int64)
    if positive.size:
        # a length on an edge belongs above it, though its logarithm is rounded
        place = np.floor(np.log10(positive) * BINS_A_DECADE + 1e-9).astype(np.int64)
        low = int(place.min())
        counts = np.bincount(place - low).astype(np.int64)
        edges = 10.0 ** (np.arange(low, low + len(counts) + 1) / BINS_A_DECADE)
    return Durations(
        number=values.size,
        mean_ns=mean,
        cv=cv,
        quantiles_ns=np.quantile(values, QUANTILES)
        if values.size
        else np.full(len(QUANTILES), np.nan),
        edges_ns=edges,
        counts=counts,
    )


@dataclass(frozen=True, kw_only=True)
class Rhythm:
    """On-off statistics of one traffic source; NaN where unavailable.

    The pace is the period; where the claim "periodic" is not stated, the mean length of
    the steps between marks, so that the autocorrelation at it is known then too.
    """

    duty: float  # share of the time that is on
    bursts: int  # number of bursts
    burst_ns: float  # mean length of a burst
    burst_cv: float  # standard deviation over mean
    gap_ns: float  # mean length of a gap
    gap_cv: float
    period_ns: float  # of the claim "periodic"; NaN where it is not stated
    peak_to_mean: float  # of the on-off series in bins
    jitter: float  # standard deviation over mean of all step or cycle times
    bin_ns: float  # width of the bins that the peak was taken from
    burst_lengths: Durations | None = None  # quantiles and histogram
    gap_lengths: Durations | None = None
    acf: float = _NAN  # autocorrelation of the on-off series as it is, at the pace
    cycle_ns: float = _NAN  # mean length of a cycle, by marks or by bursts
    cycles: int = 0  # of usual length; others are left out of all but the jitter
    likeness: float = _NAN  # correlation of a cycle's shape with the next, stretched
    cycle_bursts: int = 0  # bursts that most cycles have
    regular: float = _NAN  # share of the cycles that have so many
    position: tuple[float, ...] = ()  # mean start of each of these, shares of a cycle
    position_jitter: tuple[float, ...] = ()  # standard deviation, likewise
    length_stationarity: Stationarity | None = None  # of the cycles' lengths
    observed_ns: float = _NAN  # time that all of this was seen in
    marked: bool = False  # steps are a rank's marks, not cycles of the bursts
    step_time: StepTime | None = None  # of all steps, or of the cycles of a period
    claims: tuple[Claim, ...] = ()  # "periodic"


def rhythm(
    start: npt.ArrayLike,
    end: npt.ArrayLike,
    *,
    span: Span | None = None,
    observed: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    marks: npt.ArrayLike | None = None,
    bin_ns: float | None = None,
    about: str = "the bursts",
) -> Rhythm:
    """Compute on-off statistics of events.

    Parameters
    ----------
    start, end
        ``[n]`` integers, ns, in any order, overlapping or not.
    span
        (from, to) in ns; None: see :func:`observed_span`.
    observed
        Starts and ends, ns, of the times in which events would have been seen.  What
        lies between is neither on nor off: it counts in no duty and no gap.  None: all
        of the span.
    marks
        ``[m]`` ns, where steps begin; None: cycles are found among the bursts.
    bin_ns
        Width of the bins of the on-off series.  None: a quarter of the median burst or
        gap, whichever is shorter, but at most 2**20 bins.
    about
        Source of the bursts, for the claims.

    Raises
    ------
    AnalysisError
        As :func:`merge_intervals` does.

    Examples
    --------
    >>> import numpy as np
    >>> start = np.arange(40) * 1000
    >>> found = rhythm(start, start + 250)
    >>> found.duty, found.period_ns, found.jitter
    (0.25, 1000.0, 0.0)
    >>> found.cycles, found.burst_lengths.number
    (39, 40)
    """
    first, last = merge_intervals(start, end)
    reach = span or observed_span(first, last)
    parts = _seen(observed, reach)
    bursts, gaps = last - first, first[1:] - last[:-1]
    if observed is not None and reach is not None:
        within = time_on_until(first[1:] - reach[0], *parts, origin=reach[0])
        within -= time_on_until(last[:-1] - reach[0], *parts, origin=reach[0])
        gaps = gaps[within >= gaps - 0.5]
    duration = reach[1] - reach[0] if reach else 0
    width = bin_ns
    if width is None:
        medians = [float(np.median(runs)) for runs in (bursts, gaps) if runs.size]
        width = max(min(medians, default=4.0) / 4, duration / MOST_BINS, 1.0)
    series = on_off_series(first, last, bin_ns=width, span=reach)
    # Bins of which a part was not seen are not known.
    hidden = on_off_series(*parts, bin_ns=width, span=reach) < 1 - 1e-9
    series[hidden] = np.nan
    if marks is None:
        lengths = np.diff(first).astype(np.float64)
        claim = claim_of_bursts(first, about=about)
    else:
        active = extent(first, last)
        begin, finish, left = step_spans(marks, within=active, observed=observed)
        lengths = (finish - begin).astype(np.float64)
        on = shares_on(first, last, begin, finish)
        claim = claim_of_steps(on, lengths, left_out=left, about=about)
    step_ns = float(np.median(lengths)) if len(lengths) else _NAN
    period_ns = step_ns if claim.stated else _NAN
    # lengths of cycles that do not repeat are those of arbitrary bursts
    known = marks is not None or period_ns > 0
    cycle_times = step_time(lengths if known else ())
    cut = cut_to_cycles(first, last, period_ns=period_ns, marks=marks)
    cycle_ns = float(cut.length_ns.mean()) if cut.length_ns.size else _NAN
    pace_ns = cycle_ns if math.isnan(period_ns) else period_ns
    burst_ns, burst_cv = mean_and_cv(bursts)
    gap_ns, gap_cv = mean_and_cv(gaps)
    seen_ns = float((parts[1] - parts[0]).sum()) if reach else _NAN
    return Rhythm(
        duty=_on_within(first, last, parts) / seen_ns if seen_ns > 0 else _NAN,
        bursts=len(bursts),
        burst_ns=burst_ns,
        burst_cv=burst_cv,
        gap_ns=gap_ns,
        gap_cv=gap_cv,
        period_ns=period_ns,
        peak_to_mean=_peak_to_mean(series[~hidden]),
        jitter=cycle_times.cv,
        bin_ns=width,
        burst_lengths=durations(bursts),
        gap_lengths=durations(gaps),
        acf=_acf_at(series, pace_ns / width),
        cycle_ns=cycle_ns,
        cycles=len(cut.length_ns),
        likeness=cut.likeness,
        cycle_bursts=cut.bursts,
        regular=cut.regular,
        position=tuple(cut.position.tolist()),
        position_jitter=tuple(cut.position_jitter.tolist()),
        length_stationarity=stationarity(cut.length_ns),
        observed_ns=seen_ns,
        marked=marks is not None,
        step_time=cycle_times if cycle_times.steps else None,
        claims=(claim,),
    )


def _seen(
    observed: tuple[npt.ArrayLike, npt.ArrayLike] | None, reach: Span | None
) -> tuple[Int64, Int64]:
    """Compute the disjoint observed parts of the span, starts and ends."""
    if reach is None or reach[1] <= reach[0]:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    if observed is None:
        return np.array([reach[0]]), np.array([reach[1]])
    begin, finish = merge_intervals(*observed)
    begin, finish = np.clip(begin, *reach), np.clip(finish, *reach)
    return begin[finish > begin], finish[finish > begin]


def _on_within(first: Int64, last: Int64, parts: tuple[Int64, Int64]) -> float:
    """Compute the time within the parts during which a burst was on, ns."""
    if not len(parts[0]):
        return 0.0
    origin = int(parts[0][0])
    on = [time_on_until(at - origin, first, last, origin=origin) for at in parts]
    return float((on[1] - on[0]).sum())


def _peak_to_mean(series: Float64) -> float:
    """Compute the largest value over the mean; NaN where nothing is ever on."""
    return float(series.max() / series.mean()) if series.any() else _NAN


def _acf_at(series: Float64, lag: float) -> float:
    """Compute the autocorrelation at a lag, linear between integer lags."""
    below = int(lag) if lag == lag else -1
    if not 0 <= below <= len(series) - 3:
        return _NAN
    pair = autocorrelation(series, below + 1)[below:]
    aside = lag - below
    return float(pair[0] if not aside else pair[0] + aside * (pair[1] - pair[0]))
