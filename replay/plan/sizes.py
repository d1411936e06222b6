"""Compute the bytes that each kind of collective moves, as nccl-tests counts them.

With S as in :class:`~moetraffic.replay.plan.program.Plan` and W members, in bytes:

=============== ============== ================= ========== =======================
kind            on the network busiest link      largest    sent by a rank
=============== ============== ================= ========== =======================
all_reduce      2 (W-1) S      2 (W-1) S / W     S          an equal share
all_gather      W (W-1) S      (W-1) S           W S        an equal share
reduce_scatter  (W-1) S        (W-1) S / W       S          an equal share
broadcast       (W-1) S        S                 S          an equal share
reduce          (W-1) S        S                 S          an equal share
gather          (W-1) S        (W-1) S           W S        S, the receiver nothing
scatter         (W-1) S / W    (W-1) S / W       S          all of it the sender
send_recv       S              S                 S          all of it the sender
barrier         0              0                 0          nothing
=============== ============== ================= ========== =======================

The bytes on the network are those of a ring or a tree: no algorithm sends less.  The
bytes of the busiest link are nccl-tests' busbw multiplied by the time, and the largest
its algbw multiplied by the time.
A message from a rank to itself and a group of one use no network.

References
----------
NVIDIA, nccl-tests, doc/PERFORMANCE.md, "Bandwidth";
:mod:`moetraffic.patterns.algorithms`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from moetraffic.arrays import Int8, Int32, Int64
from moetraffic.errors import ReplayError
from moetraffic.patterns.algorithms import collective_matrix
from moetraffic.trace.model import ALL_TO_ALL
from moetraffic.trace.rescaling.rescaled_trace import at_sender
from moetraffic.trace.trace import Trace

from .operation_table import OperationTable
from .program import KINDS, Plan
from .selection import MESSAGE, blocks

_BLOCK_CELLS = 1 << 20  # members, or cells of matrices, that are read at a time
CUT = frozenset({"reduce_scatter", "scatter"})
"""Kinds of collectives whose size S must consist of W equal parts."""


def volumes(
    trace: Trace, occurrences: Int64
) -> Iterator[tuple[int, str, Int64, Int64]]:
    """Yield the input bytes of each member of dense operations, block by block.

    Parameters
    ----------
    occurrences
        ``[n]`` indices of operations, none of them an all-to-all.

    Yields
    ------
    group, kind, at, nbytes
        Index of the trace's group; the kind; indices into ``occurrences``, ``[b]``;
        ``[b, W]`` int64 bytes of the replay's members, ranks ascending.
    """
    group = np.array([s.group for s in trace.sites], np.int64)
    for places in blocks(trace, occurrences, _BLOCK_CELLS):
        sites = trace.occurrences.site[occurrences[places]]
        kinds = np.array([KINDS.index(trace.sites[s].operation) for s in sites])
        key = group[sites] * len(KINDS) + kinds
        for one in np.unique(key).tolist():
            number, kind = one // len(KINDS), KINDS[one % len(KINDS)]
            at = places[key == one]
            if kind == "barrier":
                width = len(trace.groups[number].ranks)
                nbytes = np.zeros((len(at), width), np.int64)
            else:
                nbytes = trace.volume(occurrences[at])
            if kind == MESSAGE:
                nbytes = at_sender(trace, occurrences[at], nbytes)
            nbytes = nbytes[:, np.argsort(trace.groups[number].ranks)]
            yield number, kind, at, nbytes


def sizes(kind: str, nbytes: Int64) -> Int64:
    """Compute the size S of operations, ``[b]``, from input bytes ``[b, W]``."""
    most: Int64 = nbytes.max(axis=1, initial=0)
    if kind not in CUT:
        return most
    members = max(nbytes.shape[1], 1)
    cut: Int64 = -(-most // members) * members
    return cut


def traffic_bytes(kind: Int8, size: Int64, width: Int64, alone: Int64) -> Int64:
    """Compute network, busiest-link and largest bytes of dense operations, ``[3, n]``.

    Parameters
    ----------
    kind
        ``[n]`` index into KINDS.
    size
        ``[n]`` size S, in bytes.
    width
        ``[n]`` number W of group members.
    alone
        ``[n]`` whether it is a message of a rank to itself.
    """
    out = np.zeros((3, len(kind)), np.int64)
    for number, name in enumerate(KINDS):
        at = np.flatnonzero(kind == number)
        s, w = size[at], width[at]
        if name == "all_reduce":
            out[:, at] = 2 * (w - 1) * s, -(-2 * (w - 1) * s // w), s
        elif name == "all_gather":
            out[:, at] = w * (w - 1) * s, (w - 1) * s, w * s
        elif name == "reduce_scatter":
            out[:, at] = (w - 1) * s, (w - 1) * s // w, s
        elif name in ("broadcast", "reduce"):
            out[:, at] = (w - 1) * s, np.where(w > 1, s, 0), s
        elif name == "gather":
            out[:, at] = (w - 1) * s, (w - 1) * s, w * s
        elif name == "scatter":
            out[:, at] = (w - 1) * s // w, (w - 1) * s // w, s
        elif name == MESSAGE:
            there = np.where(alone[at], 0, s)
            out[:, at] = there, there, s
    return out


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
