"""Cadence: a run's typical iteration as a network sees it, and how often it comes.

The rank that sends most is looked at.  Its on-off rhythm gives the period; of all
iterations, the one most like the mean of them (the medoid) is the typical one, so that
bursts keep their edges, which a mean over iterations would blur.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.errors import AnalysisError
from moetraffic.trace import UNKNOWN_TIME, Trace
from moetraffic.trace.clock import to_common

from .engine import on_the_wire, rank_rhythm, step_ns
from .intervals import merge_intervals
from .rhythm import Rhythm

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

BINS = 360
"""Of an iteration."""


@dataclass(frozen=True, kw_only=True)
class Cadence:
    """The typical iteration of the rank that sends most."""

    rank: int
    rhythm: Rhythm  # of its all-to-alls
    period_ns: float
    on: Float64  # [BINS] share of the bin in which an all-to-all was on
    bytes_s: Float64  # [BINS] rate at which the rank sent to others in it
    iterations: int  # from which it was chosen
    about: str  # which all-to-alls these are


def cadence(
    trace: Trace,
    *,
    iterations: range | None = None,
    link_bytes_s: float | None = None,
) -> Cadence:
    """Find the typical iteration of a run.

    Parameters
    ----------
    trace
        With times.
    iterations
        Only these; None: all.
    link_bytes_s
        None: bursts last as long as they did.  Else as long as the rank's bytes take
        at this rate, the gaps between them staying as they were.

    Returns
    -------
    Cadence

    Raises
    ------
    AnalysisError
        If the trace has no all-to-all with known times, or no period is found.
    """
    found, about = on_the_wire(trace, trace.layers, iterations)
    rank, first, last, size = _busiest(trace, found)
    marks = _marks(trace, rank, iterations)
    if link_bytes_s is not None:
        first, last, marks = rescaled(first, last, size, marks, bytes_s=link_bytes_s)
    lengths = np.diff(marks)
    lengths = lengths[lengths > 0]
    step = float(np.median(lengths)) if len(lengths) >= 4 else step_ns(trace, rank)
    told = rank_rhythm(first, last, step)
    period = told.period_ns if np.isfinite(told.period_ns) else step
    if not np.isfinite(period):
        raise AnalysisError(
            f"a cadence needs a period, but the all-to-alls of rank {rank} in "
            f"{trace.name} show none: give a longer run"
        )
    if len(marks) < 3:  # steps are not known: cut at whole periods
        number = int((last.max() - first.min()) / period)
        marks = first.min() + np.rint(np.arange(number + 1) * period).astype(np.int64)
    edges = _edges(marks, period)
    begin, end = merge_intervals(first, last)
    knots = np.stack((begin, end), axis=1).ravel()
    passed = np.stack((np.zeros_like(begin), end - begin), axis=1).ravel().cumsum()
    width = np.diff(edges, axis=1)
    on = np.diff(np.interp(edges, knots, passed), axis=1) / width
    order = np.argsort(last, kind="stable")
    # an event's bytes pass evenly while it is on
    sent = np.diff(_passed(edges, first[order], last[order], size[order]), axis=1)
    typical = int(np.abs(on - on.mean(axis=0)).sum(axis=1).argmin())
    return Cadence(
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
    """Events as they would be if every burst lasted as long as its bytes take.

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
    burst = np.clip(np.searchsorted(begin, first, side="right") - 1, 0, None)
    amount = np.bincount(burst, size, minlength=len(begin))
    length = np.maximum(1, np.rint(amount / bytes_s * 1e9)).astype(np.int64)
    gaps = np.concatenate((begin[1:] - end[:-1], [0]))
    begun = begin[0] + np.concatenate(([0], np.cumsum(length + gaps)[:-1]))
    old = np.stack((begin, end), axis=1).ravel()
    new = np.stack((begun, begun + length), axis=1).ravel()
    # before the first burst and after the last, time passes as it did
    moved = np.interp(marks, old, new)
    moved += np.minimum(marks - old[0], 0) + np.maximum(marks - old[-1], 0)
    return begun, begun + length, np.rint(moved).astype(np.int64)


def _busiest(trace: Trace, found: Int64) -> tuple[int, Int64, Int64, Int64]:
    """The rank that sends most to others, and the times and bytes of its events."""
    parts: list[tuple[Int64, Int64, Int64, Int64]] = []
    sizes = np.array([trace.size(int(o)) for o in found], np.int64)
    for width in np.unique(sizes):
        of = found[sizes == width]
        issue, start, end = trace.times(of)
        # a rank sends once the last member has issued: before that, it waits
        begin = np.where(start != UNKNOWN_TIME, start, issue.max(axis=1, keepdims=True))
        known = (issue != UNKNOWN_TIME).all(axis=1, keepdims=True)
        known = known & (end != UNKNOWN_TIME)
        wire = trace.wire(of)
        sent = wire.sum(axis=2) - np.diagonal(wire, axis1=1, axis2=2)
        ranks = trace.members(of)
        parts.append((ranks[known], begin[known], end[known], sent[known]))
    rank, first, last, size = (
        np.concatenate([p[at] for p in parts]) if parts else np.zeros(0, np.int64)
        for at in range(4)
    )
    if not len(rank):
        raise AnalysisError(
            f"a cadence needs all-to-alls whose times are known, but {trace.name} has "
            "none: capture it from ranks that really communicate"
        )
    most = int(np.bincount(rank, size).argmax())
    mine = rank == most
    # another rank's clock may be off by its error: nothing ends before it began
    return most, np.minimum(first, last)[mine], last[mine], size[mine]


def _marks(trace: Trace, rank: int, iterations: range | None) -> Int64:
    """Starts of a rank's training steps on the common clock, in order."""
    steps = trace.steps
    keep = np.array([kind == "train" for kind in steps.kind], bool)
    if iterations is not None:
        keep &= (steps.iteration >= iterations.start) & (
            steps.iteration < iterations.stop
        )
    start = steps.start[keep, rank : rank + 1]
    start = to_common(trace.clocks, np.full(start.shape, rank), start)[:, 0]
    return np.sort(start[start != UNKNOWN_TIME])


def _edges(marks: Int64, period: float) -> Float64:
    """Borders of the bins of each iteration, ``[n, BINS + 1]`` ns.

    Iterations much longer or shorter than the period are left out, if any is not: a
    pause, or an evaluation between two steps.
    """
    lengths = np.diff(marks)
    usual = (lengths > 0.5 * period) & (lengths < 2 * period)
    usual = usual if usual.any() else lengths > 0
    at = np.arange(BINS + 1) / BINS
    edges: Float64 = marks[:-1][usual, None] + lengths[usual, None] * at
    return edges


def _passed(edges: Float64, first: Int64, last: Int64, size: Int64) -> Float64:
    """Bytes that have passed at each time, those of an event evenly over its time."""
    last = np.maximum(last, first + 1)
    rate = size / (last - first)
    knots, inverse = np.unique(np.concatenate((first, last)), return_inverse=True)
    change = np.bincount(inverse, np.concatenate((rate, -rate)))
    passed = np.concatenate(([0.0], np.cumsum(np.cumsum(change)[:-1] * np.diff(knots))))
    return np.interp(edges, knots, passed)
