"""Arrays with one row per call or per matrix: in memory, in a file, or computed."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Bool, Int64


class Panel(Protocol):
    """Interface of an array ``[N, ...]`` whose rows are read on demand."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the panel; the first axis counts rows."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of the panel."""

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Read rows of the half-open range [start, stop), within the panel."""


class ArrayPanel:
    """Panel backed by an array or a memory map."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array, self.shape, self.dtype = array, array.shape, array.dtype

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return rows of the half-open range [start, stop)."""
        return self._array[start:stop]


class ComputedPanel:
    """Panel whose rows are computed when they are read, by ``compute(start, stop)``."""

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: npt.DTypeLike,
        compute: Callable[[int, int], npt.NDArray[Any]],
    ) -> None:
        self.shape, self.dtype, self._compute = shape, np.dtype(dtype), compute

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Compute rows of the half-open range [start, stop)."""
        if start >= stop:
            return np.empty((0, *self.shape[1:]), self.dtype)
        return np.asarray(self._compute(start, stop), self.dtype)


def constant_panel(shape: tuple[int, ...], dtype: npt.DTypeLike, value: int) -> Panel:
    """Return a panel that has the same value everywhere, without its memory."""
    return ArrayPanel(np.broadcast_to(np.array(value, dtype), shape))


def stacked(parts: list[Panel]) -> Panel:
    """Join panels of equal rows along their rows."""
    if len(parts) == 1:
        return parts[0]
    ends = np.cumsum([part.shape[0] for part in parts]).tolist()

    def compute(start: int, stop: int) -> npt.NDArray[Any]:
        found = []
        for number in range(bisect_right(ends, start), bisect_left(ends, stop) + 1):
            part, end = parts[number], ends[number]
            first = end - part.shape[0]
            found.append(part.read(max(start, first) - first, min(stop, end) - first))
        return np.concatenate(found)

    return ComputedPanel((ends[-1], *parts[0].shape[1:]), parts[0].dtype, compute)


def take(panel: Panel, rows: Int64) -> npt.NDArray[Any]:
    """Read the rows ``[n]`` int64 of a panel, in the given order, ``[n, ...]``."""
    if not len(rows):
        return np.empty((0, *panel.shape[1:]), panel.dtype)
    first, last = int(rows.min()), int(rows.max())
    if last - first < 2 * len(rows):
        block = panel.read(first, last + 1)
        whole = len(block) == len(rows) and bool((np.diff(rows) == 1).all())
        return block if whole else block[rows - first]
    wanted, place = np.unique(rows, return_inverse=True)
    runs = np.split(wanted, np.flatnonzero(np.diff(wanted) != 1) + 1)
    parts = [panel.read(int(run[0]), int(run[-1]) + 1) for run in runs]
    return np.concatenate(parts)[place]


class DistinctRows:
    """Numbers of distinct matrices or vectors, matrices also up to transposition."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    def add(self, rows: npt.NDArray[Any]) -> tuple[Int64, Bool, npt.NDArray[Any]]:
        """Number rows ``[n, W, W]`` or ``[n, W]``.

        Returns their numbers ``[n]``, a mask ``[n]`` of those that are a numbered
        matrix transposed, and the rows that are new, in the order of their numbers.
        """
        number = np.empty(len(rows), np.int64)
        transposed = np.zeros(len(rows), bool)
        new = []
        for place, row in enumerate(rows):
            key = _digest(row)
            known = self._numbers.get(key)
            if known is None and row.ndim == 2:
                known = self._numbers.get(_digest(row.T))
                transposed[place] = known is not None
            if known is None:
                known = self._numbers[key] = len(self._numbers)
                new.append(place)
            number[place] = known
        return number, transposed, rows[new]


def _digest(row: npt.NDArray[Any]) -> bytes:
    return blake2b(np.ascontiguousarray(row).data, digest_size=16).digest()


def count_equal(key: npt.NDArray[Any]) -> Int64:
    """Number the elements with equal key consecutively, ``[n]``."""
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    out = np.empty(len(key), np.int64)
    out[order] = np.arange(len(key)) - np.searchsorted(ordered, ordered)
    return out
