"""Write an HDF5 file of columns and panels in the layout of ``docs/format.md``.

A *column* is one-dimensional, stored uncompressed with HDF5's Fletcher-32 checksum.  A
*panel* ``[N, ...]`` is shuffled and deflated, with a CRC32 per row in ``<name>_crc32``.
The CRC32 of every column, and of the root attributes, are in ``checksum_crc32``.
Every axis has a dimension scale, which netCDF readers use as its name.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, cast

import h5py
import numpy as np
import numpy.typing as npt

from moetraffic.trace.panel import Panel

from .codec import (
    COLUMN_ROWS,
    attributes_checksum,
    checksums,
    chunk_shape,
    column_checksum,
    encode,
)

LIBVER = ("v110", "v110")  # newer object headers are unreadable to older h5dump
TEXT_BYTES = 16384


class Image:
    """Writer of an HDF5 file of columns and panels; a context manager.

    ``target`` is a binary file object in memory or on disk; ``attributes`` are those of
    the root group: str, int, float.
    """

    def __init__(
        self, target: BinaryIO | io.RawIOBase, attributes: Mapping[str, Any]
    ) -> None:
        self._file = h5py.File(target, "w", libver=LIBVER)
        self._sums = {"": attributes_checksum(attributes)}
        for name, value in attributes.items():
            self._file.attrs[name] = _fixed(value)

    def __enter__(self) -> Image:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._write_checksums()
        self._file.close()

    def column(
        self,
        name: str,
        data: npt.ArrayLike,
        dtype: str,
        *,
        axis: str = "",
        unit: str = "",
        about: str = "",
    ) -> None:
        """Write a one-dimensional column; without ``axis`` it becomes an axis."""
        array = np.asarray(data, dtype)
        self._sums[name] = column_checksum(name, array)
        made = self._file.create_dataset(
            name,
            data=array,
            dtype=dtype,
            chunks=(max(1, min(COLUMN_ROWS, len(array))),),
            maxshape=(None,),
            fletcher32=True,
        )
        if axis:
            made.dims[0].attach_scale(self._file[axis])
        else:
            made.make_scale(name)
        self._describe(made, unit, about)

    def panel(
        self,
        name: str,
        panel: Panel,
        dtype: str,
        axes: Sequence[str],
        *,
        unit: str = "",
        about: str = "",
    ) -> None:
        """Write a panel ``[N, ...]`` chunk by chunk, with a checksum per row."""
        kind = np.dtype(dtype)
        chunk = chunk_shape(panel.shape, kind.itemsize)
        made = self._file.create_dataset(
            name,
            panel.shape,
            kind,
            chunks=chunk,
            maxshape=(None, *panel.shape[1:]),
            shuffle=True,
            compression="gzip",
            compression_opts=1,
        )
        sums = np.zeros(panel.shape[0], "<u4")
        for cut in made.iter_chunks() if panel.shape[0] else ():
            rows_cut, *corner = cut
            if not any(c.start for c in corner):
                rows = np.asarray(panel.read(rows_cut.start, rows_cut.stop), kind)
                sums[rows_cut] = checksums(rows)
            made.id.write_direct_chunk(
                [c.start for c in cut], encode(rows[(slice(None), *corner)], chunk)
            )
        for at, axis in enumerate(axes):
            made.dims[at].attach_scale(self._file[axis])
        self._describe(made, unit, about)
        self.column(f"{name}_crc32", sums, "<u4", axis=axes[0])

    def _write_checksums(self) -> None:
        names, sums = list(self._sums), list(self._sums.values())
        width = max(map(len, names))
        about = "name of a column; empty: the root attributes"
        self.column("checksum", [n.encode() for n in names], f"S{width}", about=about)
        self.column("checksum_crc32", sums, "<u4", axis="checksum", about="CRC-32")

    def _describe(self, made: h5py.Dataset, unit: str, about: str) -> None:
        for key, value in (("units", unit), ("long_name", about)):
            if value:
                made.attrs[key] = _fixed(value)


def _fixed(value: Any) -> Any:
    """Convert an attribute value to fixed size, as the global heap is not supported."""
    if isinstance(value, str):
        raw = value.encode()
        if len(raw) > TEXT_BYTES:
            raise ValueError(f"an attribute of {len(raw)} bytes is over {TEXT_BYTES}")
        return np.bytes_(raw or b"\0")
    if isinstance(value, bool | int | np.integer):
        return np.int64(value)
    return np.float64(cast(float, value))
