"""Read columns and panels from an untrusted HDF5 file after validating its structure.

Checks, in order: a regular file with HDF5's signature; a limited number of links and
attributes, none of variable length; the format's name and version; each dataset by
hard link, of exactly the expected type and rank, neither virtual nor external; chunks
inside the file, complete, disjoint and of plausible size.  The HDF5 library is not
used: ``structure`` parses what ``image`` writes.  Columns are verified by CRC-32;
panels are inflated by ``codec``.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Int64, UInt32
from moetraffic.errors import TraceError
from moetraffic.trace.model import MOST_BYTES

from .block import FileBytes, Malformed
from .chunk_index import read_index
from .codec import (
    COLUMN_ROWS,
    attributes_checksum,
    checksums,
    chunk_shape,
    column_checksum,
    decode,
)
from .structure import SIGNATURE, Stored, Structure

SUPERBLOCK = b"\x03"  # the version that HDF5 1.10 writes
MOST_CHUNK_BYTES = 64 << 20
MOST_ROW_BYTES = 64 << 20  # an int64 matrix between 2896 ranks
MOST_RATIO = 1100  # deflate compresses by at most 1032
MOST_TEXT = 1024

DEFLATE, SHUFFLE, FLETCHER32 = 1, 2, 3
"""Numbers of HDF5 filters."""

KINDS = {
    "moetraffic": "a moetraffic trace",
    "moetraffic-segment": "a segment",
    "moetraffic-model": "a traffic model",
}
"""Descriptions of the kinds of files."""


class OtherVersionError(TraceError):
    """Raised for a file of the right kind whose format version is unsupported."""


class Container:
    """Validated HDF5 file of columns and panels; a context manager.

    Its ``format`` and ``format_version`` attributes must be ``kind`` and ``version``.
    """

    def __init__(self, path: str | Path, kind: str, version: int) -> None:
        self.path = Path(path)
        self._fd = -1
        self._size = 0
        try:
            self._open()
            self._structure = Structure(FileBytes(self.pread, self._size))
            self.attributes = self._structure.attributes
            self._identify(kind, version)
            self._sums = self._read_checksums()
        except BaseException as error:
            self.close()
            raise self.translated(error) from None

    def __enter__(self) -> Container:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def names(self) -> frozenset[str]:
        """Names of all links in the root group."""
        return frozenset(self._structure.links)

    @property
    def digest(self) -> str:
        """SHA-256 of all checksums, in hexadecimal: the same for equal contents."""
        return hashlib.sha256(repr(sorted(self._sums.items())).encode()).hexdigest()

    def close(self) -> None:
        """Close the file; its panels cannot be read afterwards."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def pread(self, offset: int, size: int) -> bytes:
        """Read raw bytes of the file at an offset."""
        if self._fd < 0:
            raise TraceError(
                f"{self.path} is closed: read it before the end of its with block, or "
                "open it again"
            )
        return os.pread(self._fd, size, offset)

    def has(self, name: str) -> bool:
        """Return whether the file has an optional column or panel."""
        there = name in self.names
        self.require(there or name not in self._sums, f"/{name} is missing")
        return there

    def column(
        self, name: str, dtype: str, length: int | None = None
    ) -> npt.NDArray[Any]:
        """Read a column ``[n]``; ``dtype`` "S" stands for text of any fixed width."""
        read = self._column(name, dtype, length)
        self.require(
            self._sums.get(name) == column_checksum(name, read),
            f"/{name} is not what was written",
        )
        return read

    def panel(
        self,
        name: str,
        dtype: str,
        shape: tuple[int | None, ...],
        *,
        counts: bool = False,
    ) -> FilePanel:
        """Open a panel whose axes have the given lengths (None: any).

        ``counts``: negative values are rejected when rows are read.
        """
        made = self._dataset(name, dtype, rank=len(shape))
        self.require(
            all(n is None or n == m for n, m in zip(shape, made.shape, strict=True)),
            f"/{name} has shape {made.shape}, not {shape}",
        )
        self.require(
            made.filters == (SHUFFLE, DEFLATE),
            f"/{name} is not stored with exactly shuffle and deflate",
        )
        row = math.prod(made.shape[1:]) * made.dtype.itemsize
        self.require(
            row <= MOST_ROW_BYTES,
            f"a row of /{name} has an implausible {row} bytes",
        )
        self.require(
            made.chunks == chunk_shape(made.shape, made.dtype.itemsize),
            f"/{name} is stored in chunks of {made.chunks}",
        )
        full = math.prod(made.chunks) * made.dtype.itemsize
        offsets, sizes = self._chunks(
            name, made, least=-(-full // MOST_RATIO), most=full + full // 1000 + 64
        )
        sums = self.column(f"{name}_crc32", "<u4", made.shape[0])
        return FilePanel(self, name, made, offsets, sizes, sums, counts=counts)

    def damaged(self, what: str) -> TraceError:
        """Create the error that reports a damaged file."""
        return TraceError(
            f"{self.path} is damaged or no trace: {' '.join(what.split())[:300]}; take "
            "a copy that is whole"
        )

    def translated(self, error: BaseException) -> BaseException:
        """Convert a system or parsing error to a TraceError about this file."""
        if isinstance(error, TraceError | MemoryError) or not isinstance(
            error, Exception
        ):
            return error
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return TraceError(f"there is no file {self.path}: check the path")
        if isinstance(error, PermissionError):
            return TraceError(f"{self.path} may not be read: change its permissions")
        if isinstance(error, OSError):
            return TraceError(
                f"{str(self.path)[:200]} cannot be read ({error.strerror}): check "
                "the path"
            )
        kind = "" if isinstance(error, Malformed) else f"{type(error).__name__}: "
        return self.damaged(f"{kind}{error}")

    def require(self, holds: bool, what: str) -> None:
        """Raise the error for a damaged file unless a rule holds."""
        if not holds:
            raise self.damaged(what)

    def _open(self) -> None:
        # O_NONBLOCK: a named pipe must be rejected without waiting for a writer
        self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(self._fd)
        if stat.S_ISDIR(status.st_mode):
            raise TraceError(f"{self.path} is a folder, not a file: name a trace file")
        if not stat.S_ISREG(status.st_mode):
            raise TraceError(f"{self.path} is not a regular file: name a trace file")
        self._size = status.st_size
        if self.pread(0, len(SIGNATURE)) != SIGNATURE:
            raise TraceError(
                f"{self.path} is not an HDF5 file: name a trace that moetraffic wrote"
            )
        if self.pread(len(SIGNATURE), 1) != SUPERBLOCK:
            raise self._other_kind("moetraffic")

    def _identify(self, kind: str, version: int) -> None:
        if self.attributes.get("format") != kind:
            raise self._other_kind(kind)
        found = self.attributes.get("format_version")
        if found != version:
            raise OtherVersionError(
                f"{self.path} has format version {found}, and this moetraffic reads "
                f"version {version}: use the release that wrote it"
            )

    def _other_kind(self, kind: str) -> TraceError:
        return TraceError(
            f"{self.path} is an HDF5 file of another kind, not "
            f"{KINDS.get(kind, kind)}: name a file that moetraffic wrote"
        )

    def _read_checksums(self) -> dict[str, int]:
        """Read the checksums of all columns, and verify that of the root attributes."""
        names = self._column("checksum", "S", None)
        sums = self._column("checksum_crc32", "<u4", len(names)).tolist()
        found = {n.decode(): s for n, s in zip(names.tolist(), sums, strict=True)}
        self.require(
            found.get("") == attributes_checksum(self.attributes),
            "its attributes are not what was written",
        )
        return found

    def _column(self, name: str, dtype: str, length: int | None) -> npt.NDArray[Any]:
        made = self._dataset(name, dtype, rank=1)
        (rows,) = made.shape
        self.require(
            length is None or rows == length, f"/{name} has {rows} rows, not {length}"
        )
        self.require(
            made.filters == (FLETCHER32,),
            f"/{name} is not stored as a checksummed column",
        )
        self.require(
            made.chunks == (max(1, min(COLUMN_ROWS, rows)),),
            f"/{name} is stored in chunks of {made.chunks}",
        )
        deep = made.chunks[0]
        size = deep * made.dtype.itemsize
        offsets, _ = self._chunks(name, made, least=size + 4, most=size + 4)
        read = np.empty(rows, made.dtype)
        for number, offset in enumerate(offsets.tolist()):
            part = read[number * deep : (number + 1) * deep]
            raw = self.pread(offset, part.nbytes)
            self.require(len(raw) == part.nbytes, f"/{name} is cut off")
            part[:] = np.frombuffer(raw, made.dtype)
        return read

    def _dataset(self, name: str, dtype: str, rank: int) -> Stored:
        try:
            made = self._structure.dataset(name)
        except ValueError as error:
            raise self.translated(error) from None
        if dtype == "S":
            fits = made.dtype.kind == "S" and made.dtype.itemsize <= MOST_TEXT
        else:
            fits = made.dtype == np.dtype(dtype)
        self.require(fits, f"/{name} has elements of type {made.dtype}, not {dtype}")
        self.require(len(made.shape) == rank, f"/{name} has not {rank} axes")
        self.require(
            math.prod(made.chunks) * made.dtype.itemsize <= MOST_CHUNK_BYTES,
            f"/{name} has chunks of more than {MOST_CHUNK_BYTES} bytes",
        )
        return made

    def _chunks(
        self, name: str, made: Stored, *, least: int, most: int
    ) -> tuple[Int64, Int64]:
        """Read and validate the offset and stored size of each chunk, in order."""
        want = math.prod(
            -(-n // c) for n, c in zip(made.shape, made.chunks, strict=True)
        )
        self.require(
            want * least <= self._size,
            f"/{name} has the shape {made.shape}, for which the file is too small",
        )
        source = FileBytes(self.pread, self._size)
        try:
            offsets, sizes = read_index(source, made.index, want)
        except ValueError as error:
            raise self.damaged(f"/{name}: {error}") from None
        sound = (sizes >= least) & (sizes <= most) & (offsets > 0)
        sound &= (offsets < self._size) & (sizes <= self._size)
        self.require(bool(sound.all()), f"/{name} has an implausible chunk")
        order = np.argsort(offsets)
        at, size = offsets.astype(np.int64), sizes.astype(np.int64)
        ends, following = (at + size)[order], np.append(at[order][1:], self._size)
        self.require(
            bool((ends <= following).all()),
            f"/{name} has chunks that overlap, or leave the file",
        )
        return at, size


class FilePanel:
    """Panel ``[N, ...]`` stored in a validated file, verified when rows are read."""

    def __init__(
        self,
        container: Container,
        name: str,
        stored: Stored,
        offsets: Int64,
        sizes: Int64,
        sums: UInt32,
        *,
        counts: bool,
    ) -> None:
        self.shape, self.dtype = stored.shape, stored.dtype
        self.stored_bytes = int(sizes.sum())  # of its chunks, without its checksums
        self._container, self._name, self._chunk = container, name, stored.chunks
        self._offsets, self._sizes = offsets, sizes  # by chunk, the rows' axis slowest
        self._sums, self._counts = sums, counts

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Read rows of the half-open range [start, stop) and verify their checksums."""
        if not 0 <= start <= stop <= self.shape[0]:
            raise IndexError(f"rows {start}:{stop} of {self.shape[0]}")
        out = np.empty((stop - start, *self.shape[1:]), self.dtype)
        deep, *inner = self._chunk
        # chunks of the same rows: a large matrix is split along its first axis
        beside = -(-self.shape[1] // inner[0]) if inner else 1
        for number in range(start // deep * beside, -(-stop // deep) * beside):
            top, corner = number // beside * deep, number % beside
            a, b = max(top, start), min(top + deep, stop)
            rows = out[a - start : b - start]
            part = rows
            if beside > 1:
                part = rows[:, corner * inner[0] : (corner + 1) * inner[0]]
            if part.shape == self._chunk:
                self._decode(number, part)
            else:
                whole = np.empty(self._chunk, self.dtype)
                self._decode(number, whole)
                part[...] = whole[
                    (slice(a - top, b - top), *map(slice, part.shape[1:]))
                ]
            if corner == beside - 1:
                self._verify(rows, a)
        if self._counts and out.size:
            # as unsigned numbers, negative values exceed all others: one maximum
            most = int(out.view(f"<u{out.itemsize}").max())
            self._container.require(
                most >> (8 * out.itemsize - 1) == 0,
                f"a count in {self._name} is below zero",
            )
            self._container.require(
                most <= MOST_BYTES, f"a count in {self._name} is too large"
            )
        return out

    def _decode(self, number: int, out: npt.NDArray[Any]) -> None:
        """Inflate a chunk into an array of its shape."""
        try:
            raw = self._container.pread(
                int(self._offsets[number]), int(self._sizes[number])
            )
            decode(raw, self._chunk, self.dtype, out, summed=True)
        except (ValueError, OSError) as error:
            raise self._container.damaged(
                f"chunk {number} of {self._name}: {error}"
            ) from None

    def _verify(self, part: npt.NDArray[Any], first: int) -> None:
        """Compare the CRC-32 of rows with the stored checksums."""
        wrong = self._sums[first : first + len(part)] != checksums(part)
        self._container.require(
            not wrong.any(),
            f"row {first + int(np.argmax(wrong))} of {self._name} has changed",
        )
