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

from moetraffic.analysis.measures import ratio
from moetraffic.arrays import Bool, Float64, Int64
from moetraffic.errors import AnalysisError
from moetraffic.trace import ROUTING, UNKNOWN_TIME, Trace

from .calls import blocks, covered_ns, merge_intervals, training_steps

PARTS = ("compute", "overlapped", "transfer", "waiting")
"""Parts of a step's time, which sum to the step time."""


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """Time breakdown of training steps; 0 ns where a rank's step has no times."""

    iteration: Int64  # [S]
    ns: Int64  # [S, R, 4] time of each of PARTS
    known: Bool  # [S, R] whether the rank's step has times

    @property
    def shares(self) -> Float64:
        """Shares of each rank's time over all steps, ``[R, 4]``."""
        sums = self.ns.sum(axis=0).astype(np.float64)
        return ratio(sums, sums.sum(axis=1, keepdims=True))


def breakdown(trace: Trace, iterations: range | None = None) -> Breakdown:
    """Compute the time breakdown of each rank's training steps.

    Raises
    ------
    AnalysisError
        If no training step has times.
    """
    iteration, start, end = training_steps(trace, iterations)
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
    ns = [
        split(
            (_last_calls(issue, finish), finish),
            (begin, finish),
            start[:, rank],
            end[:, rank],
        )
        for rank, (issue, begin, finish) in enumerate(rank_calls(trace))
    ]
    return Breakdown(iteration=iteration, ns=np.stack(ns, axis=1), known=known)


def split(
    awaited: tuple[Int64, Int64],
    transfers: tuple[Int64, Int64],
    start: Int64,
    end: Int64,
) -> Int64:
    """Split spans of time by what a rank does in them.

    Parameters
    ----------
    awaited, transfers
        Starts and ends ``[n]`` ns, overlapping or not: of times in which the program
        waits for a collective, and of transfers.  At all other times it computes.
    start, end
        ``[S]`` ns of the spans.

    Returns
    -------
    ndarray
        ``[S, 4]`` int64 ns of each of PARTS.

    Examples
    --------
    >>> spans = np.array([0]), np.array([10])
    >>> split(([6], [10]), ([4], [9]), *spans).tolist()
    [[4, 2, 3, 1]]
    """
    either = [np.concatenate(times) for times in zip(awaited, transfers, strict=True)]
    wait, sent, any_ = (
        covered_ns(merge_intervals(*events), start, end)
        for events in (awaited, transfers, either)
    )
    parts = (end - start - any_, any_ - wait, wait + sent - any_, any_ - sent)
    return np.stack(parts, axis=1)


def _last_calls(issue: Int64, end: Int64) -> Int64:
    """Find the last call of a rank before each collective's end, ``[n]`` ns."""
    order = np.sort(issue)
    latest = order[np.searchsorted(order, end, side="left") - 1]
    # a call of zero length is its own last call
    return np.clip(latest, issue, end)


def rank_calls(trace: Trace, kind: str = "") -> list[tuple[Int64, Int64, Int64]]:
    """Read issue, begin and end of each rank's collectives on rank 0's clock.

    ``kind``: Of group; "": all.  A call begins when its last member has called.
    """
    keep = [
        s.operation != ROUTING and kind in ("", trace.groups[s.group].kind)
        for s in trace.sites
    ]
    calls = np.flatnonzero(np.array(keep, bool)[trace.occurrences.site])
    columns: list[list[Int64]] = [[np.zeros(0, np.int64)] for _ in range(4)]
    for block, issue, start, end in blocks(trace, calls):
        known = (issue != UNKNOWN_TIME) & (end != UNKNOWN_TIME)
        begin = np.where(start != UNKNOWN_TIME, start, issue)
        # an unknown time is the least int64: it is never the latest
        begin = np.maximum(begin, issue.max(axis=1, keepdims=True))
        # clock errors must not make a call end before it begins
        begin, issue = np.minimum(begin, end), np.minimum(issue, end)
        for column, values in zip(
            columns, (trace.members(block), issue, begin, end), strict=True
        ):
            column.append(values[known])
    ranks, issue, begin, end = map(np.concatenate, columns)
    order = np.argsort(ranks, kind="stable")
    edges = np.searchsorted(ranks[order], np.arange(trace.meta.world + 1))
    return [
        (issue[own], begin[own], end[own])
        for own in map(order.__getitem__, map(slice, edges[:-1], edges[1:]))
    ]
