"""Arrays with one row per occurrence, stored in memory or in a file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class Panel(Protocol):
    """Interface of an array ``[N, ...]`` whose rows are read on demand."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the panel; the first axis counts rows."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of the panel."""
        ...

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Read rows of the half-open range [start, stop), within the panel."""
        ...


class ArrayPanel:
    """Panel backed by an array or a memory map."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the panel; the first axis counts rows."""
        return self._array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of the panel."""
        return self._array.dtype

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return rows of the half-open range [start, stop)."""
        return self._array[start:stop]


def take(panel: Panel, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Read the given rows of a panel, in the given order.

    Parameters
    ----------
    panel
        ``[N, ...]``.
    rows
        ``[n]`` int64 row numbers in any order.

    Returns
    -------
    ndarray
        ``[n, ...]``.
    """
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
        found = panel.read(int(rows[0]), int(rows[-1]) + 1)
        return found if found.base is None else found.copy()
    out = np.empty((len(rows), *panel.shape[1:]), panel.dtype)
    for at, first, last in _runs(rows):
        out[at : at + last - first] = panel.read(first, last)
    return out


def _runs(rows: npt.NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Yield runs of consecutive rows: (position in ``rows``, first, last + 1)."""
    if not len(rows):
        return
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    edges = [0, *breaks.tolist(), len(rows)]
    for a, b in pairwise(edges):
        yield a, int(rows[a]), int(rows[b - 1]) + 1
