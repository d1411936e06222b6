"""Program of one rank: issue order, dependencies, gaps and bytes of its operations.

- Operations of a stream are issued in the order of the program, each after the previous
  one has ended, unless :attr:`Program.waits` is false for the previous one.
- An operation is issued after the operation in :attr:`Program.after`, of any stream,
  has ended: in the capture, the last to end before the operation was issued.
- Messages of a batch follow each other, belong to one group and one iteration, and each
  was issued before any of them had ended; a CUDA device issues them together, when the
  last of them is due.
- No operation of an iteration is issued before all of the previous one have ended.

Operations overlap except for these rules.  Where a captured time is unknown, all ranks
follow one common order, and gaps are unknown.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Bool, Float64, Int8, Int32, Int64
from moetraffic.trace.model import UNKNOWN_TIME
from moetraffic.trace.order import common_order
from moetraffic.trace.trace import Trace

from .background import follow, levels
from .matrices import buffers, exchange_matrices
from .operations import BLOCK_CELLS, KINDS, MESSAGE, Plan, blocks, takes_part

UNKNOWN_GAP = -1
"""Value of a gap or due time that is unknown in the trace."""

_LATE = np.iinfo(np.int64).max


@dataclass(frozen=True, kw_only=True)
class Program:
    """The N operations of one rank in issue order, with bytes and dependencies."""

    rank: int
    operation: Int64  # [N] index into the plan's operations
    group: Int32  # [N] index into the plan's groups
    stream: Int8  # [N] index into the plan's streams
    kind: Int8  # [N] index into KINDS
    send_size: Int64  # [N] bytes of this rank's send buffer
    receive_size: Int64  # [N] bytes of its receive buffer; see matrices.buffers
    first: Int64  # [N + 1] where an all-to-all's bytes begin in the two arrays below
    send_bytes: Int64  # [first[N]] to each member of the group, in ascending order
    receive_bytes: Int64  # [first[N]] from each member
    waits: Bool  # [N] whether the stream's next operation waits for this one's end
    after: Int64  # [N] index in the program of the operation to wait for; -1: none
    batch: Int64  # [N] index of the first of the messages that may be launched as one
    gap_ns: Int64  # [N] captured, from the end of ``after`` to this issue; -1 unknown
    due_ns: Int64  # [N] captured issue, from the plan's first; -1 unknown

    def __len__(self) -> int:
        return len(self.operation)

    def sends(self, n: int) -> Int64:
        """Return bytes sent to each group member in the n-th operation, ``[W]``.

        Empty for operations other than all-to-alls.
        """
        return self.send_bytes[self.first[n] : self.first[n + 1]]

    def receives(self, n: int) -> Int64:
        """Return bytes received from each member in the n-th operation, ``[W]``."""
        return self.receive_bytes[self.first[n] : self.first[n + 1]]

    @property
    def chained(self) -> bool:
        """Whether each operation is issued only after the previous one has ended.

        True for a program of one stream, and where no two operations overlapped in
        the capture.
        """
        if (self.stream == self.stream[:1]).all() and self.waits.all():
            return True
        return bool((self.after == np.arange(len(self)) - 1).all())

    def stream_bytes(self, stream: int) -> tuple[int, int]:
        """Return the largest send and receive buffer bytes of a stream's operations."""
        rows = self.stream == stream
        return (
            int(self.send_size[rows].max(initial=0)),
            int(self.receive_size[rows].max(initial=0)),
        )

    @property
    def buffer_bytes(self) -> tuple[int, int]:
        """Total bytes of the send buffers and of the receive buffers of all streams.

        Operations of a stream share two buffers; streams overlap, so each has its
        own.
        """
        sizes = [self.stream_bytes(s) for s in np.unique(self.stream).tolist()]
        return sum(s for s, _ in sizes), sum(r for _, r in sizes)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Recorded times of one rank's operations, ns of its ``time.monotonic_ns``."""

    operation: Int64  # [N] index into the plan's operations
    issue: Int64  # [N] the call
    end: Int64  # [N] end of the transfer
    due: Int64  # [N] scheduled issue; UNKNOWN_TIME if issued as soon as possible

    @property
    def start(self) -> Int64:
        """Beginning of the transfer, ``[N]``: with the call."""
        return self.issue

    def columns(self) -> Int64:
        """Return all of it as ``[N, 4]``."""
        return np.stack([self.operation, self.issue, self.end, self.due], axis=1)

    @classmethod
    def of(cls, columns: Int64) -> Timing:
        """Return the timing that :meth:`columns` gave."""
        operation, issue, end, due = columns.T
        return cls(operation=operation, issue=issue, end=end, due=due)


def program(trace: Trace, plan: Plan, rank: int) -> Program:
    """Make the program of one rank; see :func:`programs`."""
    return programs(trace, plan, (rank,))[rank]


def programs(trace: Trace, plan: Plan, ranks: Collection[int]) -> dict[int, Program]:
    """Make the programs of some ranks.

    ``trace`` is the one of the plan, of which times and byte matrices are read once.
    """
    captured = int(np.count_nonzero(plan.occurrence >= 0))
    times = _times(trace, plan.occurrence[:captured], ranks)
    common = None
    if plan.in_common and ranks:
        common = common_order(trace, plan.occurrence[:captured])
    level = (
        levels(plan, common) if common is not None and captured < len(plan) else None
    )
    orders = {rank: _order(plan, rank, times[rank][0], common, level) for rank in ranks}
    square = plan.kind == 0
    width = plan.width
    first, place, splits = {}, {}, {}
    for rank, order in orders.items():
        cells = np.where(square[order], width[order], 0)
        first[rank] = np.append(0, np.cumsum(cells)).astype(np.int64)
        place[rank] = np.full(len(plan), -1, np.int64)
        place[rank][order] = np.arange(len(order))
        splits[rank] = np.zeros((2, first[rank][-1]), np.int64)
    for rows, members, wire in exchange_matrices(trace, plan) if ranks else ():
        for rank in ranks:
            row, member = np.nonzero(members == rank)
            start = first[rank][place[rank][rows[row]]]
            into = start[:, None] + np.arange(wire.shape[1])
            splits[rank][0, into] = wire[row, member]
            splits[rank][1, into] = wire[row, :, member]
    return {
        rank: _program(plan, rank, order, first[rank], splits[rank], times[rank])
        for rank, order in orders.items()
    }


def _times(
    trace: Trace, occurrences: Int64, ranks: Collection[int]
) -> dict[int, Int64]:
    """Read issue and end of each rank's operations, ``[2, n]`` ns of rank 0's clock."""
    shape = 2, len(occurrences)
    times = {rank: np.full(shape, UNKNOWN_TIME, np.int64) for rank in ranks}
    for rows in blocks(trace, occurrences, BLOCK_CELLS) if ranks else ():
        calls = occurrences[rows]
        members = np.where(takes_part(trace, calls), trace.members(calls), -1)
        issue, _, end = trace.times(calls)
        for rank in ranks:
            row, column = np.nonzero(members == rank)
            times[rank][0, rows[row]] = issue[row, column]
            times[rank][1, rows[row]] = end[row, column]
    return times


def _order(
    plan: Plan, rank: int, issue: Int64, common: Int64 | None, level: Float64 | None
) -> Int64:
    """Sort the operations of a rank into issue order, ``[N]``."""
    own = np.flatnonzero(plan.of_rank(rank))
    if common is None:
        return own[np.lexsort((issue[own], plan.iteration[own]))]
    # operations of the background come after captured ones of the same level
    position = np.append(common, np.arange(len(common), len(plan)))[own]
    if level is None:
        return own[np.argsort(position)]
    return own[np.lexsort((position, level[own], plan.iteration[own]))]


def _program(
    plan: Plan, rank: int, order: Int64, first: Int64, splits: Int64, times: Int64
) -> Program:
    """Build a program from its order, bytes ``[2, cells]`` and times ``[2, n]``."""
    kind, stream, group = plan.kind[order], plan.stream[order], plan.group[order]
    sizes = np.diff(np.pad(splits.cumsum(axis=1), ((0, 0), (1, 0)))[:, first], axis=1)
    for number in set(np.unique(kind).tolist()) - {0}:
        rows = np.flatnonzero(kind == number)
        calls = order[rows]
        sizes[:, rows] = buffers(
            KINDS[number],
            plan.size[calls],
            plan.width[calls],
            rank,
            plan.sender[calls],
            plan.receiver[calls],
        )
    message = kind == KINDS.index(MESSAGE)
    iteration, added = plan.iteration[order], plan.occurrence[order] < 0
    issue, end = (np.append(t, np.full(len(plan), UNKNOWN_TIME))[order] for t in times)
    stamped = ~added & (issue != UNKNOWN_TIME) & (end != UNKNOWN_TIME)
    timed = bool(len(order)) and bool(stamped[~added].all())
    after = np.full(len(order), -1, np.int64)
    gap, due = np.full((2, len(order)), UNKNOWN_GAP, np.int64)
    if timed:
        rows = np.flatnonzero(stamped)
        after[rows] = _ended_before(rows, issue[rows], end[rows])
        since = np.where(after >= 0, end[after], issue[rows].min(initial=_LATE))
        gap[rows] = np.maximum(issue[rows] - since[rows], 0)
        due[rows] = issue[rows] - plan.begin_ns
    waits = np.ones(len(order), bool)
    for number in np.unique(stream):
        rows = np.flatnonzero(stream == number)
        now, then = rows[:-1], rows[1:]
        free = message[now] | (group[now] != group[then])
        overlapped = timed & stamped[now] & stamped[then] & (issue[then] < end[now])
        waits[now] = ~(overlapped & free)
    if not timed:  # in a common order, only receivers may wait
        waits &= ~(message & (plan.sender[order] == rank))
    joins = message[:-1] & message[1:] & ~waits[:-1]
    joins &= (group[:-1] == group[1:]) & (iteration[:-1] == iteration[1:])
    batch = _batches(np.flatnonzero(joins), after, issue, end)
    if added.any():
        after = follow(plan, order, after)
        gap[added] = UNKNOWN_GAP
    return Program(
        rank=rank,
        operation=order,
        group=group,
        stream=stream,
        kind=kind,
        send_size=sizes[0],
        receive_size=sizes[1],
        first=first,
        send_bytes=splits[0],
        receive_bytes=splits[1],
        waits=waits,
        after=after,
        batch=batch,
        gap_ns=gap,
        due_ns=due,
    )


def _batches(joins: Int64, after: Int64, issue: Int64, end: Int64) -> Int64:
    """Find the first message of each message's batch, ``[N]``.

    ``joins`` are the operations that the next one may join; it does if it was issued
    before any of the batch had ended, and waits for none of them.  Where ranks follow
    one order, batches cause no deadlock: launching an operation earlier delays no
    other, and a batch ends no later than its last operation would.
    """
    first = np.arange(len(after))
    earliest = np.where(end == UNKNOWN_TIME, _LATE, end)  # end in the batch so far
    for n in joins.tolist():
        if after[n + 1] < first[n] and issue[n + 1] < earliest[n]:
            first[n + 1] = first[n]
            earliest[n + 1] = min(earliest[n], earliest[n + 1])
    return first


def _ended_before(rows: Int64, issue: Int64, end: Int64) -> Int64:
    """Find the operation that ended last before each issue, ``[m]``; -1 if none."""
    by_end = np.argsort(end, kind="stable")
    last = np.searchsorted(end[by_end], issue, side="right") - 1
    ended = np.where(last >= 0, rows[by_end[last]], -1)
    # operations later in the program, or at the same instant, are not waited for
    before = np.append(-1, rows[:-1])[: len(rows)]
    return np.where(ended >= rows, before, ended)
