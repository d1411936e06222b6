"""Run an operation once with known bytes and verify the received bytes.

Bytes for one other rank are the :mod:`.payload` of that pair; bytes for all ranks (in a
broadcast, a gather, a reduction) are the sender's payload with itself as destination.
Sums are of bytes, modulo 256: exact in any order.
"""

from __future__ import annotations

import numpy as np
import torch

from moetraffic.replay.backends.backend import Backend, Call, run
from moetraffic.trace.model import ALL_TO_ALL

from . import payload
from .binding import REDUCTIONS


def check(
    backend: Backend, call: Call, *, rank: int, members: tuple[int, ...], operation: int
) -> tuple[int, str] | None:
    """Run one operation and verify the received bytes.

    Parameters
    ----------
    backend
        Backend, already started.
    call
        The operation, with buffers of bytes; both are overwritten.
    rank
        Rank of this process.
    members
        World ranks of the group.
    operation
        Number of the operation, the same on all members.

    Returns
    -------
    tuple or None
        The rank whose bytes are wrong, and a description; None if all are right.
    """
    fill(call, rank=rank, members=members, operation=operation)
    run(backend, call)
    return compare(call, rank=rank, members=members, operation=operation)


def fill(call: Call, *, rank: int, members: tuple[int, ...], operation: int) -> None:
    """Write the payload that this rank sends into the buffers of an operation."""
    call.receive.view(torch.uint8).fill_(payload.UNTOUCHED)
    kind = call.kind
    to: tuple[int, ...] = (rank,)
    sizes = [len(call.send)]
    if kind == ALL_TO_ALL:
        to, sizes = members, call.send_bytes
    elif kind == "scatter" and rank == call.sender:
        to, sizes = members, [len(call.send) // len(members)] * len(members)
    elif kind == "send_recv":
        to = (call.receiver,)
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
        into[: len(out)].copy_(torch.from_numpy(out))


def compare(
    call: Call, *, rank: int, members: tuple[int, ...], operation: int
) -> tuple[int, str] | None:
    """Find the rank whose bytes arrived wrong, with a description; None if none."""
    kind, size = call.kind, len(call.receive)
    if not size or (kind == "reduce" and rank != call.receiver):
        return None
    received = call.receive.cpu().numpy()
    if kind in REDUCTIONS:
        first = members.index(rank) * size if kind == "reduce_scatter" else 0
        return _compare_sum(received, members, operation, first)
    destination: int | None = rank
    sources, sizes = members, call.receive_bytes
    if kind in ("broadcast", "scatter", "send_recv"):
        sources, sizes = (call.sender,), [size]
        destination = None if kind == "broadcast" else rank
    elif kind != ALL_TO_ALL:
        destination, sizes = None, [size // len(members)] * len(members)
    wrong = payload.verify(
        received,
        destination=destination,
        sources=sources,
        operation=operation,
        sizes=sizes,
    )
    return None if wrong is None else (wrong.source, str(wrong))


def _compare_sum(
    found: payload.UInt8, members: tuple[int, ...], operation: int, first: int
) -> tuple[int, str] | None:
    want = payload.summed(
        sources=members, operation=operation, first=first, size=len(found)
    )
    differ = np.flatnonzero(want != found)
    if not len(differ):
        return None
    at = int(differ[0])
    # a sum does not show which member was wrong: name the first
    return members[0], (
        f"byte {at} of the sum of {len(members)} ranks is 0x{int(found[at]):02x} "
        f"instead of 0x{int(want[at]):02x}"
    )
