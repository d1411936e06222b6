"""Typical iteration: on-off pattern and rate of the iteration nearest to the mean.

It is of the rank that sends the most bytes.  One iteration keeps the edges of its
bursts, which a mean over iterations would blur.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moetraffic.analysis.claims import Claim, regular
from moetraffic.analysis.rhythm import BINS_A_STEP, burst_row, profiles, step_spans
from moetraffic.analysis.sources import link_bytes, read_sources, time_on
from moetraffic.analysis.times.calls import (
    merge_intervals,
    observed_steps,
    on_the_wire,
    step_ns,
    step_starts,
)
from moetraffic.arrays import Float64, Int64
from moetraffic.errors import AnalysisError
from moetraffic.trace import Trace

BINS = 360
"""Number of time bins of an iteration."""

USUAL = (0.5, 2.0)
"""Range of usual lengths of iterations in periods."""


@dataclass(frozen=True, kw_only=True)
class TypicalIteration:
    """On-off pattern and rate of the typical iteration of the most active rank."""

    rank: int
    period_ns: float  # median step time; without steps, the period of the bursts
    on: Float64  # [BINS] share of the bin in which an all-to-all was on
    bytes_s: Float64  # [BINS] rate at which the rank sent to others in it
    iterations: int  # from which it was chosen
    about: str  # which all-to-alls these are
    acf: float  # autocorrelation of the on-off series at the period
    jitter: float  # CV of the step times
    regular: Claim  # whether a step's profile is like the next step's


def typical_iteration(
    trace: Trace,
    *,
    iterations: range | None = None,
    link_bytes_s: float | None = None,
) -> TypicalIteration:
    """Find the typical iteration of a run: the one nearest to their mean.

    Parameters
    ----------
    trace
        With times.
    iterations
        Training iterations; all if None.
    link_bytes_s
        None: bursts last as long as they did.  Else as long as the rank's bytes take
        at this rate, with the same gaps.

    Raises
    ------
    AnalysisError
        If the trace has no all-to-all with known times, or no period is found.
    """
    calls, about = on_the_wire(trace, trace.layers, iterations)
    rank = int(link_bytes(trace, calls).sum(axis=1).argmax())
    sources = read_sources(trace, calls, [("rank", f"rank {rank}", (rank,))])
    if not sources:
        raise AnalysisError(
            "a typical iteration needs all-to-alls whose times are known, but "
            f"{trace.name} has none: capture it from ranks that communicate"
        )
    first, last, size = sources[0].begin, sources[0].end, sources[0].sent
    assert size is not None
    marks = step_starts(trace, rank, iterations)
    observed, length = observed_steps(trace, rank, iterations), step_ns(trace, rank)
    if link_bytes_s is not None:
        first, last, size, marks = rescaled(first, last, size, marks, link_bytes_s)
        observed = None
        length = float(np.median(np.diff(marks))) if len(marks) > 2 else float("nan")
    bursts = merge_intervals(first, last)
    marks = marks if len(marks) > 2 else marks[:0]
    row = burst_row(
        *bursts, marks=marks, observed=observed, bin_ns=length / BINS_A_STEP
    )
    spans = step_spans(marks, bursts, observed)
    steps = spans[1] - spans[0]
    period = float(np.median(steps)) if len(steps) else row["period_ns"]
    if not np.isfinite(period):
        raise AnalysisError(
            "a typical iteration needs steps or a period, but the all-to-alls of rank "
            f"{rank} in {trace.name} have none: give a trace that records where steps "
            "begin"
        )
    if not len(marks):  # cut at whole periods
        number = int((last.max() - first.min()) / period)
        marks = first.min() + np.rint(np.arange(number + 1) * period).astype(np.int64)
    origin = int(marks[0])  # float64 would lose 100 ns of times since 1970
    edges = _edges(marks - origin, period)
    widths = np.diff(edges, axis=1)
    on = np.diff(time_on(edges, *bursts, origin=origin), axis=1) / widths
    sent = np.diff(bytes_until(edges, first - origin, last - origin, size), axis=1)
    typical = int(np.abs(on - on.mean(axis=0)).sum(axis=1).argmin())
    return TypicalIteration(
        rank=rank,
        period_ns=period,
        on=np.clip(on[typical], 0.0, 1.0),
        bytes_s=np.maximum(sent[typical], 0.0) / widths[typical] * 1e9,
        iterations=len(edges),
        about=about,
        acf=row["acf"],
        jitter=row["jitter"],
        regular=regular(profiles(bursts, *spans)),
    )


def rescaled(
    first: Int64, last: Int64, size: Int64, marks: Int64, bytes_s: float
) -> tuple[Int64, Int64, Int64, Int64]:
    """Rescale bursts to the duration of their bytes at a given rate, keeping gaps.

    Parameters
    ----------
    first, last, size
        ``[n]`` int64: begin and end in ns, and bytes, of events.
    marks
        ``[k]`` int64 ns, other times of the same clock.
    bytes_s
        The rate at which bytes are sent.

    Returns
    -------
    first, last, size, marks
        The same of bursts, ``[m]``, and marks on the new time.

    Examples
    --------
    >>> events = [np.array(x) for x in ([0, 40], [10, 60], [200, 100], [0, 40, 80])]
    >>> [a.tolist() for a in rescaled(*events, bytes_s=10e9)]
    [[0, 50], [20, 60], [200, 100], [0, 50, 80]]
    """
    begin, end = merge_intervals(first, last)
    # an event of no length may be in a gap: its bytes are of the burst before
    burst = np.clip(np.searchsorted(begin, first, side="right") - 1, 0, None)
    amount = np.zeros(len(begin), np.int64)
    np.add.at(amount, burst, size)
    length = np.maximum(1, np.rint(amount / bytes_s * 1e9)).astype(np.int64)
    gaps = np.concatenate((begin[1:] - end[:-1], [0]))
    begun = begin[0] + np.concatenate(([0], np.cumsum(length + gaps)[:-1]))
    old = np.stack((begin, end), axis=1).ravel()
    new = np.stack((begun, begun + length), axis=1).ravel()
    # before the first burst and after the last, time passes as it did
    moved = np.interp(marks, old, new)
    moved += np.minimum(marks - old[0], 0) + np.maximum(marks - old[-1], 0)
    return begun, begun + length, amount, np.rint(moved).astype(np.int64)


def bytes_until(at: Float64, first: Int64, last: Int64, size: Int64) -> Float64:
    """Compute the bytes sent before given times, with events at constant rate.

    ``at``: ``[...]`` ns; ``first``, ``last``, ``size``: ``[n]``.  An event of no length
    counts as one of 1 ns.

    Examples
    --------
    >>> events = np.array([0, 2]), np.array([4, 4]), np.array([8, 2])
    >>> bytes_until(np.array([1, 3, 9]), *events).tolist()
    [2.0, 7.0, 10.0]
    """
    # the rate changes at begins and ends; the bytes are its integral
    last = np.maximum(last, first + 1)
    rate = size / (last - first)
    knots, inverse = np.unique(np.concatenate((first, last)), return_inverse=True)
    change = np.bincount(inverse, np.concatenate((rate, -rate)))
    passed = np.concatenate(([0.0], np.cumsum(np.cumsum(change)[:-1] * np.diff(knots))))
    return np.asarray(np.interp(at, knots, passed), np.float64)


def _edges(marks: Int64, period: float) -> Float64:
    """Compute the bin edges of each iteration, ``[n, BINS + 1]`` ns.

    Iterations of unusual length are left out, if any is not: pauses, and evaluations.
    """
    lengths = np.diff(marks)
    usual = (lengths > USUAL[0] * period) & (lengths < USUAL[1] * period)
    usual = usual if usual.any() else lengths > 0
    at = np.arange(BINS + 1) / BINS
    edges: Float64 = marks[:-1][usual, None] + lengths[usual, None] * at
    return edges
