"""Program of one rank: issue order, dependencies and gaps, from captured times.

Where a time is unknown, all ranks follow one common order, and gaps are unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moetraffic.arrays import Bool, Int8, Int32, Int64
from moetraffic.trace.model import ALL_TO_ALL, UNKNOWN_TIME
from moetraffic.trace.order import common_order
from moetraffic.trace.trace import Trace

from .background_order import follow, levels
from .operation_table import OperationTable
from .program import KINDS, UNKNOWN_GAP, Program
from .selection import MESSAGE, blocks, takes_part
from .sizes import buffers

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

_BLOCK_CELLS = 1 << 20
_LATE = np.iinfo(np.int64).max
_SQUARE = KINDS.index(ALL_TO_ALL)


@dataclass(frozen=True, kw_only=True)
class IssueOrder:
    """Captured issue and end times of a plan's n operations, ns of rank 0's clock."""

    issue: Mapping[int, Int64]  # [n] of a rank; UNKNOWN_TIME: no part, or unknown
    end: Mapping[int, Int64]  # [n] of a rank
    begin: int  # first issue on any rank; UNKNOWN_TIME if none is known
    common: Int64 | None  # [n] position in a common order, if one is needed


def read_issue_order(
    trace: Trace,
    occurrences: Int64,
    ranks: Collection[int],
    *,
    digest: Hash,
    in_common: bool = False,
) -> IssueOrder:
    """Read the captured issue and end times of operations from a trace.

    ``in_common``: all ranks follow one order even where their times are known.  The
    times of all ranks are added to ``digest``.
    """
    count = len(occurrences)
    issues = {r: np.full(count, UNKNOWN_TIME, np.int64) for r in ranks}
    ends = {r: np.full(count, UNKNOWN_TIME, np.int64) for r in ranks}
    begin, ordered = _LATE, True
    for at in blocks(trace, occurrences, _BLOCK_CELLS):
        these = occurrences[at]
        members, part = trace.members(these), takes_part(trace, these)
        issue, _, end = trace.times(these)
        # at every pace, because each rank's order, waits and batches follow from the
        # times, also between groups, which no exchange in a group could compare
        digest.update(issue.astype("<i8").tobytes() + end.astype("<i8").tobytes())
        known = issue != UNKNOWN_TIME
        ordered &= bool(known[part].all())
        begin = min(begin, int(issue[known].min(initial=_LATE)))
        for rank in ranks:
            row, column = np.nonzero((members == rank) & part)
            issues[rank][at[row]] = issue[row, column]
            ends[rank][at[row]] = end[row, column]
    in_common |= not ordered
    return IssueOrder(
        issue=issues,
        end=ends,
        begin=begin if begin < _LATE else UNKNOWN_TIME,
        common=common_order(trace, occurrences) if in_common and ranks else None,
    )


def rank_order(
    issue_order: IssueOrder, rank: int, mine: Int64, iteration: Int64
) -> Int64:
    """Sort the operations of one rank into issue order."""
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
    iteration: Int64,
    message: Bool,
    sent: Bool,
) -> dict[str, Any]:
    """Compute which operation each operation of a rank waits for, and the gap between.

    Returns the fields ``waits``, ``after``, ``batch``, ``gap_ns`` and ``due_ns`` of a
    :class:`~moetraffic.replay.plan.program.Program`.

    Parameters
    ----------
    operation
        ``[N]`` operations of the rank in issue order; those beyond ``issue_order`` are
        background traffic without times.
    stream, group, iteration
        ``[N]`` stream, group and iteration of each operation.
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
    follows = message[:-1] & message[1:] & ~waits[:-1]
    follows &= (group[:-1] == group[1:]) & (iteration[:-1] == iteration[1:])
    batch = _batches(np.flatnonzero(follows), after, issue, end)
    found = {"waits": waits, "after": after, "batch": batch}
    return {**found, "gap_ns": gap, "due_ns": due}


def _batches(follows: Int64, after: Int64, issue: Int64, end: Int64) -> Int64:
    """Find the first message of each message's batch, ``[N]``.

    ``follows`` are the operations that the next one may join; it does if it was issued
    before any of the batch had ended, and waits for none of them.  Where ranks follow
    one order, batches cause no deadlock: launching an operation earlier delays no
    other, and a batch ends no later than its last operation would.
    """
    first = np.arange(len(after))
    earliest = np.where(end == UNKNOWN_TIME, _LATE, end)  # end in the batch so far
    for n in follows.tolist():
        if after[n + 1] < first[n] and issue[n + 1] < earliest[n]:
            first[n + 1] = first[n]
            earliest[n + 1] = min(earliest[n], earliest[n + 1])
    return first


def _ended_before(here: Int64, issue: Int64, end: Int64) -> Int64:
    """Find the operation that ended last before each issue, ``[m]``; -1 if none."""
    by_end = np.argsort(end, kind="stable")
    last = np.searchsorted(end[by_end], issue, side="right") - 1
    found = np.where(last >= 0, here[by_end[last]], -1)
    # operations later in the program, or at the same instant, are not waited for
    own = np.arange(len(here))
    before = np.where(own > 0, here[own - 1], -1)
    return np.where(found >= here, before, found)


class ProgramBuilder:
    """Builder of one rank's replay program; all-to-all bytes are added in blocks."""

    def __init__(self, rank: int, table: OperationTable, times: IssueOrder) -> None:
        mine = np.flatnonzero(table.of_rank(rank))
        captured = mine[mine < table.captured]
        order = np.concatenate(
            [
                rank_order(times, rank, captured, table.iteration),
                mine[mine >= table.captured],
            ]
        )
        if table.captured < len(table.kind) and times.common is not None:
            level = levels(table, times.common, table.place)
            # after captured operations of the same level
            tie = np.arange(len(level))
            tie[: table.captured] = times.common
            order = order[
                np.lexsort((tie[order], level[order], table.iteration[order]))
            ]
        self._rank = rank
        self._operation = order
        self._square = table.kind[order] == _SQUARE
        cells = np.where(self._square, table.width[order], 0)
        self._first = np.concatenate([[0], np.cumsum(cells)]).astype(np.int64)
        self._place = np.full(len(table.kind), -1, np.int64)
        self._place[order] = np.arange(len(order))
        self._send = np.zeros(int(self._first[-1]), np.int64)
        self._receive = np.zeros(int(self._first[-1]), np.int64)
        self._sizes = np.zeros((2, len(order)), np.int64)
        self._times = times

    def add_matrices(self, at: Int64, members: Int64, wire: Int64) -> None:
        """Copy this rank's row and column from the byte matrices of some operations."""
        here, member = np.nonzero(members == self._rank)
        place = self._place[at[here]]
        into = self._first[place][:, None] + np.arange(wire.shape[1])
        self._send[into] = wire[here, member, :]
        self._receive[into] = wire[here, :, member]
        self._sizes[0, place] = wire[here, member, :].sum(axis=1)
        self._sizes[1, place] = wire[here, :, member].sum(axis=1)

    def build(self, table: OperationTable) -> Program:
        """Build the rank's program; the sizes of all operations must be known."""
        order, rank = self._operation, self._rank
        kind = table.kind[order]
        for number, name in enumerate(KINDS):
            at = np.flatnonzero(kind == number)
            if number != _SQUARE and len(at):
                of = order[at]
                self._sizes[:, at] = buffers(
                    name,
                    table.size[of],
                    table.width[of],
                    rank,
                    table.sender[of],
                    table.receiver[of],
                )
        message = kind == KINDS.index(MESSAGE)
        stream, group = table.stream[order], table.group[order]
        waiting = dependencies(
            self._times,
            rank,
            order,
            stream=stream,
            group=group,
            iteration=table.iteration[order],
            message=message,
            sent=message & (table.sender[order] == rank),
        )
        if table.captured < len(table.kind):
            waiting["after"], waiting["gap_ns"] = follow(
                waiting["after"],
                waiting["gap_ns"],
                added=order >= table.captured,
                critical=table.critical[order],
                stream=stream,
                iteration=table.iteration[order],
            )
        return Program(
            rank=rank,
            operation=order,
            group=group,
            stream=stream,
            kind=kind,
            send_size=self._sizes[0],
            receive_size=self._sizes[1],
            first=self._first,
            send_bytes=self._send,
            receive_bytes=self._receive,
            **waiting,
        )
