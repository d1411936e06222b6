"""Change a file's bytes as disks, copies and people with a plan do.

A mutation is a function of the bytes and a random generator.  Those of ``FORGED`` keep
HDF5's own checksums of metadata valid (Jenkins's lookup3, HDF5 File Format
Specification 3.0, "Checksum"), so that HDF5 believes what it reads.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache

import numpy as np

Mutation = Callable[[bytes, np.random.Generator], bytes]
MASK = 0xFFFFFFFF


def flipped_bits(data: bytes, rng: np.random.Generator) -> bytes:
    """A few bits that turned over."""
    out = bytearray(data)
    for at in rng.integers(0, len(out), rng.integers(1, 4)):
        out[at] ^= 1 << int(rng.integers(8))
    return bytes(out)


def changed_bytes(data: bytes, rng: np.random.Generator) -> bytes:
    """Some bytes that became others."""
    out = bytearray(data)
    for at in rng.integers(0, len(out), rng.integers(1, 40)):
        out[at] = int(rng.integers(256))
    return bytes(out)


def truncated(data: bytes, rng: np.random.Generator) -> bytes:
    """A copy that was cut off."""
    return data[: int(rng.integers(0, len(data)))]


def extended(data: bytes, rng: np.random.Generator) -> bytes:
    """A copy with something behind it."""
    return data + rng.bytes(int(rng.integers(1, 5000)))


def wiped(data: bytes, rng: np.random.Generator) -> bytes:
    """A range that reads as zeros or ones: a hole, a lost sector, erased flash."""
    start, length = _stretch(data, rng)
    fill = b"\0" if rng.random() < 0.7 else b"\xff"
    return data[:start] + fill * length + data[start + length :]


def swapped_blocks(data: bytes, rng: np.random.Generator) -> bytes:
    """Two blocks of a file that changed places."""
    size = int(2 ** rng.integers(3, 13))
    step = size if rng.random() < 0.5 else 1
    if len(data) < 4 * size:
        return flipped_bits(data, rng)
    a, b = sorted(int(v) for v in rng.integers(0, (len(data) - size) // step, 2) * step)
    if b - a < size:
        return flipped_bits(data, rng)
    first, second = data[a : a + size], data[b : b + size]
    return data[:a] + second + data[a + size : b] + first + data[b + size :]


def repeated_block(data: bytes, rng: np.random.Generator) -> bytes:
    """A block that was written to another place too."""
    start, length = _stretch(data, rng)
    to = int(rng.integers(0, len(data) - length))
    return data[:to] + data[start : start + length] + data[to + length :]


def shifted(data: bytes, rng: np.random.Generator) -> bytes:
    """A file that lost bytes in its middle, or gained some."""
    at, count = int(rng.integers(0, len(data))), int(rng.integers(1, 64))
    if rng.random() < 0.5:
        return data[:at] + data[at + count :]
    return data[:at] + rng.bytes(count) + data[at:]


def wiped_column(data: bytes, rng: np.random.Generator) -> bytes:
    """Zeros or ones over words that are ones or zeros: Fletcher-32 sees no change."""
    out = bytearray(data)
    words = np.frombuffer(data[: len(data) // 2 * 2], "<u2")
    blind = np.flatnonzero((words == 0) | (words == 0xFFFF))
    if not len(blind):
        return flipped_bits(data, rng)
    start = int(rng.integers(len(blind)))
    for word in blind[start : start + int(rng.integers(1, 64))]:
        at = 2 * int(word)
        out[at : at + 2] = b"\0\0" if out[at] else b"\xff\xff"
    return bytes(out)


def forged_byte(data: bytes, rng: np.random.Generator) -> bytes:
    """A byte of HDF5's metadata, with the checksum that it now needs."""
    return _forged(data, metadata(data), rng, lambda block: _put(block, rng, 1))


def forged_number(data: bytes, rng: np.random.Generator) -> bytes:
    """A number of HDF5's metadata that became an extreme one."""
    width = int(rng.choice([2, 4, 8]))
    return _forged(data, metadata(data), rng, lambda block: _put(block, rng, width))


def forged_bytes(data: bytes, rng: np.random.Generator) -> bytes:
    """Several bytes of several pieces of metadata."""
    spans = metadata(data)
    for _ in range(int(rng.integers(2, 6))):
        data = _forged(data, spans, rng, lambda block: _put(block, rng, 1))
    return data


def forged_swap(data: bytes, rng: np.random.Generator) -> bytes:
    """Two whole pieces of metadata of one length in each other's place."""
    spans = [(a, b) for a, b, _ in metadata(data)]
    a, b = spans[int(rng.integers(len(spans)))]
    same = [s for s in spans if s[1] - s[0] == b - a and s[0] != a]
    if not same:
        return forged_byte(data, rng)
    c, d = same[int(rng.integers(len(same)))]
    (a, b), (c, d) = sorted([(a, b), (c, d)])
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


PLAIN: tuple[Mutation, ...] = (
    flipped_bits,
    changed_bytes,
    truncated,
    extended,
    wiped,
    swapped_blocks,
    repeated_block,
    shifted,
    wiped_column,
)
FORGED: tuple[Mutation, ...] = (forged_byte, forged_number, forged_bytes, forged_swap)


def _stretch(data: bytes, rng: np.random.Generator) -> tuple[int, int]:
    length = min(int(2 ** rng.uniform(0, 16)), len(data) // 2)
    return int(rng.integers(0, len(data) - length)), length


def _put(block: bytearray, rng: np.random.Generator, width: int) -> None:
    at = int(rng.integers(4, max(5, len(block) - width + 1)))
    extreme = [0, 1, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1, 2**40]
    value = int(rng.choice(np.array(extreme, np.uint64))) % 256**width
    if width == 1:
        value = int(rng.integers(256))
    block[at : at + width] = value.to_bytes(width, "little")


def _forged(
    data: bytes,
    spans: tuple[tuple[int, int, int], ...],
    rng: np.random.Generator,
    change: Callable[[bytearray], None],
) -> bytes:
    start, stop, place = spans[int(rng.integers(len(spans)))]
    block = bytearray(data[start:stop])
    change(block)
    if place + 4 <= len(block):
        block[place : place + 4] = bytes(4)
        covered = block if place + 4 < len(block) else block[:place]
        block[place : place + 4] = struct.pack("<I", lookup3(bytes(covered)))
    return data[:start] + bytes(block) + data[stop:]


# ---- HDF5's pieces of metadata ----------------------------------------------------


@lru_cache(maxsize=16)
def metadata(data: bytes) -> tuple[tuple[int, int, int], ...]:
    """Pieces of metadata that carry a checksum: first byte, end, place of it inside."""
    found = [(0, 48, 44)] if data[:8] == b"\x89HDF\r\n\x1a\n" else []
    for mark in (
        b"FRHP",
        b"OCHK",
        b"BTHD",
        b"BTLF",
        b"EAHD",
        b"EAIB",
        b"EADB",
        b"FADB",
    ):
        sizes: list[int] = []  # pieces of one kind are mostly of few sizes
        for start in _occurrences(data, mark):
            for size in [*sizes, *range(8, min(1500, len(data) - start - 4))]:
                told = data[start + size : start + size + 4]
                if told == struct.pack("<I", lookup3(data[start : start + size])):
                    found.append((start, start + size + 4, size))
                    sizes = sorted({*sizes, size})
                    break
    for start in _occurrences(data, b"OHDR"):
        flags = data[start + 5]
        size = 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
        width = 1 << (flags & 3)
        raw = data[start + size : start + size + width]
        size += width + int.from_bytes(raw, "little")
        if data[start + size : start + size + 4] == struct.pack(
            "<I", lookup3(data[start : start + size])
        ):
            found.append((start, start + size + 4, size))
    for start in _occurrences(data, b"FHDB"):
        found += _direct_block(data, start)
    return tuple(sorted(found))


def _direct_block(data: bytes, start: int) -> list[tuple[int, int, int]]:
    """A block of a fractal heap has its checksum in its head."""
    for place in (17, 18):  # heaps of links and of attributes differ in their offsets
        for size in (512, 1024, 2048, 4096, 8192, 16384):
            block = bytearray(data[start : start + size])
            told = struct.unpack_from("<I", block, place)[0]
            block[place : place + 4] = bytes(4)
            if told == lookup3(bytes(block)):
                return [(start, start + size, place)]
    return []


def _occurrences(data: bytes, mark: bytes) -> list[int]:
    found, at = [], data.find(mark)
    while at >= 0:
        found.append(at)
        at = data.find(mark, at + 1)
    return found


def _rot(value: int, by: int) -> int:
    return ((value << by) | (value >> (32 - by))) & MASK


def lookup3(data: bytes) -> int:
    """Bob Jenkins's lookup3, ``hashlittle`` with 0 to start from (public domain)."""
    a = b = c = (0xDEADBEEF + len(data)) & MASK
    if not data:
        return c
    at, left = 0, len(data)
    while left > 12:
        x, y, z = struct.unpack_from("<3I", data, at)
        a, b, c = (a + x) & MASK, (b + y) & MASK, (c + z) & MASK
        a = ((a - c) & MASK) ^ _rot(c, 4)
        c = (c + b) & MASK
        b = ((b - a) & MASK) ^ _rot(a, 6)
        a = (a + c) & MASK
        c = ((c - b) & MASK) ^ _rot(b, 8)
        b = (b + a) & MASK
        a = ((a - c) & MASK) ^ _rot(c, 16)
        c = (c + b) & MASK
        b = ((b - a) & MASK) ^ _rot(a, 19)
        a = (a + c) & MASK
        c = ((c - b) & MASK) ^ _rot(b, 4)
        b = (b + a) & MASK
        at, left = at + 12, left - 12
    x, y, z = struct.unpack("<3I", data[at:].ljust(12, b"\0"))
    a, b, c = (a + x) & MASK, (b + y) & MASK, (c + z) & MASK
    for first, second, by in (
        ("c", "b", 14),
        ("a", "c", 11),
        ("b", "a", 25),
        ("c", "b", 16),
        ("a", "c", 4),
        ("b", "a", 14),
        ("c", "b", 24),
    ):
        value = {"a": a, "b": b, "c": c}
        mixed = ((value[first] ^ value[second]) - _rot(value[second], by)) & MASK
        if first == "a":
            a = mixed
        elif first == "b":
            b = mixed
        else:
            c = mixed
    return c
