"""Payload bytes that identify sender, receiver, operation and offset; verification.

Each source rank has a table of P pseudo-random bytes, P prime.  Its bytes for a
destination in an operation are the table read in blocks of P from places that depend on
destination, operation and block:

    byte(s, d, k, o) = T_s[(d A + k B + (o div P) C + o mod P) mod P]

where d is s itself for bytes that are the same for all destinations.  For fixed d, the
places of P consecutive operations are distinct, since P is prime and does not divide B:
bytes left over from an earlier operation are never taken for the right ones.

Sums are of whole numbers: element i of a source is its i-th byte modulo m, where m is
so small that the sum over all members is exact in the element type, in any order.

All is computed in blocks of P on the device of the buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch

from moetraffic.launch.board import Cause, own

from .failure import RankError, backend_errors
from .plan.operations import KINDS, REDUCTIONS, Plan
from .plan.program import Program
from .transport import Bound

PERIOD = 65521
"""P, the largest prime below 2^16: tables of two periods stay in a core's cache."""

# A, B, C spread neighbors over the table: P times irrational numbers, rounded
_DESTINATION_STRIDE = 27140  # P (sqrt 2 - 1)
_OPERATION_STRIDE = 40494  # P (sqrt 5 - 1) / 2
_BLOCK_STRIDE = 47965  # P (sqrt 3 - 1)

UNTOUCHED = 0xA5
"""Value of a receive buffer's bytes before an operation."""

EXACT = {torch.bfloat16: 1 << 8, torch.float16: 1 << 11, torch.float32: 1 << 24}
"""Largest whole number up to which all are exact, of element types below 2^53."""

Buffers = tuple[torch.Tensor, torch.Tensor]


HOST = torch.device("cpu")


@lru_cache(maxsize=4096)
def table(source: int, device: torch.device = HOST) -> torch.Tensor:
    """Return two periods of a source rank's byte table, ``[2 P]`` uint8."""
    once = np.random.default_rng([0x6D6F65, source]).integers(
        0, 256, PERIOD, dtype=np.uint8
    )
    return torch.from_numpy(np.concatenate([once, once])).to(device)


def blocks(
    destination: int, operation: int, size: int, begin: int = 0
) -> Iterator[tuple[int, int, int]]:
    """Yield blocks of a message: (place in table, first offset, last offset + 1)."""
    for first in range(begin - begin % PERIOD, size, PERIOD):
        start = max(begin, first)
        yield place(destination, operation, start), start, min(first + PERIOD, size)


def place(destination: int, operation: int, offset: int) -> int:
    """Compute the index of a payload byte in the table of its source rank."""
    block, within = divmod(offset, PERIOD)
    return (
        destination * _DESTINATION_STRIDE
        + operation * _OPERATION_STRIDE
        + block * _BLOCK_STRIDE
        + within
    ) % PERIOD


def modulus(dtype: torch.dtype, members: int) -> int:
    """Return m for sums over members in an element type; 256 keeps whole bytes.

    Integers wrap around, which is exact; 0: no numbers are small enough.
    """
    if not dtype.is_floating_point:
        return 256
    most = EXACT.get(dtype, 1 << 53) // members
    return min(256, most + 1) if most >= 1 else 0


def verify(bound: Bound) -> None:
    """Run the operations once, in the order of all ranks, and check every byte.

    Raises
    ------
    RankError
        Naming the rank whose bytes did not arrive unchanged, or that failed.
    """
    plan, program, counter = bound.plan, bound.program, own().counter
    for done, n in enumerate(bound.common_order()):
        name = plan.name(int(program.operation[n]))
        counter[0] = 2 * done + 1
        with backend_errors(program.rank, name):
            send, receive = bound.buffers(n)
            fill(plan, program, n, (send, receive))
            own().note(done=done, within_s=bound.transport.timeout_s + 2)
            bound.transport.run(bound.bind(n))
            wrong = find_wrong(plan, program, n, receive)
        if wrong is not None:
            source, what = wrong
            raise RankError(
                f"sent bytes that did not arrive unchanged at rank {program.rank}, "
                f"{what}: check the network and the backend",
                rank=source,
                operation=name,
                cause=Cause.MISMATCH,
            )
        counter[0] = 2 * done + 2


def fill(plan: Plan, program: Program, n: int, buffers: Buffers) -> None:
    """Write what a rank sends in its n-th operation, and UNTOUCHED where it receives.

    ``buffers`` are those to send and to receive; of a sum, of its element type.
    """
    send, receive = buffers
    rank, operation = program.rank, int(program.operation[n])
    kind, members = KINDS[program.kind[n]], plan.groups[program.group[n]]
    sender = int(plan.sender[operation])
    receive.view(torch.uint8).fill_(UNTOUCHED)
    out, destinations, sizes = send, [rank], [len(send)]
    if kind == "all_to_all":
        destinations, sizes = list(members), program.sends(n).tolist()
    elif kind == "scatter" and rank == sender:
        destinations, sizes = list(members), [len(send) // len(members)] * len(members)
    elif kind == "send_recv":
        destinations = [int(plan.receiver[operation])]
    elif kind in ("all_reduce", "reduce") or (kind == "broadcast" and rank == sender):
        out, sizes = receive, [len(receive)]
    m = modulus(out.dtype, len(members)) if kind in REDUCTIONS else 256
    values_of_rank, begin = table(rank, out.device), 0
    for destination, size in zip(destinations, sizes, strict=True):
        for start, first, last in blocks(destination, operation, size):
            values = values_of_rank[start : start + last - first]
            into = out[begin + first : begin + last]
            into.copy_(values if m == 256 else values % m)
            own().alive()
        begin += size


def find_wrong(
    plan: Plan, program: Program, n: int, receive: torch.Tensor
) -> tuple[int, str] | None:
    """Find the rank whose bytes arrived wrong, with a description; None if none."""
    rank, operation = program.rank, int(program.operation[n])
    kind, members = KINDS[program.kind[n]], plan.groups[program.group[n]]
    size, receiver = len(receive), int(plan.receiver[operation])
    if not size or kind == "barrier" or (kind == "reduce" and rank != receiver):
        return None
    if kind in REDUCTIONS:
        first = members.index(rank) * size if kind == "reduce_scatter" else 0
        return _wrong_sum(receive, members, operation, first)
    sources, sizes = members, [size // len(members)] * len(members)
    if kind == "all_to_all":
        sizes = program.receives(n).tolist()
    elif kind in ("broadcast", "scatter", "send_recv"):
        sources, sizes = (int(plan.sender[operation]),), [size]
    alone = kind in ("all_to_all", "scatter", "send_recv")  # bytes for this rank
    begin = 0
    for source, length in zip(sources, sizes, strict=True):
        to, values = rank if alone else source, table(source, receive.device)
        for start, first, last in blocks(to, operation, length):
            want = values[start : start + last - first]
            have = receive[begin + first : begin + last]
            if not torch.equal(want, have):
                wrong = int((want != have).nonzero()[0].item())
                note = ": nothing was received there" * bool(
                    (have[wrong:] == UNTOUCHED).all()
                )
                return source, (
                    f"byte {first + wrong} of {length} is 0x{int(have[wrong]):02x} "
                    f"instead of 0x{int(want[wrong]):02x}{note}"
                )
            own().alive()
        begin += length
    return None


def _wrong_sum(
    receive: torch.Tensor,
    members: Sequence[int],
    operation: int,
    first: int,
) -> tuple[int, str] | None:
    """Compare sums over members from an element on; names the first member."""
    m = modulus(receive.dtype, len(members))
    whole = torch.int64 if receive.dtype != torch.uint8 else torch.uint8
    for begin in range(0, len(receive), PERIOD) if m else ():
        have = receive[begin : begin + PERIOD]
        want = torch.zeros(len(have), dtype=whole, device=have.device)
        offset = first + begin
        for source in members:
            period = table(source, have.device)
            for start, low, high in blocks(
                source, operation, offset + len(have), offset
            ):
                values = period[start : start + high - low]
                want[low - offset : high - offset] += values if m == 256 else values % m
        wrong = (want.to(have.dtype) != have).nonzero()
        if len(wrong):
            i = int(wrong[0].item())
            # a sum does not show which member was wrong: name the first
            return members[0], (
                f"element {begin + i} of the sum of {len(members)} ranks is "
                f"{have[i].item():g} instead of {want[i].item():g}"
            )
        own().alive()
    return None
