"""Files: what is written is read, by us and by others, and damage is noticed."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import subprocess
import zlib
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.errors import TraceError
from moetraffic.trace import Trace
from moetraffic.trace.hdf5 import durable
from moetraffic.trace.hdf5.codec import chunk_shape, decode, encode
from moetraffic.trace.panel import ArrayPanel


def equal(a: Trace, b: Trace) -> None:
    assert a.meta.as_dict().keys() == b.meta.as_dict().keys()
    assert repr(a.meta) == repr(b.meta)  # NaN is equal to NaN here
    assert a.groups == b.groups
    assert a.sites == b.sites
    assert a.programs == b.programs
    assert np.array_equal(a.placements, b.placements)
    assert np.array_equal(a.clocks, b.clocks)
    assert a.steps.kind == b.steps.kind
    for name in ("iteration", "site", "sequence"):
        assert np.array_equal(
            getattr(a.occurrences, name), getattr(b.occurrences, name)
        )
    for name in ("iteration", "loss", "tokens", "start", "end"):
        assert np.array_equal(
            getattr(a.steps, name), getattr(b.steps, name), equal_nan=name == "loss"
        )
    assert a.panels.keys() == b.panels.keys()
    for name, panel in a.panels.items():
        other = b.panels[name]
        assert panel.shape == other.shape
        assert np.array_equal(
            panel.read(0, panel.shape[0]), other.read(0, other.shape[0])
        ), name


def test_a_trace_is_read_as_it_was_written(trace: Trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "a.h5")
    with Trace.open(tmp_path / "a.h5") as again:
        equal(trace, again)
        again.save(tmp_path / "b.h5")
    with Trace.open(tmp_path / "b.h5") as twice:
        equal(trace, twice)


def test_a_real_capture_is_written_and_read(captured: Path, tmp_path: Path) -> None:
    with Trace.open(captured) as trace:
        trace.save(tmp_path / "copy.h5")
        with Trace.open(tmp_path / "copy.h5") as again:
            equal(trace, again)


def test_nothing_is_overwritten_without_force(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    path.write_text("mine")
    with pytest.raises(TraceError, match="not overwritten"):
        trace.save(path)
    assert path.read_text() == "mine"
    trace.save(path, force=True)
    Trace.open(path).close()
    assert [p.name for p in tmp_path.iterdir()] == ["a.h5"]


def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = 0

    def pwrite(fd: int, data: memoryview, offset: int) -> int:
        nonlocal written
        written += len(data)
        if written > 20_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(fd, data) if os.lseek(fd, offset, 0) >= 0 else 0

    monkeypatch.setattr(durable.os, "pwrite", pwrite)
    with pytest.raises(TraceError, match=r"cannot be written \(No space left"):
        trace.save(tmp_path / "a.h5")
    assert list(tmp_path.iterdir()) == []


def test_xarray_reads_it_with_its_dimensions(captured: Path) -> None:
    xarray = pytest.importorskip("xarray")
    with (
        xarray.open_dataset(captured, engine="h5netcdf") as data,
        Trace.open(captured) as trace,
    ):
        demand = data["demand_4x8"]
        assert demand.dims == ("demand_row_4x8", "src_4", "expert_8")
        assert demand.attrs["long_name"] == "token copies a rank routed to an expert"
        site = data["occurrence_site"][data["demand_row_4x8"].to_numpy()].to_numpy()
        layer = data["site_layer"].to_numpy()[site]
        routed = trace.find(operation="routing", layer=3)
        assert np.array_equal(demand.to_numpy()[layer == 3], trace.demand(routed))
        assert data.attrs["format"] == "moetraffic"


def test_h5dump_reads_it(captured: Path) -> None:
    tool = shutil.which("h5dump")
    assert tool, "h5dump is missing: make test installs it (apt-get install hdf5-tools)"
    shown = subprocess.run(
        [tool, "-p", "-d", "/demand_4x8", "-s", "0,0,0", "-c", "1,4,8", str(captured)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    with Trace.open(captured) as trace:
        first = trace.panels["demand_4x8"].read(0, 1)[0]
    rows = [
        line.split(":")[1] for line in shown.splitlines() if line.strip()[:3] == "(0,"
    ]
    values = [int(v) for row in rows for v in row.replace(",", " ").split()]
    assert values == first.ravel().tolist()
    assert "PREPROCESSING SHUFFLE" in shown
    assert "COMPRESSION DEFLATE { LEVEL 1 }" in shown


def test_plain_h5py_reads_it(captured: Path) -> None:
    with h5py.File(captured) as file, Trace.open(captured) as trace:
        assert np.array_equal(
            file["demand_4x8"][...], trace.panels["demand_4x8"].read(0, 96)
        )
        kinds = {file.attrs.get_id(name).get_type().get_class() for name in file.attrs}
        assert kinds <= {h5py.h5t.INTEGER, h5py.h5t.FLOAT, h5py.h5t.STRING}
        assert not any(isinstance(file.attrs[name], str) for name in file.attrs), (
            "text is of fixed length: the global heap is never used"
        )


@given(
    shape=st.tuples(st.integers(0, 9), st.integers(1, 5), st.integers(1, 7)),
    dtype=st.sampled_from(["<i4", "<i8", "|u1"]),
    seed=st.integers(0, 99),
)
def test_a_chunk_survives_its_coding(
    shape: tuple[int, int, int], dtype: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    block = rng.integers(0, 100, shape).astype(dtype)
    chunk = (shape[0] + 2, shape[1], shape[2] + 1)
    full = decode(encode(block, chunk), chunk, np.dtype(dtype))
    assert np.array_equal(full[: shape[0], :, : shape[2]], block)
    assert full.sum() == block.sum()


def test_each_plane_of_bytes_is_deflated_by_itself() -> None:
    rng = np.random.default_rng(0)
    low, high = rng.integers(0, 256, 65536), rng.choice(3, 65536, p=[0.8, 0.1, 0.1])
    planes = [low.astype(np.uint8), high.astype(np.uint8), np.zeros(65536, np.uint8)]
    block = (low + (high << 8)).astype("<i4")
    coded = encode(block, block.shape)
    # what any reader of zlib's format sees: the bytes as HDF5's shuffle lays them
    assert zlib.decompress(coded) == b"".join(p.tobytes() for p in (*planes, planes[2]))
    # noise as it is, three values in a quarter of their bytes, zeros in next to nothing
    assert 65536 < len(coded) < 65536 + 65536 // 4
    assert np.array_equal(decode(coded, block.shape, block.dtype), block)


@pytest.mark.parametrize(
    ("shape", "itemsize", "chunk"),
    [
        ((1000, 4, 8), 4, (256, 4, 8)),  # at most 256 matrices
        ((1000, 64, 64), 4, (16, 64, 64)),  # 256 KB
        ((10, 1024, 256), 4, (1, 1024, 256)),  # a matrix of 1 MB stays whole
        ((10, 1024, 1024), 4, (1, 256, 1024)),  # a larger one is split by source
        ((10**6, 4), 8, (4096, 4)),
        ((3, 100_000), 8, (1, 100_000)),
    ],
)
def test_chunks_hold_about_256_kilobytes(
    shape: tuple[int, ...], itemsize: int, chunk: tuple[int, ...]
) -> None:
    assert chunk_shape(shape, itemsize) == chunk


def test_no_flipped_bit_of_a_panel_changes_a_number(
    trace: Trace, tmp_path: Path
) -> None:
    path = tmp_path / "a.h5"
    trace.save(path)
    true = trace.panels["demand_4x8"].read(0, 80)
    with h5py.File(path) as file:
        stored = file["demand_4x8"].id
        infos = [stored.get_chunk_info(i) for i in range(stored.get_num_chunks())]
    sound = bytearray(path.read_bytes())
    noticed = 0
    for info in infos:
        for at in range(info.byte_offset, info.byte_offset + info.size, 97):
            hurt = bytearray(sound)
            hurt[at] ^= 0x10
            path.write_bytes(hurt)
            with Trace.open(path) as opened:
                try:
                    read = opened.panels["demand_4x8"].read(0, 80)
                except TraceError:
                    noticed += 1
                    continue
                # deflate has bits that mean nothing
                assert np.array_equal(read, true)
    assert noticed >= 8


def test_files_that_are_no_trace_get_one_sentence(
    captured: Path, tmp_path: Path
) -> None:
    whole = captured.read_bytes()
    cut = tmp_path / "cut.h5"
    text = tmp_path / "text.h5"
    other = tmp_path / "other.h5"
    text.write_text("iteration,loss\n")
    with h5py.File(other, "w") as file:
        file["x"] = np.arange(3)
    cases = {
        text: "not an HDF5 file",
        other: "of another kind",
        tmp_path: "is a folder, not a file",
        tmp_path / ("x" * 300): "File name too long",
        text / "below": "there is no file",
    }
    for path, said in cases.items():
        with pytest.raises(TraceError, match=said):
            Trace.open(path)
    with pytest.raises(TraceError, match="there is no file"):
        Trace.open(tmp_path / "nothing.h5")
    for length in (0, 4, 100, 5000, len(whole) // 2, len(whole) - 1):
        cut.write_bytes(whole[:length])
        with pytest.raises(TraceError, match=r"damaged|not an HDF5") as caught:
            Trace.open(cut)
        assert "\n" not in str(caught.value)
        # what HDF5 itself says names its own functions
        assert "Unable to" not in str(caught.value)
        assert length < 5000 or f"cut off after {length} bytes" in str(caught.value)


def test_zeros_for_a_column_are_noticed(trace: Trace, tmp_path: Path) -> None:
    """Fletcher-32 of nothing but zeros is zero, and takes 0xffff for 0x0000."""
    path = tmp_path / "a.h5"
    trace.save(path)
    with h5py.File(path) as file:
        info = file["occurrence_sequence"].id.get_chunk_info(0)
    sound = path.read_bytes()
    wiped = bytearray(sound)
    wiped[info.byte_offset : info.byte_offset + info.size] = bytes(info.size)
    path.write_bytes(wiped)
    with h5py.File(path) as file:  # HDF5 believes it
        assert not file["occurrence_sequence"][...].any()
    with pytest.raises(TraceError, match="occurrence_sequence is not what was written"):
        Trace.open(path)


def test_an_attribute_that_another_tool_changed_is_noticed(
    trace: Trace, tmp_path: Path
) -> None:
    path = tmp_path / "a.h5"
    trace.save(path)
    with h5py.File(path, "r+", libver=("v110", "v110")) as file:
        file.attrs["hidden"] = np.int64(4096)
    with pytest.raises(TraceError, match="attributes are not what was written"):
        Trace.open(path)


def test_checksums_are_as_the_format_says(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    trace.save(path)
    with h5py.File(path) as file:
        names = [n.decode() for n in file["checksum"][...]]
        told = dict(zip(names, file["checksum_crc32"][...].tolist(), strict=True))
        for name in names[1:]:
            raw = name.encode() + b"\0" + file[name][...].tobytes()
            assert told[name] == zlib.crc32(raw), name
        parts = b""
        for name in sorted(file.attrs):
            value = file.attrs[name]
            raw = value if isinstance(value, bytes) else value.tobytes()
            parts += name.encode() + b"\0" + raw + b"\0"
        assert told[""] == zlib.crc32(parts)
        assert set(file) - set(names) - set(trace.panels) == {
            *("checksum", "checksum_crc32"),
            *("step_loss", "step_tokens", "step_start", "step_end"),
        }


def test_text_that_is_too_long_or_none_is_written_so_that_it_is_read(
    trace: Trace, tmp_path: Path
) -> None:
    sites = list(trace.sites)
    sites[-1] = replace(sites[-1], label="ü" * 2000)
    sites[-2] = replace(sites[-2], label="a\udcff")
    again = Trace(
        meta=trace.meta,
        groups=trace.groups,
        sites=sites,
        occurrences=trace.occurrences,
        panels=trace.panels,
        steps=trace.steps,
    )
    again.save(tmp_path / "a.h5")
    with Trace.open(tmp_path / "a.h5") as opened:
        assert opened.sites[-1].label == "ü" * 512
        assert opened.sites[-2].label == "a?"


def test_a_negative_count_is_refused(trace: Trace, tmp_path: Path) -> None:
    demand = trace.panels["demand_4x8"].read(0, 80).copy()
    demand[7, 1, 2] = -1
    trace.panels["demand_4x8"] = ArrayPanel(demand)
    trace.save(tmp_path / "a.h5")
    with Trace.open(tmp_path / "a.h5") as opened:
        with pytest.raises(TraceError, match="a count in demand_4x8 is below zero"):
            opened.demand(opened.find(operation="routing", layer=0))
        opened.demand(opened.find(operation="routing", layer=1))


def test_rows_of_a_panel_are_read_in_any_cut(trace: Trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "a.h5")
    whole = trace.panels["wire_4"].read(0, 40)
    with Trace.open(tmp_path / "a.h5") as opened:
        for start, stop in itertools.combinations((0, 1, 7, 16, 33, 40), 2):
            part = opened.panels["wire_4"].read(start, stop)
            assert np.array_equal(part, whole[start:stop])
