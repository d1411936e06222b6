"""Byte matrices and buffers of the operations of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from moetraffic.arrays import Int32, Int64
from moetraffic.errors import ReplayError
from moetraffic.trace.trace import Trace

if TYPE_CHECKING:
    from .operations import Plan

BLOCK_CELLS = 1 << 20
"""Cells of matrices that are read at a time."""

Matrices = Iterator[tuple[Int64, Int64, Int64]]
"""Blocks of operation indices ``[b]``, members ``[b, W]`` as ascending world ranks and
byte matrices ``[b, W, W]`` with senders as rows; the W of a block are equal."""


def buffers(
    kind: str, size: Int64, width: Int64, rank: int, sender: Int32, receiver: Int32
) -> tuple[Int64, Int64]:
    """Compute send and receive buffer bytes of a rank, each ``[n]``, for one kind.

    With S as in :class:`~moetraffic.replay.plan.operations.Plan` and W members:

    ============== ========================== ==========================
    kind           send                       receive
    ============== ========================== ==========================
    all_reduce     0                          S: initially its own data
    reduce         0                          S: initially its own data
    broadcast      0                          S: on the sender, its data
    all_gather     S                          W S
    gather         S                          W S at the receiver, else 0
    reduce_scatter S                          S / W
    scatter        S at the sender, else 0    S / W
    send_recv      S at the sender, else 0    S at the receiver, else 0
    barrier        0                          0
    ============== ========================== ==========================
    """
    nothing = np.zeros_like(size)
    split = size // np.maximum(width, 1)
    at_sender = np.where(sender == rank, size, 0)
    table = {
        "all_reduce": (nothing, size),
        "reduce": (nothing, size),
        "broadcast": (nothing, size),
        "all_gather": (size, width * size),
        "gather": (size, np.where(receiver == rank, width * size, 0)),
        "reduce_scatter": (size, split),
        "scatter": (at_sender, split),
        "send_recv": (at_sender, np.where(receiver == rank, size, 0)),
    }
    return table.get(kind, (nothing, nothing))


def operation_matrices(trace: Trace, plan: Plan) -> Matrices:
    """Yield byte matrices of all operations of a plan, in blocks."""
    yield from exchange_matrices(trace, plan)
    yield from dense_matrices(plan)


def exchange_matrices(trace: Trace, plan: Plan) -> Matrices:
    """Yield byte matrices of the all-to-all operations of a plan."""
    ascending = [np.argsort(g.ranks) for g in trace.groups]
    exchange = np.flatnonzero((plan.kind == 0) & (plan.occurrence >= 0))
    width = plan.width[exchange]
    for size in np.unique(width).tolist():
        same = exchange[width == size]
        step = max(1, BLOCK_CELLS // size**2)
        for begin in range(0, len(same), step):
            rows = same[begin : begin + step]
            group = plan.group[rows]
            wire = trace.wire(plan.occurrence[rows])
            if wire.min() < 0:
                raise ReplayError(
                    "bytes of an all-to-all cannot be negative, but the smallest in "
                    f"{trace.name} is {int(wire.min())}: capture the run again"
                )
            into = np.array([ascending[g] for g in group], np.int64)
            if (into != np.arange(size)).any():
                wire = np.take_along_axis(wire, into[:, :, None], axis=1)
                wire = np.take_along_axis(wire, into[:, None, :], axis=2)
            members = np.array([plan.groups[g] for g in group], np.int64)
            yield rows, members, np.ascontiguousarray(wire)


def dense_matrices(plan: Plan) -> Matrices:
    """Yield byte matrices of dense operations, computed once for identical operations.

    Collectives use the ring algorithm; messages go from sender to receiver.
    """
    other = np.flatnonzero(plan.kind != 0)
    columns = (plan.kind, plan.group, plan.size, plan.sender, plan.receiver)
    keys = np.stack([c[other].astype(np.int64) for c in columns], axis=1)
    unique, which = np.unique(keys, axis=0, return_inverse=True)
    same = split_by(which.reshape(-1), len(unique))
    for (_, group, size, sender, receiver), places in zip(
        unique.tolist(), same, strict=True
    ):
        rows = other[places]
        members = np.array(plan.groups[group], np.int64)
        operation = plan.sites[plan.site[rows[0]]].operation
        matrix = _dense(operation, members, size, sender, receiver)
        step = max(1, BLOCK_CELLS // len(members) ** 2)
        for low in range(0, len(rows), step):
            block = rows[low : low + step]
            yield (
                block,
                np.broadcast_to(members, (len(block), len(members))),
                np.broadcast_to(matrix, (len(block), *matrix.shape)),
            )


def split_by(number: Int64, count: int) -> list[Int64]:
    """Split indices by a number below ``count``; ascending in each list."""
    order = np.argsort(number, kind="stable")
    edges = np.searchsorted(number[order], np.arange(1, count))
    return np.split(order, edges) if count else []


def _dense(kind: str, members: Int64, size: int, sender: int, receiver: int) -> Int64:
    from moetraffic.patterns.collectives import collective_matrix

    if kind == "send_recv":
        matrix = np.zeros((len(members), len(members)), np.int64)
        source, destination = np.searchsorted(members, [sender, receiver]).tolist()
        matrix[source, destination] = size
        return matrix
    root = max(sender, receiver)
    return collective_matrix(
        kind,
        np.full(len(members), size, np.int64),
        "ring",
        root=int(np.searchsorted(members, root)) if root >= 0 else 0,
    )
