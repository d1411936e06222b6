"""Check, before any group of the backend is made, that ranks agree on all sizes.

gloo aborts the receiver of too many bytes, and keeps old ones where too few arrive.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Int64
from moetraffic.launch.board import Cause

from .agree import Array, Meeting
from .failure import RankError
from .plan.operations import Plan
from .plan.program import Program


def check_sizes(meeting: Meeting, plan: Plan, program: Program) -> None:
    """Check that members expect the sizes that others send, in the same order.

    The sum over all ranks of random weights of (operation, its place in the group's
    order, sender, receiver) times bytes sent minus expected is zero if they do; only
    if it is not, the operation and its sizes are compared.

    Raises
    ------
    RankError
        Naming the sender and the first operation whose size its receiver does not
        expect.
    """
    rows = np.flatnonzero(np.diff(program.first))
    sums = _unbalanced(plan, program, rows)
    totals = meeting.gather("sizes", sums.sum(keepdims=True))
    if not int(meeting.answer("sizes", lambda: str(np.concatenate(totals).sum()))):
        return
    table = np.stack([program.operation[rows].astype(np.uint64), sums], axis=1)
    by_rank = meeting.gather("sizes by operation", table)

    def find() -> str:
        operation, part = np.concatenate(by_rank).T
        total = np.zeros(int(operation.max()) + 1, np.uint64)
        np.add.at(total, operation.astype(np.int64), part)
        wrong = np.flatnonzero(total)
        return str(plan.order(wrong)[0])

    operation = int(meeting.answer("sizes by operation", find))
    own_sizes = np.zeros((0, 2), np.int64)
    for n in np.flatnonzero(program.operation == operation).tolist():
        own_sizes = np.stack([program.sends(n), program.receives(n)], axis=1)
    panels = meeting.gather("sizes of an operation", own_sizes.astype(np.int64))

    def compare() -> str:
        panel = np.stack([panel for panel in panels if len(panel)])
        members = plan.groups[int(plan.group[operation])]
        wrong = np.argwhere(panel[:, :, 0] != panel[:, :, 1].T)
        source, target = wrong[0] if len(wrong) else (0, 0)
        reason = "has the operations of its group in another order than other members"
        if len(wrong):
            reason = (
                f"sends {panel[source, target, 0]} bytes to rank "
                f"{members[target]}, whose plan expects {panel[target, source, 1]}"
            )
        raise RankError(
            f"{reason}: give every rank the same trace and the same version of "
            "moetraffic",
            rank=members[source],
            operation=plan.name(operation),
            cause=Cause.MISMATCH,
        )

    meeting.answer("sizes of an operation", compare)


def _unbalanced(plan: Plan, program: Program, rows: Int64) -> npt.NDArray[np.uint64]:
    """Sum weighted bytes sent minus expected, of a rank's all-to-alls ``rows`` [n]."""
    width = np.diff(program.first)[rows]
    peer = np.concatenate(
        [np.zeros(0, np.int64), *(plan.groups[g] for g in program.group[rows].tolist())]
    )
    place = np.zeros(len(rows), np.int64)  # in the order of the group
    for group in np.unique(program.group[rows]):
        members = program.group[rows] == group
        place[members] = np.arange(members.sum())
    call = np.repeat(_mixed(_mixed(program.operation[rows]) + place), width)
    rank = np.full(len(peer), program.rank)
    entry = np.repeat(program.first[rows] - np.cumsum(width) + width, width)
    entry += np.arange(len(peer))
    sent, expected = (
        _mixed(_mixed(call + a.astype(np.uint64)) + b.astype(np.uint64))
        * size[entry].astype(np.uint64)
        for a, b, size in (
            (rank, peer, program.send_bytes),
            (peer, rank, program.receive_bytes),
        )
    )
    if not len(rows):
        return np.zeros(0, np.uint64)
    return np.add.reduceat(sent - expected, np.cumsum(width) - width)


def _mixed(values: Array) -> npt.NDArray[np.uint64]:
    """Mix 64-bit integers (the finalizer of SplitMix64, Steele et al. 2014)."""
    x = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
