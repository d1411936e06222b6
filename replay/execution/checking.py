"""Run an operation once with telling bytes, and find out whether they arrived.

What a rank sends to one other is :mod:`.payload`'s for that pair; what it gives to all
(a broadcast, a gather, what is added up) is its own with itself as destination.  Sums
are of bytes, modulo 256: exact in any order.
"""

from __future__ import annotations

import numpy as np
import torch

from moetraffic.replay.backends.backend import Backend, Call, run
from moetraffic.trace.model import ALL_TO_ALL

from . import payload
from .binding import SUMS
from .buffers import held, load
from .payload import UInt8


def check(
    backend: Backend, call: Call, *, rank: int, members: tuple[int, ...], operation: int
) -> tuple[int, str] | None:
    """Run one operation, and compare what arrives.

    Parameters
    ----------
    backend
        Started.
    call
        The operation, with buffers of bytes; both are overwritten.
    rank
        This rank.
    members
        World ranks of the group.
    operation
        Number that all members know the operation by.

    Returns
    -------
    tuple or None
        The rank whose bytes are wrong, and what is wrong, in words; None if all are
        right.
    """
    fill(call, rank=rank, members=members, operation=operation)
    run(backend, call)
    return compare(call, rank=rank, members=members, operation=operation)


def fill(call: Call, *, rank: int, members: tuple[int, ...], operation: int) -> None:
    """Put what this rank sends into the buffers of an operation."""
    call.receive.view(torch.uint8).fill_(payload.UNTOUCHED)
    kind = call.kind
    if kind == ALL_TO_ALL:
        to, sizes = members, call.send_bytes
    elif kind == "scatter" and rank == call.sender:
        to, sizes = members, [len(call.send) // len(members)] * len(members)
    elif kind == "send_recv":
        to, sizes = (call.receiver,), [len(call.send)]
    else:
        to, sizes = (rank,), [len(call.send)]
    into = call.send
    if kind in ("all_reduce", "reduce") or (
        kind == "broadcast" and rank == call.sender
    ):
        into, sizes = call.receive, [len(call.receive)]
    if len(into):
        out = np.empty(sum(sizes), np.uint8)
        payload.fill(
            out, source=rank, destinations=to, operation=operation, sizes=sizes
        )
        load(into, out)


def compare(
    call: Call, *, rank: int, members: tuple[int, ...], operation: int
) -> tuple[int, str] | None:
    """Whose bytes are wrong in what arrived, and how; None if all are right."""
    kind, size = call.kind, len(call.receive)
    if not size or (kind == "reduce" and rank != call.receiver):
        return None
    if kind in SUMS:
        first = members.index(rank) * size if kind == "reduce_scatter" else 0
        return _compare_sum(held(call.receive), members, operation, first)
    destination: int | None = rank
    sources, sizes = members, call.receive_bytes
    if kind in ("broadcast", "scatter", "send_recv"):
        sources, sizes = (call.sender,), [size]
        destination = None if kind == "broadcast" else rank
    elif kind != ALL_TO_ALL:
        destination, sizes = None, [size // len(members)] * len(members)
    wrong = payload.verify(
        held(call.receive),
        destination=destination,
        sources=sources,
        operation=operation,
        sizes=sizes,
    )
    return None if wrong is None else (wrong.source, str(wrong))


def _compare_sum(
    found: UInt8, members: tuple[int, ...], operation: int, first: int
) -> tuple[int, str] | None:
    want = payload.summed(
        sources=members, operation=operation, first=first, size=len(found)
    )
    differ = np.flatnonzero(want != found)
    if not len(differ):
        return None
    at = int(differ[0])
    # a sum does not tell who was wrong: the first of those who added
    return members[0], (
        f"byte {at} of the sum of {len(members)} ranks is 0x{int(found[at]):02x} "
        f"instead of 0x{int(want[at]):02x}"
    )
