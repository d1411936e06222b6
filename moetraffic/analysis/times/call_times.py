"""Read the times of all-to-alls on a common clock, in blocks of bounded size.

Times are converted to rank 0's clock.  A rank's part in an all-to-all lasts from its
recorded start, or else from the last member's issue (before that, the rank waits), to
its end on that rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Bool, Int64
from moetraffic.errors import TraceError
from moetraffic.trace import ALL_TO_ALL, UNKNOWN_TIME, Source, Trace
from moetraffic.trace.clock import to_common

CELLS = 1 << 21
"""Maximum matrix cells in memory at a time."""


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


def on_the_wire(
    trace: Trace, layers: Sequence[int], iterations: range | None
) -> tuple[Int64, str]:
    """Select the all-to-alls for periodicity analysis, with a description of them.

    If any all-to-all has a phase, only those with a phase are selected, which excludes
    exchanges of counts before a dispatch and unnamed calls.
    """
    found = trace.complete(trace.find(operation=ALL_TO_ALL, iterations=iterations))
    site = trace.occurrences.site[found]
    phased = np.array([bool(s.phase) for s in trace.sites], bool)
    if not layers or not phased[site].any():
        return found, "all all-to-alls"
    mine = phased[site] & np.array([s.layer in layers for s in trace.sites], bool)[site]
    others = sorted(
        {
            trace.sites[s].label or trace.sites[s].phase or "without a name"
            for s in np.unique(site[~mine])
        }
    )
    left = int((~mine).sum())
    about = "all-to-alls with a phase, layers " + ", ".join(map(str, layers))
    if left:
        about += f"; {left} others are left out ({', '.join(others)})"
    return found[mine], about


def timed(
    trace: Trace, occurrences: Int64, *, with_wire: bool = True
) -> Iterator[CallTimes]:
    """Read the begin and end times of all-to-alls in blocks.

    Parameters
    ----------
    occurrences
        ``[n]`` occurrences of all-to-alls.
    with_wire
        Whether to read bytes, too.

    Yields
    ------
    CallTimes
        One group size after another, in the order of the occurrences.

    Raises
    ------
    TraceError
        If bytes are asked for and not known: see :func:`sized`.
    """
    for part, issue, start, end in times_in_blocks(
        trace, occurrences, matrices=with_wire
    ):
        own = start != UNKNOWN_TIME
        begin = np.where(own, start, issue.max(axis=1, keepdims=True))
        issued = (issue != UNKNOWN_TIME).all(axis=1, keepdims=True)
        known = (own | issued) & (end != UNKNOWN_TIME)
        none = np.zeros((len(part), 0, 0), np.int64)
        yield CallTimes(
            occurrence=part,
            ranks=trace.members(part),
            # clock errors between ranks must not make a call end before it begins
            begin=np.minimum(begin, end),
            end=end,
            known=known,
            own=own,
            wire=trace.wire(part) if with_wire else none,
        )


def times_in_blocks(
    trace: Trace, occurrences: Int64, *, matrices: bool = False
) -> Iterator[tuple[Int64, Int64, Int64, Int64]]:
    """Read the times of calls in blocks of bounded size.

    Parameters
    ----------
    occurrences
        ``[n]`` calls.
    matrices
        Whether the caller reads a matrix a call too, so that blocks must be smaller.

    Yields
    ------
    tuple of int64 arrays
        Occurrences ``[n]``, all of groups of one size W; issue, start and end
        ``[n, W]`` ns, on rank 0's clock.
    """
    sizes = trace.width[trace.occurrences.site[occurrences]]
    for width in np.unique(sizes).tolist():
        of = occurrences[sizes == width]
        step = max(1, CELLS // (width * (width if matrices else 1)))
        for low in range(0, len(of), step):
            part = of[low : low + step]
            yield part, *trace.times(part)


def sized(trace: Trace, occurrences: Int64) -> tuple[Int64, str]:
    """Select the all-to-alls with readable bytes, and why others are unreadable."""
    known = trace.occurrences.matrix[occurrences] >= 0
    reason = ""
    try:
        trace.wire(occurrences[~known][:1])
    except TraceError as error:
        reason = str(error)
    return occurrences[known], reason


def step_starts(trace: Trace, rank: int, iterations: range | None = None) -> Int64:
    """List the start times of a rank's training steps on rank 0's clock, ``[n]`` ns."""
    steps = trace.steps
    keep = training_steps(trace, iterations)
    start = steps.start[keep, rank : rank + 1]
    start = to_common(trace.clocks, np.full(start.shape, rank), start)[:, 0]
    return np.sort(start[start != UNKNOWN_TIME])


def step_ns(trace: Trace, rank: int) -> float:
    """Compute the median duration of a rank's training steps, ns; NaN if unknown."""
    train = training_steps(trace, None)
    start, end = (times[train, rank] for times in step_bounds(trace))
    known = (start != UNKNOWN_TIME) & (end != UNKNOWN_TIME) & (end > start)
    lengths = (end - start)[known]
    return float(np.median(lengths)) if len(lengths) >= 4 else float("nan")


def step_bounds(trace: Trace) -> tuple[Int64, Int64]:
    """Find when steps begin and end, also those inferred from the calls.

    An inferred step is recorded from its first to its last call; computation outside
    belongs to no step.  Where the next iteration is a training step as well, it lasts
    until that one begins; else its end is unknown.

    Starts and ends are int64 ``[S, R]`` ns of each rank's clock, or UNKNOWN_TIME.
    """
    steps, end = trace.steps, trace.steps.end.copy()
    inferred = steps.source == Source.INFERRED
    until = np.full_like(end, UNKNOWN_TIME)
    train = training_steps(trace, None)
    follows = np.flatnonzero(train[:-1] & train[1:] & (np.diff(steps.iteration) == 1))
    after = steps.start[follows + 1]
    known = after != UNKNOWN_TIME
    until[follows] = np.where(known, np.maximum(end[follows], after), UNKNOWN_TIME)
    end[inferred] = until[inferred]
    return steps.start, end


def observed_steps(
    trace: Trace, rank: int, iterations: range | None = None
) -> tuple[Int64, Int64] | None:
    """Find the intervals of uninterrupted training; None if nothing interrupts it.

    An interval lasts from the first start to the last end of consecutive steps; an
    evaluation step, a skipped step, or a step without times separates two intervals.

    Their starts and ends are int64 ``[m]`` ns of rank 0's clock.
    """
    steps = trace.steps
    start, end = steps.start[:, rank], steps.end[:, rank]
    there = training_steps(trace, iterations)
    there &= (start != UNKNOWN_TIME) & (end != UNKNOWN_TIME)
    if not there.any():
        return None
    change = np.flatnonzero(np.diff(np.concatenate(([0], there, [0]))))
    first, last = change[::2], change[1::2] - 1
    if len(first) < 2:
        return None
    ranks = np.full((len(first), 1), rank)
    begin, finish = (
        to_common(trace.clocks, ranks, at[:, None])[:, 0]
        for at in (start[first], end[last])
    )
    return begin, np.maximum(begin, finish)


def training_steps(trace: Trace, iterations: range | None) -> Bool:
    """Select the training steps of given iterations, a mask ``[S]``."""
    steps = trace.steps
    keep = np.array([kind == "train" for kind in steps.kind], bool)
    if iterations is not None:
        keep &= (steps.iteration >= iterations.start) & (
            steps.iteration < iterations.stop
        )
    return keep
