"""Compute rank-to-rank byte matrices of the operations of a replay plan."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from moetraffic.errors import ReplayError
from moetraffic.patterns.algorithms import collective_matrix
from moetraffic.replay.scale.rescaling import Scale
from moetraffic.trace.model import ALL_TO_ALL, Int64
from moetraffic.trace.trace import Trace

from .program import KINDS, Plan
from .program_builder import OperationTable

_BLOCK_CELLS = 1 << 20  # of matrices read at a time

Matrices = Iterator[tuple[Int64, Int64, Int64]]
"""Blocks of operation indices ``[b]``, members ``[b, W]`` as ascending world ranks and
byte matrices ``[b, W, W]`` with senders as rows; the W of a block are equal."""


def operation_matrices(
    trace: Trace, plan: Plan, scale: Scale | None = None
) -> Matrices:
    """Yield byte matrices of all operations of a plan, in blocks."""
    yield from exchange_matrices(trace, plan, scale)
    yield from dense_matrices(plan)


def exchange_matrices(
    trace: Trace, plan: Plan | OperationTable, scale: Scale | None
) -> Matrices:
    """Yield byte matrices of the all-to-all operations of a plan.

    Parameters
    ----------
    trace
        Trace of the plan.
    plan
        Operations of the replay.
    scale
        Converts ranks and bytes of the trace; None leaves them.

    Raises
    ------
    ReplayError
        If bytes are negative.
    """
    ascending = [np.argsort(g.ranks) for g in trace.groups]
    width = np.array([len(g.ranks) for g in trace.groups], np.int64)
    exchange = (plan.kind == KINDS.index(ALL_TO_ALL)) & (plan.occurrence >= 0)
    own = np.where(plan.group < len(width), plan.group, 0)  # others are background
    # rescaling may give different sizes to groups of equal size
    key = width[own] if scale is None else own
    for one in np.unique(key[exchange]).tolist():
        same = np.flatnonzero(exchange & (key == one))
        size = one if scale is None else int(width[one])
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
            if scale is not None:
                wire = scale.matrices(one, wire, plan.occurrence[at])
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
