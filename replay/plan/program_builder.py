"""Build the program of one rank from the columns of a replay plan."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from moetraffic.replay.scratch_file import scratch_array
from moetraffic.trace.model import ALL_TO_ALL, Bool, Int32, Int64

from .issue_order import IssueOrder, dependencies, rank_order
from .program import KINDS, Int8, Program
from .selection import MESSAGE
from .sizes import buffers

_SQUARE = KINDS.index(ALL_TO_ALL)


class OperationTable(Protocol):
    """Columns of a replay plan that a rank's program is built from, n operations."""

    captured: int  # number of operations of the trace; the others are background
    iteration: Int64
    kind: Int8
    group: Int32
    stream: Int8
    sender: Int32
    receiver: Int32
    width: Int64  # ranks W of the group
    size: Int64

    def of_rank(self, rank: int) -> Bool:
        """Mask of the operations in which a rank takes part, ``[n]`` bool."""
        ...


class ProgramBuilder:
    """Builder of one rank's replay program; all-to-all bytes are added in blocks.

    Parameters
    ----------
    rank
        A rank of the replay.
    table
        Columns of the plan; sizes may still be missing.
    times
        Captured issue times.
    """

    def __init__(self, rank: int, table: OperationTable, times: IssueOrder) -> None:
        mine = np.flatnonzero(table.of_rank(rank))
        captured = mine[mine < table.captured]
        order = np.concatenate(
            [
                rank_order(times, rank, captured, table.iteration),
                mine[mine >= table.captured],
            ]
        )
        # background traffic comes last in its iteration
        order = order[np.argsort(table.iteration[order], kind="stable")]
        self._rank = rank
        self._operation = order
        self._square = table.kind[order] == _SQUARE
        cells = np.where(self._square, table.width[order], 0)
        self._first = np.concatenate([[0], np.cumsum(cells)]).astype(np.int64)
        self._place = np.full(len(table.kind), -1, np.int64)
        self._place[order] = np.arange(len(order))
        self._send = scratch_array(int(self._first[-1]), np.int64)
        self._receive = scratch_array(int(self._first[-1]), np.int64)
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
        waits = dependencies(
            self._times,
            rank,
            order,
            stream=table.stream[order],
            group=table.group[order],
            message=message,
            sent=message & (table.sender[order] == rank),
        )
        return Program(
            rank=rank,
            operation=order,
            group=table.group[order],
            stream=table.stream[order],
            kind=kind,
            send_size=self._sizes[0],
            receive_size=self._sizes[1],
            first=self._first,
            send_bytes=self._send,
            receive_bytes=self._receive,
            waits=waits.waits,
            after=waits.after,
            gap_ns=waits.gap_ns,
            due_ns=waits.due_ns,
        )
