"""Derive issue order, dependencies and gaps of operations from captured times.

Where a time is unknown, all ranks follow one common order, and gaps are unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

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
class IssueOrder:
    """Captured issue and end times of a plan's n operations, ns of rank 0's clock.

    A replay rank to which several ranks of the trace are mapped has their earliest
    issue and latest end.
    """

    issue: Mapping[int, Int64]  # [n] of a rank; UNKNOWN_TIME: no part, or unknown
    end: Mapping[int, Int64]  # [n] of a rank
    begin: int  # first issue on any rank; UNKNOWN_TIME if none is known
    common: Int64 | None  # [n] position in a common order, if one is needed


def read_issue_order(
    trace: Trace, occurrences: Int64, ranks: Collection[int], scale: Scale | None
) -> IssueOrder:
    """Read the captured issue and end times of operations from a trace.

    Parameters
    ----------
    trace
        The trace to replay.
    occurrences
        ``[n]`` indices of the operations.
    ranks
        Ranks of the replay.
    scale
        Maps ranks of the trace to those of the replay.
    """
    if not ranks:
        return IssueOrder(issue={}, end={}, begin=UNKNOWN_TIME, common=None)
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
        issue=issues,
        end=ends,
        begin=begin if begin < _LATE else UNKNOWN_TIME,
        common=common_order(trace, occurrences) if in_common else None,
    )


def _times(trace: Trace, name: str, occurrences: Int64, members: Int64) -> Int64:
    """Read issue or end times of operations, ``[b, W]``, on rank 0's clock."""
    panel = f"{name}_{members.shape[1]}"
    read = take(trace.panels[panel], trace.rows_of(panel)[occurrences])
    return to_common(trace.clocks, members, np.asarray(read, np.int64))


def rank_order(
    issue_order: IssueOrder, rank: int, mine: Int64, iteration: Int64
) -> Int64:
    """Sort the operations of one rank into issue order.

    Parameters
    ----------
    issue_order
        Times of the plan's operations.
    rank
        Rank of the replay.
    mine
        ``[N]`` operations in which the rank takes part.
    iteration
        ``[n]`` iteration of every operation of the plan.
    """
    if issue_order.common is not None:
        return mine[np.argsort(issue_order.common[mine])]
    issue = issue_order.issue[rank][mine]
    return mine[np.lexsort((issue, iteration[mine]))]


def dependencies(
    issue_order: IssueOrder,
    rank: int,
    operation: Int64,
    *,
    stream: Int8,
    group: Int32,
    message: Bool,
    sent: Bool,
) -> dict[str, Any]:
    """Compute which operation each operation of a rank waits for, and the gap between.

    Returns the fields ``waits``, ``after``, ``gap_ns`` and ``due_ns`` of a
    :class:`~moetraffic.replay.plan.program.Program`.

    Parameters
    ----------
    issue_order
        Times of the plan's operations.
    rank
        Rank of the replay.
    operation
        ``[N]`` operations of the rank in issue order; those beyond ``issue_order`` are
        background traffic without times.
    stream, group
        ``[N]`` stream and group of each operation.
    message
        ``[N]`` whether the operation is a message.
    sent
        ``[N]`` whether this rank sends it.
    """
    count, all_issues = len(operation), issue_order.issue[rank]
    captured = operation < len(all_issues)
    issue = np.full(count, UNKNOWN_TIME, np.int64)
    end = issue.copy()
    issue[captured] = all_issues[operation[captured]]
    end[captured] = issue_order.end[rank][operation[captured]]
    known = captured & (issue != UNKNOWN_TIME) & (end != UNKNOWN_TIME)
    timed = bool(count) and bool(known[captured].all())
    after = np.full(count, -1, np.int64)
    gap = np.full(count, UNKNOWN_GAP, np.int64)
    due = np.full(count, UNKNOWN_GAP, np.int64)
    if timed:
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
        overlapped = timed & known[now] & known[then] & (issue[then] < end[now])
        waits[now] = ~(overlapped & free)
    if not timed:
        waits &= ~sent  # in a common order, only receivers may wait
    return {"waits": waits, "after": after, "gap_ns": gap, "due_ns": due}


def _ended_before(here: Int64, issue: Int64, end: Int64) -> Int64:
    """Find the operation that ended last before each issue, ``[m]``; -1 if none."""
    by_end = np.argsort(end, kind="stable")
    last = np.searchsorted(end[by_end], issue, side="right") - 1
    found = np.where(last >= 0, here[by_end[last]], -1)
    # operations later in the program, or at the same instant, are not waited for
    own = np.arange(len(here))
    before = np.where(own > 0, here[own - 1], -1)
    return np.where(found >= here, before, found)
