"""Scratch file for panels that are written and read in different orders.

A run is drawn iteration by iteration, and its file is sorted by site: each site's
blocks are kept deflated in one scratch file until the trace is put together.
"""

from __future__ import annotations

import bisect
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.trace.hdf5.codec import decode, encode


class ScratchFile:
    """Scratch file of series of rows, as a context manager that deletes it.

    Parameters
    ----------
    folder
        Where the scratch file is; it has no name there.
    """

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed on exit
        self._end = 0
        self._lock = threading.Lock()

    def __enter__(self) -> ScratchFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def put(self, encoded: bytes) -> int:
        """Append bytes; where they begin.  Threads may do so at once."""
        with self._lock:
            offset = self._end
            self._file.seek(offset)
            self._file.write(encoded)
            self._end += len(encoded)
        return offset

    def get(self, offset: int, length: int) -> bytes:
        """The bytes that were put there."""
        with self._lock:
            self._file.seek(offset)
            return self._file.read(length)


class Series:
    """Rows ``[n, ...]`` of one site, appended in order and read anywhere."""

    def __init__(self, scratch: ScratchFile, dtype: npt.DTypeLike) -> None:
        self._scratch = scratch
        self.dtype = np.dtype(dtype)
        # of each block: where it begins in the scratch file, its bytes, its shape
        self._blocks: list[tuple[int, int, tuple[int, ...]]] = []
        self._firsts: list[int] = []
        self._last: tuple[int, npt.NDArray[Any]] | None = None
        self.length = 0

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Add some rows."""
        raw = encode(np.ascontiguousarray(rows, self.dtype), rows.shape)
        offset = self._scratch.put(raw)
        self._firsts.append(self.length)
        self._blocks.append((offset, len(raw), rows.shape))
        self.length += len(rows)

    def read(self, start: int, stop: int) -> list[npt.NDArray[Any]]:
        """Rows ``start`` up to ``stop``, in parts."""
        parts = []
        while start < stop:
            at = bisect.bisect_right(self._firsts, start) - 1
            rows = self._decoded(at)
            first = self._firsts[at]
            parts.append(rows[start - first : stop - first])
            start = first + len(rows)
        return parts

    def forget(self) -> None:
        """Release the block that was read last."""
        self._last = None

    def _decoded(self, at: int) -> npt.NDArray[Any]:
        if self._last is None or self._last[0] != at:
            offset, length, shape = self._blocks[at]
            raw = self._scratch.get(offset, length)
            self._last = (at, decode(raw, shape, self.dtype))
        return self._last[1]


class ScratchPanel:
    """A panel whose rows are those of several series, one after the other.

    Parameters
    ----------
    series
        In the order of the panel; None: all values are ``missing``.
    rows
        How many of each are taken: all have at least so many.
    shape
        Of a row.
    missing
        Value of what has no series.
    """

    def __init__(
        self,
        series: Sequence[Series | None],
        rows: int,
        shape: tuple[int, ...],
        missing: int = 0,
    ) -> None:
        self._series = series
        self._rows = rows
        self._shape = shape
        self._missing = missing
        self._before: Series | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape; the first axis counts rows."""
        return (len(self._series) * self._rows, *self._shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return next(series.dtype for series in self._series if series is not None)

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Rows ``start`` up to ``stop``."""
        parts: list[npt.NDArray[Any]] = [np.zeros((0, *self._shape), self.dtype)]
        while start < stop:
            which, row = divmod(start, self._rows)
            count = min(stop - start, self._rows - row)
            series = self._series[which]
            if self._before not in (None, series):
                self._before.forget()
            self._before = series
            if series is None:
                shape = (count, *self._shape)
                parts.append(np.full(shape, self._missing, self.dtype))
            else:
                parts += series.read(row, row + count)
            start += count
        return np.concatenate(parts)
