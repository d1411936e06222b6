"""Compute sizes, buffers and byte matrices of the operations of a plan."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from moetraffic.arrays import Int32, Int64
from moetraffic.errors import ReplayError
from moetraffic.patterns.collectives import collective_matrix
from moetraffic.trace.model import ALL_TO_ALL
from moetraffic.trace.trace import Trace

from .operation_table import OperationTable
from .program import KINDS, Plan
from .selection import MESSAGE, blocks

_BLOCK_CELLS = 1 << 20  # members, or cells of matrices, that are read at a time


def volumes(trace: Trace, occurrences: Int64) -> Iterator[tuple[str, Int64, Int64]]:
    """Yield the input bytes of each member of dense operations, block by block.

    These are the kind, indices ``[b]`` into ``occurrences``, and bytes ``[b, W]``.
    """
    for places in blocks(trace, occurrences, _BLOCK_CELLS):
        sites = trace.occurrences.site[occurrences[places]]
        kinds = np.array([trace.sites[s].operation for s in sites])
        for kind in np.unique(kinds).tolist():
            at = places[kinds == kind]
            nbytes = np.zeros((len(at), trace.size(int(occurrences[at[0]]))), np.int64)
            if kind != "barrier":
                nbytes = trace.volume(occurrences[at])
            yield kind, at, nbytes


def buffers(
    kind: str, size: Int64, width: Int64, rank: int, sender: Int32, receiver: Int32
) -> tuple[Int64, Int64]:
    """Compute send and receive buffer bytes of a rank, each ``[n]``, for one kind.

    See :class:`~moetraffic.replay.backends.backend.Call`.
    """
    nothing = np.zeros_like(size)
    if kind in ("all_reduce", "reduce", "broadcast"):
        return nothing, size
    if kind == "all_gather":
        return size, width * size
    if kind == "gather":
        return size, np.where(receiver == rank, width * size, 0)
    if kind == "reduce_scatter":
        return size, size // np.maximum(width, 1)
    if kind == "scatter":
        return np.where(sender == rank, size, 0), size // np.maximum(width, 1)
    if kind == MESSAGE:
        send = np.where(sender == rank, size, 0)
        return send, np.where(receiver == rank, size, 0)
    return nothing, nothing


# ---- byte matrices ---------------------------------------------------------------


Matrices = Iterator[tuple[Int64, Int64, Int64]]
"""Blocks of operation indices ``[b]``, members ``[b, W]`` as ascending world ranks and
byte matrices ``[b, W, W]`` with senders as rows; the W of a block are equal."""


def operation_matrices(trace: Trace, plan: Plan) -> Matrices:
    """Yield byte matrices of all operations of a plan, in blocks."""
    yield from exchange_matrices(trace, plan)
    yield from dense_matrices(plan)


def exchange_matrices(trace: Trace, plan: Plan | OperationTable) -> Matrices:
    """Yield byte matrices of the all-to-all operations of a plan.

    Raises
    ------
    ReplayError
        If bytes are negative.
    """
    ascending = [np.argsort(g.ranks) for g in trace.groups]
    width = np.array([len(g.ranks) for g in trace.groups], np.int64)
    exchange = (plan.kind == KINDS.index(ALL_TO_ALL)) & (plan.occurrence >= 0)
    # other operations may be of groups that are not the trace's
    size_of = np.where(exchange, width[np.where(exchange, plan.group, 0)], 0)
    for size in np.unique(size_of[exchange]).tolist():
        same = np.flatnonzero(size_of == size)
        step = max(1, _BLOCK_CELLS // size**2)
        for begin in range(0, len(same), step):
            at = same[begin : begin + step]
            group = plan.group[at]
            wire = trace.wire(plan.occurrence[at])
            if wire.min() < 0:
                raise ReplayError(
                    "bytes of an all-to-all cannot be negative, but the smallest in "
                    f"{trace.name} is {int(wire.min())}: capture the run again"
                )
            into = np.array([ascending[g] for g in group], np.int64)
            wire = np.take_along_axis(wire, into[:, :, None], axis=1)
            wire = np.take_along_axis(wire, into[:, None, :], axis=2)
            yield at, np.array([plan.groups[g] for g in group], np.int64), wire


def dense_matrices(plan: Plan) -> Matrices:
    """Yield byte matrices of dense operations, computed once for identical operations.

    Collectives use the ring algorithm; messages go from sender to receiver.
    """
    other = np.flatnonzero(plan.kind != KINDS.index(ALL_TO_ALL))
    columns = ("kind", "group", "size", "sender", "receiver")
    keys = np.stack([getattr(plan, n)[other].astype(np.int64) for n in columns], axis=1)
    every, which = np.unique(keys, axis=0, return_inverse=True)
    for number, (kind, group, size, sender, receiver) in enumerate(every.tolist()):
        mine = other[which.reshape(-1) == number]
        members = np.array(plan.groups[group], np.int64)
        matrix = _dense(KINDS[kind], members, size, sender, receiver)
        step = max(1, _BLOCK_CELLS // len(members) ** 2)
        for low in range(0, len(mine), step):
            at = mine[low : low + step]
            yield (
                at,
                np.broadcast_to(members, (len(at), len(members))),
                np.broadcast_to(matrix, (len(at), *matrix.shape)),
            )


def _dense(kind: str, members: Int64, size: int, sender: int, receiver: int) -> Int64:
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
