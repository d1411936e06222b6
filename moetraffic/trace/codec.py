"""Shuffle + deflate as HDF5 stores it, written and read without HDF5's filter code.

HDF5's own pipeline trusts a file: a chunk that inflates short makes it read past its
buffer.  Here a chunk is inflated into at most the bytes that it must have, and any
other length is an error.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .unshuffle import unshuffle

_deflate: Any
try:  # the same format, several times faster; optional
    from isal import isal_zlib as _deflate
except ImportError:
    _deflate = zlib

LEVEL = 1  # gzip-1: higher levels gain little on counts and cost much
WORTH = 16  # a plane that shrinks by less than this part is stored: 10 times as fast
ZLIB_HEADER = b"\x78\x01"  # a window of 32 KB, the fastest level: RFC 1950
ZLIB_END = b"\x03\x00"  # a last block that holds nothing: RFC 1951

CHUNK_BYTES = 256 * 1024
MATRIX_BYTES = 1024 * 1024  # a matrix above this is split by source rank
MATRIX_ROWS = 256
VECTOR_ROWS = 4096
COLUMN_ROWS = 1 << 16


def chunk_shape(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Chunk of a panel ``[N, ...]``: about 256 KB of consecutive rows.

    Parameters
    ----------
    shape
        Shape of the panel; the first axis counts occurrences.
    itemsize
        Bytes of an element.

    Returns
    -------
    tuple of int
        A power of two of rows (at most 256 matrices, 4096 vectors) and all of the
        other axes; a matrix above 1 MB is split along its first own axis.
    """
    row = shape[1:]
    cells = max(1, int(np.prod(row, dtype=np.int64)))
    row_bytes = cells * itemsize
    if len(row) == 2 and row_bytes > MATRIX_BYTES:
        return (1, max(1, MATRIX_BYTES // max(1, row[1] * itemsize)), max(1, row[1]))
    most = MATRIX_ROWS if len(row) >= 2 else VECTOR_ROWS
    rows = 1 << max(0, (CHUNK_BYTES // row_bytes).bit_length() - 1)
    return (min(most, rows), *(max(1, n) for n in row))


def encode(block: npt.NDArray[Any], chunk: tuple[int, ...]) -> bytes:
    """One chunk, padded with zeros to its full shape, shuffled and deflated."""
    if block.shape != chunk:
        full = np.zeros(chunk, block.dtype)
        full[tuple(slice(n) for n in block.shape)] = block
        block = full
    width = block.dtype.itemsize
    as_bytes = np.ascontiguousarray(block).view(np.uint8).reshape(-1, width)
    return _deflated(np.ascontiguousarray(as_bytes.T))


def _deflated(planes: npt.NDArray[np.uint8]) -> bytes:
    """One zlib stream of the planes ``[width, cells]``, each deflated by itself.

    Codes that fit one plane fit no other, so a stream over all of them is larger; and
    runs of one byte, which counts have above their low bytes, want another encoder.
    """
    stream, sum_of_all = [ZLIB_HEADER], 1
    for plane in planes:
        data = plane.tobytes()
        sum_of_all = zlib.adler32(data, sum_of_all)
        stream.append(_piece(data))
    return b"".join((*stream, ZLIB_END, sum_of_all.to_bytes(4, "big")))


def _piece(data: bytes) -> bytes:
    """A plane, deflated to whole bytes that are no end."""
    if data.count(data[:1]) == len(data):
        return _run(data[0], len(data))
    piece = _deflate.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    coded: bytes = piece.compress(data) + piece.flush(zlib.Z_SYNC_FLUSH)
    if len(coded) <= len(data) - len(data) // WORTH:
        return coded
    stored = zlib.compressobj(0, zlib.DEFLATED, -zlib.MAX_WBITS)
    return stored.compress(data) + stored.flush(zlib.Z_SYNC_FLUSH)


@lru_cache(maxsize=256)
def _run(value: int, length: int) -> bytes:
    """So many times one byte, deflated to whole bytes that are no end.

    zlib's fastest level repeats what lies 258 bytes back; others, what lies one byte
    back, which every inflater copies byte by byte: 3 to 5 times slower to read.
    """
    piece = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    return piece.compress(bytes([value]) * length) + piece.flush(zlib.Z_SYNC_FLUSH)


def decode(
    raw: bytes,
    chunk: tuple[int, ...],
    dtype: np.dtype[Any],
    out: npt.NDArray[Any] | None = None,
) -> npt.NDArray[Any]:
    """The chunk that :func:`encode` made.

    Parameters
    ----------
    raw
        What is stored.
    chunk, dtype
        Shape and element type of the chunk.
    out
        A contiguous array of this shape and type to fill; None: a new one.

    Raises
    ------
    ValueError
        If it does not inflate to exactly the bytes of the chunk.
    """
    cells = math.prod(chunk)
    data = _inflated(raw, cells * dtype.itemsize)
    planes = np.frombuffer(data, np.uint8).reshape(dtype.itemsize, cells)
    if out is None:
        out = np.empty(chunk, dtype)
    unshuffle(planes, out)
    return out


def _inflated(raw: bytes, want: int) -> bytes:
    """What is stored, inflated to exactly so many bytes.

    Raises
    ------
    ValueError
        If it is more, less or none.
    """
    inflater = _deflate.decompressobj()
    try:
        data: bytes = inflater.decompress(raw, want + 1)
    except _deflate.error as error:
        raise ValueError(f"it does not inflate ({error})") from None
    if len(data) != want or not inflater.eof or inflater.unused_data:
        raise ValueError(f"it inflates to {len(data)} bytes or more, not to {want}")
    return data


def checksums(rows: npt.NDArray[Any]) -> list[int]:
    """CRC32 of each row's little-endian bytes, of rows ``[N, ...]``."""
    if not rows.size:
        return [0] * len(rows)
    data = np.ascontiguousarray(rows).reshape(-1).data.cast("B")
    size = len(data) // len(rows)
    crc32 = _deflate.crc32
    return [crc32(data[at : at + size]) for at in range(0, len(data), size)]


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
