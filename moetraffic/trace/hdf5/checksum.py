"""CRC-32 of what a trace file holds: of rows, of columns, of its attributes."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

UInt32 = npt.NDArray[np.uint32]

_crc32: Any
try:  # the same sum, several times faster; optional
    from isal.isal_zlib import crc32 as _crc32
except ImportError:
    _crc32 = zlib.crc32

POLYNOMIAL = 0xEDB88320  # of CRC-32, its lowest power in the highest bit


def block_checksum(rows: npt.NDArray[Any]) -> int:
    """CRC32 of the little-endian bytes of all rows, of rows ``[N, ...]``."""
    return int(_crc32(np.ascontiguousarray(rows)))


def checksums(rows: npt.NDArray[Any]) -> list[int]:
    """CRC32 of each row's little-endian bytes, of rows ``[N, ...]``."""
    if not rows.size:
        return [0] * len(rows)
    data = np.ascontiguousarray(rows).reshape(-1).data.cast("B")
    size = len(data) // len(rows)
    return [_crc32(data[at : at + size]) for at in range(0, len(data), size)]


def of_blocks(sums: UInt32, row_bytes: int) -> UInt32:
    """CRC32 of blocks of rows from those of their rows.

    So a block is compared in one go, and its rows only where it differs.

    Parameters
    ----------
    sums
        ``[N, n]`` uint32: of the n rows of N blocks.
    row_bytes
        Of a row.

    Returns
    -------
    ndarray
        ``[N]`` uint32.  A CRC of A followed by B is that of A followed by as many
        zeros as B has bytes, which is linear in the bits, plus that of B (M. Adler,
        crc32_combine of zlib).
    """
    table = _zeros_after(row_bytes)
    found = np.zeros(len(sums), np.uint32)
    for row in sums.T:
        moved = table[0][found & 255]
        for byte in range(1, 4):
            moved ^= table[byte][(found >> np.uint32(8 * byte)) & 255]
        found = moved ^ row
    return found


def joined(sums: Sequence[int], row_bytes: int) -> int:
    """CRC32 of a few rows one after another, of as many bytes each, from their own."""
    a, b, c, d = _listed(row_bytes)
    found = 0
    for row in sums:
        found = (
            a[found & 255]
            ^ b[found >> 8 & 255]
            ^ c[found >> 16 & 255]
            ^ d[found >> 24]
            ^ row
        )
    return found


@lru_cache(maxsize=64)
def _listed(count: int) -> list[list[int]]:
    found: list[list[int]] = _zeros_after(count).tolist()
    return found


@lru_cache(maxsize=64)
def _zeros_after(count: int) -> UInt32:
    """What so many zero bytes make of a CRC, by each of its bytes, ``[4, 256]``."""
    one = np.arange(32, dtype=np.uint32)
    # a zero bit divides by x: the lowest bit leaves, and brings in the polynomial
    step = np.where(one == 0, POLYNOMIAL, 1 << (one - (one > 0))).astype(np.uint32)
    done, left = np.uint32(1) << one, 8 * count
    while left:
        if left & 1:
            done = _applied(step, done)
        step, left = _applied(step, step), left >> 1
    values = np.arange(256, dtype=np.uint32)
    return np.stack([_applied(done, values << np.uint32(8 * n)) for n in range(4)])


def _applied(columns: UInt32, values: UInt32) -> UInt32:
    """A matrix over bits, by its columns ``[32]``, times each of many vectors."""
    found = np.zeros_like(values)
    for bit, column in enumerate(columns):
        found ^= np.where((values >> np.uint32(bit)) & 1, column, np.uint32(0))
    return found


def column_checksum(name: str, column: npt.NDArray[Any]) -> int:
    """CRC32 of a column's name, a NUL, and its bytes as they are stored.

    HDF5's own Fletcher-32 takes 0x0000 and 0xffff for the same, and a chunk of nothing
    but zeros for a sound one.  The name tells a column from another of its kind.
    """
    return zlib.crc32(column.tobytes(), zlib.crc32(name.encode() + b"\0"))


def attributes_checksum(attributes: Mapping[str, str | int | float]) -> int:
    """CRC32 of all root attributes in the order of their names.

    Of each: its name, a NUL, its text or the 8 bytes of its number, and a NUL.
    """
    parts: list[bytes] = []
    for name in sorted(attributes):
        value = attributes[name]
        if isinstance(value, str):
            raw = value.encode().rstrip(b"\0")
        else:
            raw = np.array(
                value, "<f8" if isinstance(value, float) else "<i8"
            ).tobytes()
        parts += [name.encode(), raw]
    return zlib.crc32(b"".join(part + b"\0" for part in parts))
