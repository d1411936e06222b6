"""Typical iteration: on-off pattern and rate of the iteration nearest to the mean.

The rank with the most bytes sent is analyzed.  Its on-off statistics give the period;
the iteration closest to the mean of all is the typical one, so that bursts keep their
edges, which a mean over iterations would blur.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moetraffic.analysis.times.call_times import on_the_wire, step_starts
from moetraffic.analysis.times.intervals import merge_intervals
from moetraffic.arrays import Float64, Int64
from moetraffic.errors import AnalysisError
from moetraffic.trace import Trace

from .bins import amount_until, time_on_until
from .on_off import Rhythm
from .source_statistics import rank_rhythm
from .sources import link_bytes, rank_events

BINS = 360
"""Number of time bins per iteration."""


@dataclass(frozen=True, kw_only=True)
class TypicalIteration:
    """On-off pattern and rate of the typical iteration of the most active rank."""

    rank: int
    rhythm: Rhythm  # of its all-to-alls
    period_ns: float
    on: Float64  # [BINS] share of the bin in which an all-to-all was on
    bytes_s: Float64  # [BINS] rate at which the rank sent to others in it
    iterations: int  # from which it was chosen
    about: str  # which all-to-alls these are


def find_typical_iteration(
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
    link_bytes_s
        None: bursts last as long as they did.  Else as long as the rank's bytes take
        at this rate, the gaps between them staying as they were.

    Raises
    ------
    AnalysisError
        If the trace has no all-to-all with known times, or no period is found.
    """
    found, about = on_the_wire(trace, trace.layers, iterations)
    rank = int(link_bytes(trace, found).sum(axis=1).argmax())
    first, last, size = rank_events(trace, found, rank)
    if not len(first):
        raise AnalysisError(
            "a typical iteration needs all-to-alls whose times are known, but "
            f"{trace.name} has none: capture it from ranks that communicate"
        )
    marks = step_starts(trace, rank, iterations)
    if link_bytes_s is not None:
        amount = _of_bursts(merge_intervals(first, last)[0], first, size)
        first, last, marks = rescaled(first, last, size, marks, bytes_s=link_bytes_s)
        size = amount
        told = rank_rhythm(trace, rank, first, last, marks=marks)
    else:
        told = rank_rhythm(trace, rank, first, last, iterations=iterations)
    # steps have a length even where their bursts come at other places each time
    steps = told.step_time
    period = told.period_ns if steps is None else steps.p50_ns
    if not np.isfinite(period):
        why = " ".join(c.sentence for c in told.claims if c.name == "periodic")
        raise AnalysisError(
            "a typical iteration needs steps or a period, but the all-to-alls of rank "
            f"{rank} in {trace.name} have none: give a trace that records where steps "
            f"begin. {why}"
        )
    if len(marks) < 3:  # steps are not known: cut at whole periods
        number = int((last.max() - first.min()) / period)
        marks = first.min() + np.rint(np.arange(number + 1) * period).astype(np.int64)
    origin = int(marks[0])  # float64 would lose 100 ns of times since 1970
    edges = _edges(marks - origin, period)
    width = np.diff(edges, axis=1)
    on = np.diff(time_on_until(edges, first, last, origin=origin), axis=1) / width
    # an event's bytes pass evenly while it is on
    sent = np.diff(amount_until(edges, first, last, size, origin=origin), axis=1)
    typical = int(np.abs(on - on.mean(axis=0)).sum(axis=1).argmin())
    return TypicalIteration(
        rank=rank,
        rhythm=told,
        period_ns=period,
        on=np.clip(on[typical], 0.0, 1.0),
        bytes_s=np.maximum(sent[typical], 0.0) / width[typical] * 1e9,
        iterations=len(edges),
        about=about,
    )


def rescaled(
    first: Int64, last: Int64, size: Int64, marks: Int64, *, bytes_s: float
) -> tuple[Int64, Int64, Int64]:
    """Rescale bursts to the duration of their bytes at a given rate, keeping gaps.

    Parameters
    ----------
    first, last, size
        ``[n]`` int64: start and end in ns, and bytes, of events.
    marks
        ``[m]`` int64 ns, other times of the same clock.
    bytes_s
        The rate at which bytes pass.

    Returns
    -------
    first, last, marks
        int64 ns: events, a row each burst, and marks, on the new time; gaps are kept.

    Examples
    --------
    >>> at = [np.array(x) for x in ([0, 40], [10, 60], [200, 100], [0, 40, 80])]
    >>> [a.tolist() for a in rescaled(*at, bytes_s=10e9)]
    [[0, 50], [20, 60], [0, 50, 80]]
    """
    begin, end = merge_intervals(first, last)
    amount = _of_bursts(begin, first, size)
    length = np.maximum(1, np.rint(amount / bytes_s * 1e9)).astype(np.int64)
    gaps = np.concatenate((begin[1:] - end[:-1], [0]))
    begun = begin[0] + np.concatenate(([0], np.cumsum(length + gaps)[:-1]))
    old = np.stack((begin, end), axis=1).ravel()
    new = np.stack((begun, begun + length), axis=1).ravel()
    # before the first burst and after the last, time passes as it did
    moved = np.interp(marks, old, new)
    moved += np.minimum(marks - old[0], 0) + np.maximum(marks - old[-1], 0)
    return begun, begun + length, np.rint(moved).astype(np.int64)


def _of_bursts(begin: Int64, first: Int64, size: Int64) -> Int64:
    """Sum the bytes of the events of each burst, ``[m]`` int64."""
    # an event of no length may stand in a gap: it goes with the burst before
    burst = np.clip(np.searchsorted(begin, first, side="right") - 1, 0, None)
    amount = np.zeros(len(begin), np.int64)
    np.add.at(amount, burst, size)
    return amount


def _edges(marks: Int64, period: float) -> Float64:
    """Compute the bin edges of each iteration, ``[n, BINS + 1]`` ns.

    Iterations much longer or shorter than the period are left out, if any is not: a
    pause, or an evaluation between two steps.
    """
    lengths = np.diff(marks)
    usual = (lengths > 0.5 * period) & (lengths < 2 * period)
    usual = usual if usual.any() else lengths > 0
    at = np.arange(BINS + 1) / BINS
    edges: Float64 = marks[:-1][usual, None] + lengths[usual, None] * at
    return edges
