"""Arrays with one row per occurrence, stored in memory or in a file."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Int64


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
        self._array, self.shape, self.dtype = array, array.shape, array.dtype

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return rows of the half-open range [start, stop)."""
        return self._array[start:stop]


def take(panel: Panel, rows: Int64) -> npt.NDArray[Any]:
    """Read the rows ``[n]`` int64 of a panel, in the given order, ``[n, ...]``."""
    runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1) if len(rows) else []
    parts = [panel.read(int(run[0]), int(run[-1]) + 1) for run in runs]
    if len(parts) == 1 and parts[0].base is None:
        return parts[0]
    return np.concatenate([np.empty((0, *panel.shape[1:]), panel.dtype), *parts])
