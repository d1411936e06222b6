"""Compute rank-to-rank byte matrices of the operations of a replay plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from moetraffic.patterns.algorithms import collective_matrix
from moetraffic.trace.model import ALL_TO_ALL, Int64
from moetraffic.trace.trace import Trace

from .program import KINDS, Plan

_BLOCK_CELLS = 1 << 20

Matrices = Iterator[tuple[Int64, Int64, Int64]]
"""Blocks of operation indices ``[b]``, members ``[b, W]`` as ascending world ranks and
byte matrices ``[b, W, W]`` with senders as rows."""


class Scaled(Protocol):
    """Interface for rescaling the byte matrices of a group of ranks.

    Implemented by :class:`~moetraffic.replay.scale.rescaling.Scale`.
    """

    def matrices(self, group: int, wire: Int64, occurrences: Int64) -> Int64:
        """Convert byte matrices of a trace group to ranks and bytes of the replay."""
        ...


def operation_matrices(
    trace: Trace, plan: Plan, scale: Scaled | None = None
) -> Matrices:
    """Yield byte matrices of all operations of a plan, in blocks of one group."""
    yield from exchange_matrices(trace, plan, scale)
    yield from dense_matrices(plan)


def exchange_matrices(
    trace: Trace, plan: Plan, scale: Scaled | None = None
) -> Matrices:
    """Yield byte matrices of the all-to-all operations of a plan.

    Parameters
    ----------
    trace
        Trace of the plan.
    plan
        Plan of the replay.
    scale
        Converts ranks and bytes of the trace; None leaves them.
    """
    exchange = (plan.kind == KINDS.index(ALL_TO_ALL)) & (plan.occurrence >= 0)
    for number in np.unique(plan.group[exchange]).tolist():
        mine = np.flatnonzero(exchange & (plan.group == number))
        order = np.argsort(trace.groups[number].ranks)
        members = np.array(plan.groups[number], np.int64)
        step = max(1, _BLOCK_CELLS // max(len(order), len(members)) ** 2)
        for low in range(0, len(mine), step):
            at = mine[low : low + step]
            wire = trace.wire(plan.occurrence[at])[:, order[:, None], order]
            if scale is not None:
                wire = scale.matrices(number, wire, plan.occurrence[at])
            yield at, np.broadcast_to(members, (len(at), len(members))), wire


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
