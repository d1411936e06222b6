"""Payload bytes that identify sender, receiver, operation and offset; verification.

Each source rank has a table of P pseudo-random bytes, P prime.  Its bytes for a
destination in an operation are the table read in blocks of P from places that depend on
destination, operation and block:

    byte(s, d, k, o) = T_s[(d A + k B + (o div P) C + o mod P) mod P]

where d is s itself for bytes that are the same for all destinations.  Any eight bytes
identify their table (a chance match occurs in one of 10^14 tables), and with it their
sender; the place in the table identifies the rest.  For fixed d, the places of P
consecutive operations are distinct, since P is prime and does not divide B: bytes left
over from an earlier operation are never taken for the right ones.

Bytes for one other rank are the payload of that pair; bytes for all ranks (in a
broadcast, a gather, a reduction) are the sender's payload with itself as destination.
Sums are of bytes, modulo 256: exact in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from moetraffic.arrays import UInt8
from moetraffic.replay.backends.backend import Call
from moetraffic.replay.plan.program import REDUCTIONS
from moetraffic.trace.model import ALL_TO_ALL

from .local_work import Advance, advance_alone

PERIOD = 65521
"""P, the largest prime below 2^16: tables of two periods stay in a core's cache."""

# A, B, C spread neighbors over the table: P times irrational numbers, rounded
_DESTINATION_STRIDE = 27140  # P (sqrt 2 - 1)
_OPERATION_STRIDE = 40494  # P (sqrt 5 - 1) / 2
_BLOCK_STRIDE = 47965  # P (sqrt 3 - 1)

_WINDOW = 8  # bytes that identify their table
_OPERATIONS_BACK = 65  # earlier operations that are searched for a wrong byte
_NEAR = 4096  # largest shift that is reported as an offset error
UNTOUCHED = 0xA5
"""Value of a receive buffer's bytes before an operation."""


@dataclass(frozen=True, kw_only=True)
class WrongByte:
    """First received byte that differs from the expected payload."""

    source: int  # world rank whose bytes were expected
    offset: int  # in the bytes of this source
    length: int  # bytes that this source should have sent
    expected: int
    found: int
    owner: int | None  # world rank whose bytes they are, if identified
    note: str  # description of the bytes found

    def __str__(self) -> str:
        return (
            f"byte {self.offset} of {self.length} is 0x{self.found:02x} instead of "
            f"0x{self.expected:02x}: {self.note}"
        )


@lru_cache(maxsize=4096)
def table(source: int) -> UInt8:
    """Return two periods of a source rank's byte table, ``[2 P]`` uint8, read-only."""
    once = np.random.default_rng([0x6D6F65, source]).integers(
        0, 256, PERIOD, dtype=np.uint8
    )
    twice = np.concatenate([once, once])
    twice.flags.writeable = False
    return twice


def fill(
    out: UInt8,
    *,
    source: int,
    destinations: Sequence[int],
    operation: int,
    sizes: list[int],
    advance: Advance = advance_alone,
) -> None:
    """Write the payload that one rank sends in one operation.

    ``out`` ``[sum(sizes)]`` uint8 gets the parts of all ``destinations`` (world ranks)
    in order; ``operation`` is the same number for sender and receivers.
    """
    own, at = table(source), 0
    for destination, size in zip(destinations, sizes, strict=True):
        for start, first, last in _blocks(destination, operation, size):
            out[at + first : at + last] = own[start : start + last - first]
            advance(last - first)
        at += size


def summed(*, sources: Sequence[int], operation: int, first: int, size: int) -> UInt8:
    """Compute the expected sum of members' bytes modulo 256, ``[size]`` uint8.

    Such sums are exact in any order, on any number of ranks.

    ``sources`` are the world ranks that add up; each adds what :func:`fill` writes with
    itself as destination, from the offset ``first`` on.
    """
    out = np.zeros(size, np.uint8)
    for source in sources:
        for start, begin, end in _blocks(source, operation, first + size, first):
            out[begin - first : end - first] += table(source)[
                start : start + end - begin
            ]
    return out


def verify(
    received: UInt8,
    *,
    destination: int | None,
    sources: Sequence[int],
    operation: int,
    sizes: list[int],
    advance: Advance = advance_alone,
) -> WrongByte | None:
    """Compare the bytes that a rank received in an operation with those expected.

    ``received`` ``[sum(sizes)]`` uint8 holds the parts of all ``sources`` (world ranks)
    in order; ``destination`` is None where each source sends the same to all.

    Returns the first wrong byte of the first source that has one; None if all are
    right.
    """
    at = 0
    for source, size in zip(sources, sizes, strict=True):
        bytes_of, to = table(source), source if destination is None else destination
        for start, first, last in _blocks(to, operation, size):
            want = bytes_of[start : start + last - first]
            have = received[at + first : at + last]
            if not np.array_equal(want, have):
                wrong = first + int(np.flatnonzero(want != have)[0])
                there = received[at + wrong : at + min(wrong + _WINDOW, size)]
                owner, note = _trace_back(
                    there.tobytes(), wrong, source, to, sources, operation
                )
                return WrongByte(
                    source=source,
                    offset=wrong,
                    length=size,
                    expected=int(want[wrong - first]),
                    found=int(received[at + wrong]),
                    owner=owner,
                    note=note,
                )
            advance(last - first)
        at += size
    return None


def owners(window: bytes, candidates: Sequence[int]) -> list[tuple[int, int]]:
    """Find a byte string in the tables of ranks; return (rank, place) pairs."""
    found = []
    for rank in candidates:
        place = table(rank).tobytes().find(window)
        if place >= 0:
            found.append((rank, place % PERIOD))
    return found


def _place(destination: int, operation: int, offset: int) -> int:
    """Compute the index of a payload byte in the table of its source rank."""
    block, within = divmod(offset, PERIOD)
    return (
        destination * _DESTINATION_STRIDE
        + operation * _OPERATION_STRIDE
        + block * _BLOCK_STRIDE
        + within
    ) % PERIOD


def _blocks(
    destination: int, operation: int, size: int, begin: int = 0
) -> Iterator[tuple[int, int, int]]:
    """Yield blocks of a message: (place in table, first offset, last offset + 1)."""
    for first in range(begin - begin % PERIOD, size, PERIOD):
        start = max(begin, first)
        yield _place(destination, operation, start), start, min(first + PERIOD, size)


def _trace_back(
    window: bytes,
    offset: int,
    source: int,
    destination: int,
    sources: Sequence[int],
    operation: int,
) -> tuple[int | None, str]:
    """Identify the rank that wrong bytes come from; return it and an explanation."""
    if window and set(window) == {UNTOUCHED}:
        return None, "nothing was received there"
    if len(window) < _WINDOW:
        return None, "too few bytes are left to identify their sender"
    found = owners(window, sources)
    if not found:
        return None, "no rank of the group sends such bytes"
    owner, place = found[0]
    # Step 1: bytes of this operation, sent by or to the wrong rank?
    for receiver in (destination, *sources):
        if place == _place(receiver, operation, offset):
            return owner, f"these are rank {owner}'s bytes for rank {receiver}"
    # Step 2: left over from an operation before?
    for back in range(1, _OPERATIONS_BACK):
        if place == _place(destination, operation - back, offset):
            note = f"these are rank {owner}'s bytes of {back} operations before"
            return owner, note
    # Step 3: the right bytes at another offset?
    shift = (place - _place(destination, operation, offset)) % PERIOD
    if shift > PERIOD // 2:
        shift -= PERIOD
    if owner == source and abs(shift) < _NEAR:
        return owner, f"these are rank {owner}'s bytes of offset {offset + shift}"
    return owner, f"these are bytes of rank {owner}, from another place"


# ---- buffers of an operation -----------------------------------------------------


def fill_buffers(
    call: Call,
    *,
    rank: int,
    members: tuple[int, ...],
    operation: int,
    advance: Advance = advance_alone,
) -> None:
    """Write the payload that this rank sends into the buffers of an operation.

    ``members`` are the world ranks of the group; ``operation`` is the same number on
    all of them.
    """
    call.receive.view(torch.uint8).fill_(UNTOUCHED)
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
        fill(
            out,
            source=rank,
            destinations=to,
            operation=operation,
            sizes=sizes,
            advance=advance,
        )
        into[: len(out)].copy_(torch.from_numpy(out))


def find_wrong(
    call: Call,
    *,
    rank: int,
    members: tuple[int, ...],
    operation: int,
    advance: Advance = advance_alone,
) -> tuple[int, str] | None:
    """Find the rank whose bytes arrived wrong, with a description; None if none."""
    kind, size = call.kind, len(call.receive)
    if not size or (kind == "reduce" and rank != call.receiver):
        return None
    received = call.receive.cpu().numpy()
    if kind in REDUCTIONS:
        first = members.index(rank) * size if kind == "reduce_scatter" else 0
        return _compare_sum(received, members, operation, first, advance)
    destination: int | None = rank
    sources, sizes = members, call.receive_bytes
    if kind in ("broadcast", "scatter", "send_recv"):
        sources, sizes = (call.sender,), [size]
        destination = None if kind == "broadcast" else rank
    elif kind != ALL_TO_ALL:
        destination, sizes = None, [size // len(members)] * len(members)
    wrong = verify(
        received,
        destination=destination,
        sources=sources,
        operation=operation,
        sizes=sizes,
        advance=advance,
    )
    return None if wrong is None else (wrong.source, str(wrong))


def _compare_sum(
    found: UInt8,
    members: tuple[int, ...],
    operation: int,
    first: int,
    advance: Advance,
) -> tuple[int, str] | None:
    for begin in range(0, len(found), PERIOD):
        have = found[begin : begin + PERIOD]
        want = summed(
            sources=members, operation=operation, first=first + begin, size=len(have)
        )
        differ = np.flatnonzero(want != have)
        if len(differ):
            at = int(differ[0])
            # a sum does not show which member was wrong: name the first
            return members[0], (
                f"byte {begin + at} of the sum of {len(members)} ranks is "
                f"0x{int(have[at]):02x} instead of 0x{int(want[at]):02x}"
            )
        advance(len(have) * len(members))
    return None
