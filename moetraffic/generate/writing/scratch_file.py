"""Temporary HDF5 file of arrays that are written and read in different orders.

A run is drawn iteration by iteration, and a trace file has all iterations of a call
site together.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from moetraffic.files import DeferredErrorFile
from moetraffic.trace.panel import ComputedPanel, Panel

CHUNK_BYTES = 256 << 10


class ScratchFile:
    """Arrays ``[K, n, ...]`` on disk that grow along n; a context manager.

    The file in ``folder`` has no name, and is deleted when it is closed.
    """

    def __init__(self, folder: Path) -> None:
        with tempfile.TemporaryDirectory(prefix=".moetraffic-", dir=folder) as hidden:
            self._target = DeferredErrorFile(Path(hidden) / "scratch.h5")
        self._file = h5py.File(self._target, "w", libver=("v110", "v110"))

    def __enter__(self) -> ScratchFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._target.close()

    def append(self, arrays: Mapping[str, npt.NDArray[Any]], width: int) -> None:
        """Append ``[K, b, ...]`` to arrays, of whose axis 2 ``width`` are read at once.

        Raises
        ------
        OSError
            If the disk is full.
        """
        for name, rows in arrays.items():
            count, inner = rows.shape[1], rows.shape[3:]
            if name not in self._file:
                row = width * int(np.prod(inner)) * rows.itemsize
                deep = min(count, max(1, CHUNK_BYTES // row))
                self._file.create_dataset(
                    name,
                    shape=(len(rows), 0, *rows.shape[2:]),
                    maxshape=(len(rows), None, *rows.shape[2:]),
                    dtype=rows.dtype,
                    chunks=(1, deep, width, *inner),
                    shuffle=True,
                    compression="gzip",
                    compression_opts=1,
                )
            data = self._file[name]
            data.resize(data.shape[1] + count, axis=1)
            data[:, -count:] = rows
        self._file.flush()
        self._target.settle()

    def panel(self, name: str, at: int, count: int) -> Panel:
        """Return the first ``count`` rows of element ``at``, ``[count, ...]``."""
        data = self._file[name]
        return ComputedPanel(
            (count, *data.shape[2:]), data.dtype, lambda a, b: data[at, a:b]
        )
