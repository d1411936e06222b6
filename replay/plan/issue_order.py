"""In which order a rank issues its operations, what it waits for, and for how long.

All of it comes from the captured times.  Where a time is not known, all ranks follow
one common order, and nothing is known of gaps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from moetraffic.replay.scale.order import common_order
from moetraffic.replay.scale.rescaling import Scale
from moetraffic.trace.clock import to_common
from moetraffic.trace.model import UNKNOWN_TIME, Bool, Int32, Int64
from moetraffic.trace.panel import take
from moetraffic.trace.trace import Trace

from .program import UNKNOWN_GAP, Int8
from .selection import blocks, takes_part

_BLOCK_CELLS = 1 << 20
_LATE = np.iinfo(np.int64).max


@dataclass(frozen=True, kw_only=True)
class RankTimes:
    """When one rank of the replay issued and ended operations, ns of rank 0's clock.

    Where it stands for several ranks of the trace, the first issue and the last end.
    """

    issue: Int64  # [n] UNKNOWN_TIME where it had no part, or it is not known
    end: Int64  # [n]


@dataclass(frozen=True, kw_only=True)
class IssueOrder:
    """The times of a plan's operations."""

    rank_times: Mapping[int, RankTimes]  # of the ranks asked for
    begin: int  # first issue of any rank; UNKNOWN_TIME where none is known
    common: Int64 | None  # [n] position in an order for all ranks, where they need one


def read_issue_order(
    trace: Trace, occurrences: Int64, ranks: Collection[int], scale: Scale | None
) -> IssueOrder:
    """Read the times of operations.

    Parameters
    ----------
    trace
        What is replayed.
    occurrences
        ``[n]`` its operations.
    ranks
        Ranks of the replay.
    scale
        Which ranks of the trace those stand for.
    """
    if not ranks:
        return IssueOrder(rank_times={}, begin=UNKNOWN_TIME, common=None)
    count = len(occurrences)
    of = {r: (r,) if scale is None else scale.origins(r) for r in ranks}
    issues = {r: np.full(count, _LATE, np.int64) for r in ranks}
    ends = {r: np.full(count, UNKNOWN_TIME, np.int64) for r in ranks}
    begin, ordered = _LATE, True
    for at in blocks(trace, occurrences, _BLOCK_CELLS):
        these = occurrences[at]
        members, part = trace.members(these), takes_part(trace, these, scale)
        issue, end = (_times(trace, name, these, members) for name in ("issue", "end"))
        known = issue != UNKNOWN_TIME
        ordered &= bool(known[part].all())
        begin = min(begin, int(issue[known].min(initial=_LATE)))
        for rank, origins in of.items():
            for old in origins:
                row, column = np.nonzero((members == old) & part)
                place, mine = at[row], (row, column)
                first = np.where(known[mine], issue[mine], _LATE)
                issues[rank][place] = np.minimum(issues[rank][place], first)
                ends[rank][place] = np.maximum(ends[rank][place], end[mine])
    for found in issues.values():
        found[found == _LATE] = UNKNOWN_TIME
    in_common = not ordered or (scale is not None and scale.in_common_order)
    return IssueOrder(
        rank_times={r: RankTimes(issue=issues[r], end=ends[r]) for r in ranks},
        begin=begin if begin < _LATE else UNKNOWN_TIME,
        common=common_order(trace, occurrences) if in_common else None,
    )


def _times(trace: Trace, name: str, occurrences: Int64, members: Int64) -> Int64:
    """One of the three times of operations of one width, ``[b, W]``, rank 0's clock."""
    panel = f"{name}_{members.shape[1]}"
    read = take(trace.panels[panel], trace.rows_of(panel)[occurrences])
    return to_common(trace.clocks, members, np.asarray(read, np.int64))


def in_order(
    issue_order: IssueOrder, rank: int, mine: Int64, iteration: Int64
) -> Int64:
    """Operations of a rank in the order in which it issues them.

    Parameters
    ----------
    issue_order
        The plan's.
    rank
        One of its ranks.
    mine
        ``[N]`` those in which the rank has a part.
    iteration
        ``[n]`` of all operations.
    """
    if issue_order.common is not None:
        return mine[np.argsort(issue_order.common[mine])]
    issue = issue_order.rank_times[rank].issue[mine]
    return mine[np.lexsort((issue, iteration[mine]))]


@dataclass(frozen=True, kw_only=True)
class Dependencies:
    """What a rank waits for; as in :class:`~moetraffic.replay.plan.program.Program`."""

    waits: Bool  # [N]
    after: Int64  # [N]
    gap_ns: Int64  # [N]
    due_ns: Int64  # [N]


def waiting(
    issue_order: IssueOrder,
    rank: int,
    operation: Int64,
    *,
    stream: Int8,
    group: Int32,
    message: Bool,
    sent: Bool,
) -> Dependencies:
    """What a rank waits for before each operation, and how long after.

    Parameters
    ----------
    issue_order
        The plan's.
    rank
        One of its ranks.
    operation
        ``[N]`` its operations in order; what lies beyond the issue_order was added and
        has no times.
    stream, group
        ``[N]`` of each.
    message
        ``[N]`` whether it is a message.
    sent
        ``[N]`` whether this rank sends it.
    """
    rank_times, count = issue_order.rank_times[rank], len(operation)
    captured = operation < len(rank_times.issue)
    issue = np.full(count, UNKNOWN_TIME, np.int64)
    end = issue.copy()
    issue[captured] = rank_times.issue[operation[captured]]
    end[captured] = rank_times.end[operation[captured]]
    known = captured & (issue != UNKNOWN_TIME) & (end != UNKNOWN_TIME)
    told = bool(count) and bool(known[captured].all())
    after = np.full(count, -1, np.int64)
    gap = np.full(count, UNKNOWN_GAP, np.int64)
    due = np.full(count, UNKNOWN_GAP, np.int64)
    if told:
        here = np.flatnonzero(known)
        after[here] = _ended_before(here, issue[here], end[here])
        since = np.where(after >= 0, end[after], issue[here].min(initial=_LATE))
        gap[here] = np.maximum(issue[here] - since[here], 0)
        due[here] = issue[here] - issue_order.begin
    waits = np.ones(count, bool)
    for one in np.unique(stream):
        of = np.flatnonzero(stream == one)
        now, then = of[:-1], of[1:]
        free = message[now] | (group[now] != group[then])
        overlapped = told & known[now] & known[then] & (issue[then] < end[now])
        waits[now] = ~(overlapped & free)
    if not told:
        waits &= ~sent  # in an order for all, whoever receives may wait
    return Dependencies(waits=waits, after=after, gap_ns=gap, due_ns=due)


def _ended_before(here: Int64, issue: Int64, end: Int64) -> Int64:
    """The place of what ended last before each issue, ``[m]``; -1 for none."""
    by_end = np.argsort(end, kind="stable")
    last = np.searchsorted(end[by_end], issue, side="right") - 1
    found = np.where(last >= 0, here[by_end[last]], -1)
    # what comes later in the program, or at the same instant, is nothing to wait for
    own = np.arange(len(here))
    before = np.where(own > 0, here[own - 1], -1)
    return np.where(found >= here, before, found)
