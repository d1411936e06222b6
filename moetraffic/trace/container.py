"""Read columns and panels from a file that is not to be trusted.

Order of the checks: a regular file with HDF5's signature; few enough links and
attributes, none of variable length; the format's name and version; each dataset by
hard link, of exactly the expected type and rank, neither virtual nor external; chunks
that lie inside the file, complete, apart from each other and of plausible size.  After
that HDF5 is closed: panels are read with ``pread`` and inflated by ``codec``.
"""

from __future__ import annotations

import math
import os
import stat
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from moetraffic.errors import TraceError

from .codec import COLUMN_ROWS, attributes_checksum, chunk_shape, column_checksum
from .file_panel import FilePanel

SIGNATURE = b"\x89HDF\r\n\x1a\n"
SUPERBLOCK = b"\x03"  # its version, which says that metadata has checksums
MOST_LINKS = 1024
MOST_ATTRIBUTES = 64
MOST_ATTRIBUTE_BYTES = 64 << 10
MOST_CHUNK_BYTES = 64 << 20
MOST_ROW_BYTES = 64 << 20  # a matrix between 2896 ranks, in bytes that were sent
MOST_RATIO = 1100  # deflate cannot shrink by more than 1032
MOST_TEXT = 1024

KINDS = {"moetraffic": "a moetraffic trace", "moetraffic-segment": "a segment"}
"""The kinds of files, in words."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A dataset, and how it is stored."""

    id: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...]
    filters: list[int]


class Container:
    """A checked file of columns and panels; a context manager.

    Parameters
    ----------
    path
        The file.
    kind, version
        What its ``format`` and ``format_version`` attributes must say.

    Raises
    ------
    TraceError
        If it is missing, no HDF5 file, of another kind or version, or damaged.
    """

    def __init__(self, path: str | Path, kind: str, version: int) -> None:
        self.path = Path(path)
        self._fd = -1
        self._size = 0
        self._h5: h5py.File | None = None
        try:
            self._open()
            self.attributes = self._read_attributes()
            self._names = set(self._file)
            self._identify(kind, version)
            self._sums = self._read_checksums()
        except BaseException as error:
            self.close()
            raise self.translated(error) from None

    def __enter__(self) -> Container:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    @property
    def names(self) -> frozenset[str]:
        """Names of all datasets at the root."""
        return frozenset(self._names)

    def close(self) -> None:
        """Close everything; panels cannot be read after it."""
        self.seal()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def seal(self) -> None:
        """Close HDF5: no further column or panel is opened, rows can still be read."""
        if self._h5 is not None:
            self._h5.close()
            self._h5 = None

    def pread(self, offset: int, size: int) -> bytes:
        """Raw bytes of the file."""
        return os.pread(self._fd, size, offset)

    def column(
        self, name: str, dtype: str, length: int | None = None
    ) -> npt.NDArray[Any]:
        """A column ``[n]``; ``dtype`` "S" stands for text of any fixed width."""
        read = self._column(name, dtype, length)
        self._require(
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
        """A panel whose axes have the given lengths (None: any).

        ``counts``: no value may be below zero.
        """
        made = self._dataset(name, dtype, rank=len(shape))
        self._require(
            all(n is None or n == m for n, m in zip(shape, made.shape, strict=True)),
            f"/{name} has shape {made.shape}, not {shape}",
        )
        self._require(
            made.filters == [h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_DEFLATE],
            f"/{name} is not stored with exactly shuffle and deflate",
        )
        row = math.prod(made.shape[1:]) * made.dtype.itemsize
        self._require(
            row <= MOST_ROW_BYTES, f"a row of /{name} has {row} bytes, which is absurd"
        )
        self._require(
            made.chunks == chunk_shape(made.shape, made.dtype.itemsize),
            f"/{name} is stored in chunks of {made.chunks}",
        )
        full = math.prod(made.chunks) * made.dtype.itemsize
        index = self._chunks(
            name, made, least=-(-full // MOST_RATIO), most=full + full // 1000 + 64
        )
        sums = self.column(f"{name}_crc32", "<u4", made.shape[0])
        return FilePanel(
            self, name, made.shape, made.dtype, made.chunks, index, sums, counts
        )

    def damaged(self, what: str) -> TraceError:
        """The error that says what is wrong with this file."""
        return TraceError(
            f"{self.path} is damaged or no trace: {' '.join(what.split())[:300]}; take "
            "a copy that is whole"
        )

    def translated(self, error: BaseException) -> BaseException:
        """Whatever h5py or the system raised on this file, as one sentence."""
        if isinstance(error, TraceError | MemoryError) or not isinstance(
            error, Exception
        ):
            return error
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return TraceError(f"there is no file {self.path}: check the path")
        if isinstance(error, PermissionError):
            return TraceError(f"{self.path} may not be read: change its permissions")
        if "truncated file" in str(error):
            return self.damaged(f"it is cut off after {self._size} bytes")
        if isinstance(error, OSError) and error.filename is not None:
            return TraceError(
                f"{str(self.path)[:200]} cannot be opened ({error.strerror}): check "
                "the path"
            )
        if type(error).__module__ != "builtins" or isinstance(
            error, OSError | RuntimeError
        ):
            # HDF5's own words name its functions, not what is wrong
            return self.damaged("its HDF5 structure cannot be read")
        return self.damaged(
            f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        )

    @property
    def _file(self) -> h5py.File:
        if self._h5 is None:
            raise ValueError(f"{self.path} is closed")
        return self._h5

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise self.damaged(what)

    def _open(self) -> None:
        # O_NONBLOCK: a named pipe must be refused, not waited for
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
        # older files have no checksums over their structure, and trees of chunks whose
        # branches can lead back to their root
        self._require(
            self.pread(len(SIGNATURE), 1) == SUPERBLOCK,
            "its HDF5 superblock is not of version 3",
        )
        # through a file object: no lock, so others may have the file open as they like
        self._h5 = h5py.File(os.fdopen(os.dup(self._fd), "rb", buffering=0), "r")

    def _read_attributes(self) -> dict[str, Any]:
        file = self._file
        self._require(len(file) <= MOST_LINKS, f"it has {len(file)} datasets")
        self._require(
            len(file.attrs) <= MOST_ATTRIBUTES, f"it has {len(file.attrs)} attributes"
        )
        found: dict[str, Any] = {}
        for name in file.attrs:
            made = file.attrs.get_id(name)
            kind = made.get_type()
            self._require(
                kind.get_class() in (h5py.h5t.INTEGER, h5py.h5t.FLOAT, h5py.h5t.STRING)
                and not (
                    kind.get_class() == h5py.h5t.STRING and kind.is_variable_str()
                ),
                f"attribute {name} is neither a number nor text of fixed length",
            )
            self._require(
                made.get_storage_size() <= MOST_ATTRIBUTE_BYTES,
                f"attribute {name} is too large",
            )
            value = file.attrs[name]
            self._require(np.ndim(value) == 0, f"attribute {name} is not a scalar")
            found[name] = value.decode() if isinstance(value, bytes) else value.item()
        return found

    def _identify(self, kind: str, version: int) -> None:
        if self.attributes.get("format") != kind:
            raise TraceError(
                f"{self.path} is an HDF5 file of another kind, not "
                f"{KINDS.get(kind, kind)}: name a file that moetraffic wrote"
            )
        found = self.attributes.get("format_version")
        if found != version:
            raise TraceError(
                f"{self.path} has format version {found}, and this moetraffic reads "
                f"version {version}: use the release that wrote it"
            )

    def _read_checksums(self) -> dict[str, int]:
        """What each column must have; the root attributes are compared at once."""
        names = self._column("checksum", "S", None)
        sums = self._column("checksum_crc32", "<u4", len(names)).tolist()
        told = {n.decode(): s for n, s in zip(names.tolist(), sums, strict=True)}
        self._require(
            told.get("") == attributes_checksum(self.attributes),
            "its attributes are not what was written",
        )
        return told

    def _column(self, name: str, dtype: str, length: int | None) -> npt.NDArray[Any]:
        made = self._dataset(name, dtype, rank=1)
        (rows,) = made.shape
        self._require(
            length is None or rows == length, f"/{name} has {rows} rows, not {length}"
        )
        self._require(
            made.filters == [h5py.h5z.FILTER_FLETCHER32],
            f"/{name} is not stored as a checksummed column",
        )
        self._require(
            made.chunks == (max(1, min(COLUMN_ROWS, rows)),),
            f"/{name} is stored in chunks of {made.chunks}",
        )
        size = math.prod(made.chunks) * made.dtype.itemsize + 4
        self._chunks(name, made, least=size, most=size)
        try:
            read = np.empty(made.shape, made.dtype)
            made.id.read(h5py.h5s.ALL, h5py.h5s.ALL, read)
            return read
        except (OSError, RuntimeError, ValueError) as error:
            raise self.translated(error) from None

    def _dataset(self, name: str, dtype: str, rank: int) -> Stored:
        try:
            return self._checked_dataset(name, dtype, rank)
        except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
            raise self.translated(error) from None

    def _checked_dataset(self, name: str, dtype: str, rank: int) -> Stored:
        root = self._file.id
        raw = name.encode()
        self._require(
            name in self._names
            and root.links.get_info(raw).type == h5py.h5l.TYPE_HARD
            and h5py.h5o.get_info(root, raw).type == h5py.h5o.TYPE_DATASET,
            f"/{name} is missing or no dataset",
        )
        made = h5py.h5d.open(root, raw)
        kind = made.get_type()
        if dtype == "S":
            fits = (
                kind.get_class() == h5py.h5t.STRING
                and not kind.is_variable_str()
                and kind.get_size() <= MOST_TEXT
            )
        else:
            want = np.dtype(dtype)
            classes = {"i": h5py.h5t.INTEGER, "u": h5py.h5t.INTEGER}
            fits = (
                kind.get_class() == classes.get(want.kind, h5py.h5t.FLOAT)
                and kind.get_size() == want.itemsize
                and kind.get_precision() == want.itemsize * 8
                and kind.dtype == want
            )
        self._require(fits, f"/{name} has elements of another type than {dtype}")
        space = made.get_space()
        self._require(
            space.get_simple_extent_type() == h5py.h5s.SIMPLE
            and space.get_simple_extent_ndims() == rank,
            f"/{name} has not {rank} axes",
        )
        plist = made.get_create_plist()
        layout = plist.get_layout()
        self._require(
            layout != h5py.h5d.VIRTUAL and not plist.get_external_count(),
            f"/{name} has its data in another file",
        )
        self._require(layout == h5py.h5d.CHUNKED, f"/{name} is not stored in chunks")
        filters = [plist.get_filter(n)[0] for n in range(plist.get_nfilters())]
        stored = Stored(
            id=made,
            shape=space.get_simple_extent_dims(),
            dtype=kind.dtype,
            chunks=plist.get_chunk(),
            filters=filters,
        )
        self._require(
            math.prod(stored.chunks) * stored.dtype.itemsize <= MOST_CHUNK_BYTES,
            f"/{name} has chunks of more than {MOST_CHUNK_BYTES} bytes",
        )
        return stored

    def _chunks(
        self, name: str, made: Stored, *, least: int, most: int
    ) -> dict[tuple[int, ...], tuple[int, int]]:
        """Offset and size of each chunk by its corner, after all checks."""
        want = math.prod(
            -(-n // c) for n, c in zip(made.shape, made.chunks, strict=True)
        )
        # before HDF5 looks for chunks: it would look for as many as are claimed
        self._require(
            want * least <= self._size,
            f"/{name} has the shape {made.shape}, for which the file is too small",
        )
        index: dict[tuple[int, ...], tuple[int, int]] = {}
        sound = True

        def visit(chunk: Any) -> None:
            nonlocal sound
            sound &= (
                chunk.filter_mask == 0
                and least <= chunk.size <= most
                and chunk.byte_offset > 0
                and chunk.byte_offset + chunk.size <= self._size
            )
            index[tuple(chunk.chunk_offset)] = (chunk.byte_offset, chunk.size)

        try:
            if math.prod(made.shape):
                made.id.chunk_iter(visit)
        except (OSError, RuntimeError, ValueError) as error:
            raise self.translated(error) from None
        self._require(sound, f"/{name} has an implausible chunk")
        self._require(
            len(index) == want, f"/{name} has {len(index)} of its {want} chunks"
        )
        spans = sorted(index.values())
        self._require(
            all(a + n <= b for (a, n), (b, _) in pairwise(spans)),
            f"/{name} has chunks that overlap",
        )
        return index
