"""Time breakdown of steps: computation, transfer, overlap and waiting for late ranks.

A step's time parts into compute only, transfer only, both at once (overlapped), and
waiting; the four sum up to the step exactly.  A rank is *inside collectives* while it
waits or data is transferred: this is the time that NCCL's kernels take in a profile; a
timer around each blocking call also includes the program's wake-up.  What a step would
gain at most from a perfect network is transfer only / step; waiting ends when the
latest rank calls.

A captured trace contains no kernels, only the time of each collective call; a program
that issues a call is running.  Each collective is assumed to be awaited, from the last
call before its end on.  This is exact where calls block and where what is fetched ahead
is awaited in turn (FSDP); elsewhere it is the least overlap.  A transfer begins when
the last member has called; before that, a rank that awaits it is waiting.

References
----------
S. Cheng et al., "Thorough Characterization and Analysis of Large Transformer Model
Training At-Scale", Proc. ACM Meas. Anal. Comput. Syst. 8 (SIGMETRICS'24), figure on
converting a profile with overlapping kernels into the distribution of execution time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.skew.measures import ratio
from moetraffic.arrays import Bool, Float64, Int64
from moetraffic.errors import AnalysisError
from moetraffic.trace import ROUTING, UNKNOWN_TIME, Trace
from moetraffic.trace.clock import to_common

from .call_times import step_bounds, times_in_blocks, training_steps
from .intervals import merge_intervals

Events = tuple[npt.ArrayLike, npt.ArrayLike]

PARTS = ("compute", "transfer", "overlapped", "waiting")
"""Parts of a step's time, which sum to the step time."""


@dataclass(frozen=True, kw_only=True)
class TimeBreakdown:
    """Time breakdown of training steps, ``[S, R]`` int64 ns each."""

    iteration: Int64  # [S]
    compute: Int64  # compute alone
    transfer: Int64  # transfers alone
    overlapped: Int64  # both
    waiting: Int64  # neither: for the latest rank of a collective
    known: Bool  # whether the rank's step has times; others are 0

    @property
    def total(self) -> Int64:
        """Length of the steps, ``[S, R]`` ns."""
        return self.compute + self.transfer + self.overlapped + self.waiting

    @property
    def shares(self) -> Float64:
        """Shares of each rank's time over all steps, ``[R, 4]``, in field order."""
        parts = (getattr(self, name).sum(axis=0) for name in PARTS)
        sums = np.stack(list(parts), axis=1).astype(np.float64)
        return ratio(sums, sums.sum(axis=1, keepdims=True))

    @property
    def transfer_fraction(self) -> Float64:
        """Share of transfers in each rank's time, overlapped or not, ``[R]``."""
        return np.asarray(self.shares[:, 1] + self.shares[:, 2], np.float64)

    @property
    def collective_fraction(self) -> Float64:
        """Share of each rank's time inside collectives, waiting included, ``[R]``."""
        return np.asarray(self.transfer_fraction + self.shares[:, 3], np.float64)

    @property
    def hidden_fraction(self) -> Float64:
        """Share of each rank's transfers hidden behind compute, ``[R]``."""
        return ratio(self.shares[:, 2], self.transfer_fraction)


def distribution(
    compute: Events, communication: Events, start: npt.ArrayLike, end: npt.ArrayLike
) -> tuple[Int64, Int64, Int64, Int64]:
    """Split spans of time into computation, communication, overlap and idle time.

    Parameters
    ----------
    compute, communication
        Starts and ends of events, ``[n]`` integers in ns, overlapping or not.
    start, end
        ``[S]`` of the spans.

    Returns
    -------
    compute, communication, overlapped, idle
        int64 ``[S]`` ns: compute alone, communication alone, both, neither.

    Examples
    --------
    >>> [int(part[0]) for part in distribution(([0], [6]), ([4], [9]), [0], [10])]
    [4, 3, 2, 1]
    """
    first, last = np.asarray(start, np.int64), np.asarray(end, np.int64)
    busy, sending = merge_intervals(*compute), merge_intervals(*communication)
    either = merge_intervals(
        np.concatenate([busy[0], sending[0]]), np.concatenate([busy[1], sending[1]])
    )
    k, c, u = (covered_ns(on, first, last) for on in (busy, sending, either))
    return u - c, u - k, c + k - u, last - first - u


def time_breakdown(trace: Trace, *, iterations: range | None = None) -> TimeBreakdown:
    """Compute the time breakdown of each rank's training steps.

    ``trace``: With times of steps and calls.

    Raises
    ------
    AnalysisError
        If no training step has times.
    """
    world = trace.meta.world
    iteration, start, end = training_spans(trace, iterations)
    known = (start != UNKNOWN_TIME) & (end != UNKNOWN_TIME) & (end >= start)
    if not known.any():
        why = "has no training step with a start and an end: capture a run with times"
        if (start != UNKNOWN_TIME).any():
            why = (
                "does not show where a training step ends: steps are inferred, and no "
                "training step directly follows another (evaluation steps do); call "
                "recorder.step() after each training step and "
                'recorder.step(kind="evaluation") after each evaluation'
            )
        raise AnalysisError(f"{trace.name} {why}")
    start, end = np.where(known, start, 0), np.where(known, end, 0)
    parts = np.zeros((4, len(iteration), world), np.int64)
    for rank, (issue, begin, finish) in enumerate(rank_calls(trace)):
        spans = start[:, rank], end[:, rank]
        busy = _between(_waits(issue, finish), *spans)
        parts[:, :, rank] = distribution(busy, (begin, finish), *spans)
    return TimeBreakdown(
        iteration=iteration,
        **dict(zip(PARTS, parts, strict=True)),
        known=known,
    )


def _waits(issue: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Compute wait intervals: from the last call before a collective's end to it."""
    if not len(issue):
        return issue, end
    order = np.sort(issue)
    # a call of zero length is its own last call
    latest = np.clip(order[np.searchsorted(order, end, side="left") - 1], issue, end)
    return merge_intervals(latest, end)


def _between(waits: tuple[Int64, Int64], first: Int64, last: Int64) -> Events:
    """Compute the complement of the wait intervals, beyond every span."""
    low = min(int(first.min(initial=0)), int(waits[0].min(initial=0)))
    high = max(int(last.max(initial=0)), int(waits[1].max(initial=0)))
    return np.concatenate([[low], waits[1]]), np.concatenate([waits[0], [high]])


def covered_ns(on: tuple[Int64, Int64], first: Int64, last: Int64) -> Int64:
    """Compute the total duration of disjoint, ordered events within each span."""
    start, end = on
    if not len(start):
        return np.zeros(len(first), np.int64)
    before = np.concatenate([[0], np.cumsum(end - start)])

    def until(time: Int64) -> Int64:
        at = np.searchsorted(start, time, side="right")
        # clip the last event that has begun at the given time
        over = np.where(at > 0, np.maximum(end[at - 1] - time, 0), 0)
        return np.asarray(before[at] - over, np.int64)

    return until(last) - until(first)


def training_spans(
    trace: Trace, iterations: range | None
) -> tuple[Int64, Int64, Int64]:
    """Read training steps: iteration ``[S]``, start and end ``[S, R]``, ns."""
    steps = trace.steps
    keep = training_steps(trace, iterations)
    start, end = (times[keep] for times in step_bounds(trace))
    ranks = np.broadcast_to(np.arange(start.shape[1]), start.shape)
    return (
        np.asarray(steps.iteration[keep], np.int64),
        to_common(trace.clocks, ranks, start),
        to_common(trace.clocks, ranks, end),
    )


def rank_calls(trace: Trace, kind: str = "") -> list[tuple[Int64, ...]]:
    """Read issue, begin and end of each rank's collectives on rank 0's clock.

    ``kind``: Of group; "": all.
    """
    sending = np.array(
        [
            s.operation != ROUTING and kind in ("", trace.groups[s.group].kind)
            for s in trace.sites
        ],
        bool,
    )
    site = trace.occurrences.site
    chosen = np.flatnonzero(sending[site]) if len(site) else np.zeros(0, np.int64)
    found: list[list[tuple[Int64, Int64, Int64]]] = [
        [] for _ in range(trace.meta.world)
    ]
    for part, issue, start, end in times_in_blocks(trace, chosen):
        known = (issue != UNKNOWN_TIME) & (end != UNKNOWN_TIME)
        begin = np.where(start != UNKNOWN_TIME, start, issue)
        # an unknown time is the least int64: it is never the latest
        begin = np.maximum(begin, issue.max(axis=1, keepdims=True))
        # clock errors must not make a call end before it begins
        begin, issue = np.minimum(begin, end), np.minimum(issue, end)
        ranks = trace.members(part)
        for rank in np.unique(ranks[known]).tolist():
            mine = known & (ranks == rank)
            found[rank].append((issue[mine], begin[mine], end[mine]))
    none = np.zeros(0, np.int64)
    return [
        tuple(np.concatenate([none, *(part[at] for part in parts)]) for at in range(3))
        for parts in found
    ]
