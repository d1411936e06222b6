"""CRC-32 checksums of the rows, columns and attributes of a trace file."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

_crc32: Any
try:  # optional: the same checksum, several times faster
    from isal.isal_zlib import crc32 as _crc32
except ImportError:
    _crc32 = zlib.crc32


def checksums(rows: npt.NDArray[Any]) -> list[int]:
    """Compute the CRC-32 of each row's little-endian bytes for rows ``[N, ...]``."""
    if not rows.size:
        return [0] * len(rows)
    data = np.ascontiguousarray(rows).reshape(-1).data.cast("B")
    size = len(data) // len(rows)
    return [_crc32(data[at : at + size]) for at in range(0, len(data), size)]


def column_checksum(name: str, column: npt.NDArray[Any]) -> int:
    """Compute the CRC-32 of a column's name, a NUL byte, and its stored bytes.

    HDF5's own Fletcher-32 does not distinguish 0x0000 from 0xffff, and accepts a chunk
    of zeros.  Including the name detects swapped columns of equal type.
    """
    return zlib.crc32(column.tobytes(), zlib.crc32(name.encode() + b"\0"))


def attributes_checksum(attributes: Mapping[str, str | int | float]) -> int:
    """Compute the CRC-32 of all root attributes, sorted by name.

    For each attribute: name, a NUL, its text or the 8 bytes of its number, a NUL.
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
