"""Encode, decode and checksum HDF5 chunks without the HDF5 filter pipeline.

HDF5's own pipeline trusts a file: for a chunk that inflates short, it reads past its
buffer.  Here any length but the expected one is an error.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import UInt8

_deflate: Any
try:  # the same formats, several times faster; optional
    from isal import isal_zlib as _deflate
except ImportError:
    _deflate = zlib

LEVEL = 1  # of the lowest byte plane: higher levels are slow and gain little
UPPER_LEVEL = 3
"""zlib level of the upper byte planes, where expert loads repeat from row to row: the
longer matches of this level halve the time to inflate."""
WORTH = 16  # planes that shrink by less than 1/16 are stored: 10 times faster
ZLIB_HEADER = b"\x78\x01"  # a window of 32 KB, the fastest level: RFC 1950
ZLIB_AROUND = 2 + 4  # bytes: a header, and the Adler-32
PRESET = 0x20  # the header's flag of a preset dictionary, which HDF5 never has
ZLIB_END = b"\x03\x00"  # an empty final block: RFC 1951

CHUNK_BYTES = 256 * 1024
MATRIX_BYTES = 1024 * 1024  # a matrix above this is split by source rank
MATRIX_ROWS = 256
VECTOR_ROWS = 4096
COLUMN_ROWS = 1 << 16


def chunk_shape(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Choose the chunk shape of a panel ``[N, ...]``: about 256 KB of whole rows.

    The first axis of ``shape`` counts occurrences.  A chunk has a power-of-two number
    of rows (at most 256 matrices or 4096 vectors) and the full length of the other
    axes; a matrix above 1 MB is split by source rank.
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
    """Encode one chunk: zero-pad to its full shape, byte-shuffle and deflate it."""
    if block.shape != chunk:
        full = np.zeros(chunk, block.dtype)
        full[tuple(slice(n) for n in block.shape)] = block
        block = full
    width = block.dtype.itemsize
    as_bytes = np.ascontiguousarray(block).view(np.uint8).reshape(-1, width)
    return _deflated(np.ascontiguousarray(as_bytes.T))


def _deflated(planes: UInt8) -> bytes:
    """Encode byte planes ``[width, cells]`` as one zlib stream, plane by plane.

    The planes differ in their symbol statistics, so joint Huffman codes would be
    longer; and runs of one byte, frequent in upper planes, need another encoder.
    """
    stream, sum_of_all = [ZLIB_HEADER], 1
    for number, plane in enumerate(planes):
        data = plane.tobytes()
        sum_of_all = zlib.adler32(data, sum_of_all)
        stream.append(_piece(data, lowest=number == 0))
    return b"".join((*stream, ZLIB_END, sum_of_all.to_bytes(4, "big")))


def _piece(data: bytes, *, lowest: bool) -> bytes:
    """Deflate one byte plane up to a byte boundary, without an end-of-stream block."""
    if data.count(data[:1]) == len(data):
        return _run(data[0], len(data))
    # isal's levels differ from zlib's: none searches for matches as thoroughly
    library, level = (_deflate, LEVEL) if lowest else (zlib, UPPER_LEVEL)
    piece = library.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    coded: bytes = piece.compress(data) + piece.flush(zlib.Z_SYNC_FLUSH)
    if len(coded) <= len(data) - len(data) // WORTH:
        return coded
    stored = zlib.compressobj(0, zlib.DEFLATED, -zlib.MAX_WBITS)
    return stored.compress(data) + stored.flush(zlib.Z_SYNC_FLUSH)


@lru_cache(maxsize=256)
def _run(value: int, length: int) -> bytes:
    """Deflate a run of one repeated byte up to a byte boundary, without an end block.

    zlib's fastest level emits matches 258 bytes back; others emit them one byte back,
    which inflaters copy byte by byte: 3 to 5 times slower to read.
    """
    piece = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    return piece.compress(bytes([value]) * length) + piece.flush(zlib.Z_SYNC_FLUSH)


def decode(
    raw: bytes | memoryview,
    chunk: tuple[int, ...],
    dtype: np.dtype[Any],
    out: npt.NDArray[Any] | None = None,
    *,
    summed: bool = False,
) -> npt.NDArray[Any]:
    """Decode a chunk of the given shape and type, written by :func:`encode`.

    ``out`` is a contiguous array of this shape and type to fill, None for a new one.
    ``summed`` skips the stream's Adler-32, as the caller verifies a CRC: Adler-32 is
    weaker and takes a third of zlib's time.

    Raises
    ------
    ValueError
        If it does not inflate to exactly the bytes of the chunk.
    """
    cells = math.prod(chunk)
    data = _inflated(raw, cells * dtype.itemsize, summed)
    planes = np.frombuffer(data, np.uint8).reshape(dtype.itemsize, cells)
    if out is None:
        out = np.empty(chunk, dtype)
    _unshuffle(planes, out)
    return out


def _inflated(raw: bytes | memoryview, want: int, summed: bool) -> bytes:
    """Inflate a zlib stream to exactly ``want`` bytes (RFC 1950).

    Raises
    ------
    ValueError
        If it has another length or Adler-32, or is no zlib stream.
    """
    method, flags = (raw[0], raw[1]) if len(raw) > ZLIB_AROUND else (0, 0)
    if method & 15 != zlib.DEFLATED or (method << 8 | flags) % 31 or flags & PRESET:
        raise ValueError("it does not inflate (no header of zlib's format)")
    inflater = _deflate.decompressobj(wbits=-zlib.MAX_WBITS)
    try:
        data: bytes = inflater.decompress(memoryview(raw)[2:], want + 1)
    except _deflate.error as error:
        raise ValueError(f"it does not inflate ({error})") from None
    end = inflater.unused_data
    if len(data) != want or not inflater.eof or len(end) != 4:
        raise ValueError(f"it inflates to {len(data)} bytes or more, not to {want}")
    if not summed and int.from_bytes(end, "big") != zlib.adler32(data):
        raise ValueError("it does not inflate (its Adler-32 differs)")
    return data


def _unshuffle(planes: UInt8, out: npt.NDArray[Any]) -> None:
    """Interleave byte planes ``[width, cells]`` into the elements of an array.

    Counts are small: their upper bytes are zero in most chunks, and are skipped.
    """
    width, cells = planes.shape
    used = [at for at in range(width) if planes[at].any()]
    if 2 * len(used) > width:
        as_bytes = out.reshape(-1).view(np.uint8).reshape(cells, width)
        for at in range(width):
            as_bytes[:, at] = planes[at]
        return
    number = out.reshape(-1).view(f"<u{width}")
    if max(used, default=0) < 2:
        low = planes[0].astype("<u2")
        if 1 in used:
            upper = planes[1].astype("<u2")
            upper <<= 8
            low |= upper
        np.copyto(number, low)
        return
    np.copyto(number, planes[0])
    for at in used:
        if at:
            part = planes[at].astype(number.dtype)
            part <<= 8 * at
            number |= part


def checksums(rows: npt.NDArray[Any]) -> list[int]:
    """Compute the CRC-32 of each row's little-endian bytes for rows ``[N, ...]``."""
    if not rows.size:
        return [0] * len(rows)
    data = np.ascontiguousarray(rows).reshape(-1).data.cast("B")
    size = len(data) // len(rows)
    return [_deflate.crc32(data[at : at + size]) for at in range(0, len(data), size)]


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
