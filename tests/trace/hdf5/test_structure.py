"""The structure of a file is read without HDF5, as HDF5 wrote it."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from moetraffic.trace.hdf5.block import FileBytes, Malformed
from moetraffic.trace.hdf5.chunk_index import read_index
from moetraffic.trace.hdf5.structure import Structure

LIBVER = ("v110", "v110")


def source_of(path: Path) -> FileBytes:
    data = path.read_bytes()
    return FileBytes(lambda offset, size: data[offset : offset + size], len(data))


@pytest.mark.slow
@pytest.mark.parametrize(
    # index block; data blocks; super blocks; pages of data blocks
    "count",
    [0, 1, 4, 5, 20, 21, 52, 53, 180, 181, 3000, 20_000],
)
def test_chunks_lie_where_hdf5_says(count: int, tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w", libver=LIBVER) as file:
        made = file.create_dataset(
            "d", (count,), "<i8", chunks=(1,), maxshape=(None,), fletcher32=True
        )
        if count:
            made[...] = np.arange(count)
    source = source_of(path)
    stored = Structure(source).dataset("d")
    assert (stored.shape, stored.chunks, stored.filters) == ((count,), (1,), (3,))
    offsets, sizes = read_index(source, stored.index, count)
    told = {}
    if count:
        with h5py.File(path) as file:
            file["d"].id.chunk_iter(
                lambda c: told.__setitem__(c.chunk_offset[0], (c.byte_offset, c.size))
            )
    found = dict(enumerate(zip(offsets.tolist(), sizes.tolist(), strict=True)))
    assert found == told
    with pytest.raises(Malformed):
        read_index(source, stored.index, count + 1)


@pytest.mark.parametrize("count", [1, 8, 9, 60, 1000])
def test_links_and_attributes_of_any_number(count: int, tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    texts = {f"text {n}": "y" * (n * 30 + 1) for n in range(min(count, 60))}
    with h5py.File(path, "w", libver=LIBVER) as file:
        for n in range(count):
            file.create_dataset(f"a dataset {n}", (1,), "<i4", chunks=(1,))
        for name, text in texts.items():
            file.attrs[name] = np.bytes_(text.encode())
        file.attrs["whole"] = np.int64(-5)
        file.attrs["real"] = np.float64(0.5)
        file.attrs["long"] = np.bytes_(b"z" * 16_000)  # too large for the heap's blocks
    there = Structure(source_of(path))
    assert there.links.keys() == {f"a dataset {n}" for n in range(count)}
    assert there.attributes == texts | {"whole": -5, "real": 0.5, "long": "z" * 16_000}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["|u1", "<u4", "<i4", "<i8", "<f8", "S1", "S300"])
def test_types_of_elements(dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w", libver=LIBVER) as file:
        file.create_dataset(
            "d",
            (7, 3, 2),
            dtype,
            chunks=(4, 3, 2),
            maxshape=(None, 3, 2),
            shuffle=True,
            compression="gzip",
        )
    stored = Structure(source_of(path)).dataset("d")
    assert stored.dtype == np.dtype(dtype)
    assert (stored.shape, stored.chunks, stored.filters) == (
        (7, 3, 2),
        (4, 3, 2),
        (2, 1),
    )


@pytest.mark.slow
def test_a_circle_of_structure_ends(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w", libver=LIBVER) as file:
        for n in range(100):
            file.attrs[f"a{n}"] = np.bytes_(b"x" * 100)
    source = source_of(path)
    for _ in range(4):
        source.block(0, source.size)
    with pytest.raises(Malformed, match="outside of the file"):
        # whoever goes round in it comes to an end
        [source.block(0, source.size) for _ in range(10_000)]
    with pytest.raises(Malformed, match="more than 64"):
        Structure(source_of(path))
