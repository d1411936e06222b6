"""Begin and end of calls and of training steps, and the time that calls cover.

Times are converted to rank 0's clock.  A rank's part in an all-to-all lasts from its
recorded start, or else from the last member's issue (before that, the rank waits), to
its end on that rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Bool, Int64
from moetraffic.errors import AnalysisError, TraceError
from moetraffic.trace import ALL_TO_ALL, UNKNOWN_TIME, Source, Trace
from moetraffic.trace.clock import to_common

CELLS = 1 << 21
"""Maximum matrix cells in memory at a time."""

# ---- calls ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CallTimes:
    """Times of all-to-alls of groups of one size, one row per call."""

    occurrence: Int64  # [n]
    ranks: Int64  # [n, W] world ranks of the members
    begin: Int64  # [n, W] ns on rank 0's clock, where known
    end: Int64  # [n, W]
    known: Bool  # [n, W] whether begin and end are known
    own: Bool  # [n, W] whether begin is from the rank's own clock
    wire: Int64  # [n, W, W] bytes, row sends; [n, 0, 0] if not requested


def blocks(
    trace: Trace, calls: Int64, *, matrices: bool = False
) -> Iterator[tuple[Int64, Int64, Int64, Int64]]:
    """Read the times of calls ``[n]`` in blocks of bounded size.

    ``matrices``: whether the caller reads a matrix a call too.

    Yields occurrences ``[n]``, all of groups of one size W, and their issue, start and
    end ``[n, W]``, ns on rank 0's clock.
    """
    sizes = trace.width[trace.occurrences.site[calls]]
    for width in np.unique(sizes).tolist():
        alike = calls[sizes == width]
        length = max(1, CELLS // (width * (width if matrices else 1)))
        for low in range(0, len(alike), length):
            block = alike[low : low + length]
            yield block, *trace.times(block)


def timed(trace: Trace, calls: Int64, *, with_wire: bool = True) -> Iterator[CallTimes]:
    """Read when all-to-alls ``[n]`` begin and end, in blocks of one group size.

    Raises
    ------
    TraceError
        If bytes are requested and not known: see :func:`sized`.
    """
    for block, issue, start, end in blocks(trace, calls, matrices=with_wire):
        own = start != UNKNOWN_TIME
        issued = (issue != UNKNOWN_TIME).all(axis=1, keepdims=True)
        begin = np.where(own, start, issue.max(axis=1, keepdims=True))
        yield CallTimes(
            occurrence=block,
            ranks=trace.members(block),
            # clock errors between ranks must not make a call end before it begins
            begin=np.minimum(begin, end),
            end=end,
            known=(own | issued) & (end != UNKNOWN_TIME),
            own=own,
            wire=trace.wire(block)
            if with_wire
            else np.zeros((len(block), 0, 0), np.int64),
        )


def sized(trace: Trace, calls: Int64) -> tuple[Int64, str]:
    """Select the all-to-alls with readable bytes, and why others are unreadable."""
    known = trace.occurrences.matrix[calls] >= 0
    try:
        trace.wire(calls[~known][:1])
    except TraceError as error:
        return calls[known], str(error)
    return calls[known], ""


def on_the_wire(
    trace: Trace, layers: Sequence[int], iterations: range | None
) -> tuple[Int64, str]:
    """Select the all-to-alls for statistics of bursts, with a description of them.

    If any all-to-all has a phase, only those with a phase are selected, which excludes
    exchanges of counts before a dispatch and unnamed calls.
    """
    calls = trace.complete(trace.find(operation=ALL_TO_ALL, iterations=iterations))
    site = trace.occurrences.site[calls]
    phased = np.array([bool(s.phase) for s in trace.sites], bool)
    if not layers or not phased[site].any():
        return calls, "all all-to-alls"
    keep = phased[site] & np.array([s.layer in layers for s in trace.sites], bool)[site]
    about = "all-to-alls with a phase, layers " + ", ".join(map(str, layers))
    if not keep.all():
        others = [trace.sites[s] for s in np.unique(site[~keep])]
        names = sorted({s.label or s.phase or "without a name" for s in others})
        about += f"; {(~keep).sum()} others are left out ({', '.join(names)})"
    return calls[keep], about


# ---- time that calls cover -----------------------------------------------------------


def merge_intervals(start: npt.ArrayLike, end: npt.ArrayLike) -> tuple[Int64, Int64]:
    """Merge overlapping and touching events into bursts.

    ``start``, ``end``: ``[n]`` integers, ns.  Events of zero length are left out.

    Returns starts and ends of bursts ``[m]`` ns, in time order, with gaps between them.

    Raises
    ------
    AnalysisError
        If a time is unknown, or an event ends before it starts.

    Examples
    --------
    >>> [a.tolist() for a in merge_intervals([7, 0, 2], [9, 3, 5])]
    [[0, 7], [5, 9]]
    """
    first, last = np.asarray(start, np.int64), np.asarray(end, np.int64)
    if (last < first).any() or (first == UNKNOWN_TIME).any():
        raise AnalysisError(
            "an event has a known start and a later end, but one of "
            f"{len(first)} does not: leave it out"
        )
    order = np.argsort(first, kind="stable")
    order = order[last[order] > first[order]]
    first, reached = first[order], np.maximum.accumulate(last[order])
    # a burst begins with an event that starts after all former ones have ended
    gap = first[1:] > reached[:-1]
    edge = np.ones(min(len(first), 1), bool)
    return first[np.append(edge, gap)], reached[np.append(gap, edge)]


def covered_ns(bursts: tuple[Int64, Int64], first: Int64, last: Int64) -> Int64:
    """Compute the total length of bursts within each span ``[S]``, ns.

    ``bursts``: as :func:`merge_intervals` returns them; ``first``, ``last``: ``[S]``.
    """
    start, end = bursts
    if not len(start):
        return np.zeros(len(first), np.int64)
    before = np.concatenate([[0], np.cumsum(end - start)])

    def until(time: Int64) -> Int64:
        begun = np.searchsorted(start, time, side="right")
        # of the last burst that has begun, only what lies before the given time
        beyond = np.where(begun > 0, np.maximum(end[begun - 1] - time, 0), 0)
        return np.asarray(before[begun] - beyond, np.int64)

    return until(last) - until(first)


# ---- training steps ------------------------------------------------------------------


def training_steps(
    trace: Trace, iterations: range | None = None
) -> tuple[Int64, Int64, Int64]:
    """Read when training steps begin and end on each rank.

    An inferred step is recorded from its first to its last call; computation outside
    belongs to no step.  Such a step lasts until the next iteration's training step
    begins; its end is unknown where an evaluation or a gap follows.

    Returns
    -------
    iteration : ndarray
        ``[S]`` int64.
    start, end : ndarray
        ``[S, R]`` int64 ns on rank 0's clock, or UNKNOWN_TIME.
    """
    steps, keep = trace.steps, _training(trace, None)
    follows = np.flatnonzero(keep[:-1] & keep[1:] & (np.diff(steps.iteration) == 1))
    after = steps.start[follows + 1]
    until = np.full_like(steps.end, UNKNOWN_TIME)
    until[follows] = np.where(
        after != UNKNOWN_TIME, np.maximum(steps.end[follows], after), UNKNOWN_TIME
    )
    inferred = (steps.source == Source.INFERRED)[:, None]
    end = np.where(inferred, until, steps.end)
    keep = _training(trace, iterations)
    ranks = np.broadcast_to(np.arange(end.shape[1]), end[keep].shape)
    start, end = (to_common(trace.clocks, ranks, t[keep]) for t in (steps.start, end))
    return np.asarray(steps.iteration[keep], np.int64), start, end


def step_starts(trace: Trace, rank: int, iterations: range | None = None) -> Int64:
    """List the start times of a rank's training steps on rank 0's clock, ``[n]`` ns."""
    _, start, _ = training_steps(trace, iterations)
    return np.sort(start[start[:, rank] != UNKNOWN_TIME, rank])


def step_ns(trace: Trace, rank: int) -> float:
    """Compute the median duration of a rank's training steps, ns; NaN of under 4."""
    _, start, end = training_steps(trace)
    start, end = start[:, rank], end[:, rank]
    lengths = (end - start)[(start != UNKNOWN_TIME) & (end > start)]
    return float(np.median(lengths)) if len(lengths) >= 4 else float("nan")


def observed_steps(
    trace: Trace, rank: int, iterations: range | None = None
) -> tuple[Int64, Int64] | None:
    """Find the intervals of uninterrupted training; None if nothing interrupts it.

    An interval lasts from the first start to the last end of consecutive steps; an
    evaluation step, a skipped step, or a step without times separates two intervals.

    Their starts and ends are int64 ``[m]`` ns of rank 0's clock.
    """
    start, end = trace.steps.start[:, rank], trace.steps.end[:, rank]
    known = (start != UNKNOWN_TIME) & (end != UNKNOWN_TIME)
    edges = np.flatnonzero(
        np.diff(_training(trace, iterations) & known, prepend=False, append=False)
    )
    if len(edges) < 4:
        return None
    times = np.stack([start[edges[::2]], end[edges[1::2] - 1]])
    first, last = to_common(trace.clocks, np.full(times.shape, rank), times)
    return first, np.maximum(first, last)


def _training(trace: Trace, iterations: range | None) -> Bool:
    """Select the training steps of given iterations, a mask ``[S]``."""
    keep = np.array([kind == "train" for kind in trace.steps.kind], bool)
    if iterations is not None:
        when = trace.steps.iteration
        keep &= (when >= iterations.start) & (when < iterations.stop)
    return keep
