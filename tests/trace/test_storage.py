"""Files: what is written is read, by us and by others, and damage is noticed."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray

from moetraffic import files
from moetraffic.errors import TraceError
from moetraffic.trace import Group, Trace
from moetraffic.trace.panel import ArrayPanel


def equal(a: Trace, b: Trace) -> None:
    assert repr(a.meta) == repr(b.meta)  # NaN is equal to NaN here
    assert a.groups == b.groups
    assert a.sites == b.sites
    assert [s.source for s in a.sites] == [s.source for s in b.sites]
    assert np.array_equal(a.placements, b.placements)
    assert np.array_equal(a.clocks, b.clocks)
    assert a.steps.kind == b.steps.kind
    for name in ("iteration", "site", "sequence"):
        assert np.array_equal(
            getattr(a.occurrences, name), getattr(b.occurrences, name)
        )
    for name in ("iteration", "loss", "tokens", "start", "end", "source"):
        assert np.array_equal(
            getattr(a.steps, name), getattr(b.steps, name), equal_nan=name == "loss"
        )
    assert a.panels.keys() == b.panels.keys()
    for name, panel in a.panels.items():
        if not name.endswith(("wire", "volume")):
            rows = panel.shape[0]
            assert np.array_equal(panel.read(0, rows), b.panels[name].read(0, rows))
    for number, square in enumerate(a.square):
        calls = np.flatnonzero(
            (a.occurrences.site == number) & (a.occurrences.matrix >= 0)
        )
        read = "wire" if square else "volume"
        assert np.array_equal(getattr(a, read)(calls), getattr(b, read)(calls))


def test_a_trace_is_read_as_it_was_written(trace: Trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "a.h5")
    with Trace.open(tmp_path / "a.h5") as again:
        equal(trace, again)
        again.save(tmp_path / "b.h5")
        with Trace.open(tmp_path / "b.h5") as twice:
            equal(trace, twice)
            assert twice.digest == again.digest


def test_a_real_capture_is_written_and_read(captured: Path, tmp_path: Path) -> None:
    with Trace.open(captured) as trace:
        trace.save(tmp_path / "copy.h5")
        with Trace.open(tmp_path / "copy.h5") as again:
            equal(trace, again)
            assert again.digest == trace.digest


def test_modules_stages_and_equal_groups_are_kept(trace: Trace, tmp_path: Path) -> None:
    sites = [replace(s, module=f"layers.{s.layer}", stage=1) for s in trace.sites]
    groups = [*trace.groups, replace(trace.groups[0], number=1)]
    full = trace.replaced(sites=sites, groups=groups)
    full.save(tmp_path / "a.h5")
    with Trace.open(tmp_path / "a.h5") as again:
        equal(full, again)
        assert again.groups[2] == Group(kind="ep", ranks=(0, 1, 2, 3), number=1)
        assert set(again.calls().module) == {"layers.-1", "layers.0", "layers.1"}


def test_each_distinct_matrix_is_stored_once(trace: Trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5") as file:
        # of 2 layers x 4 phases x 40 iterations, and of 40 other all-to-alls
        assert file["call_4/wire"].shape == (120, 4, 4)
        assert file["call_4/site"].shape == (360,)
        assert file["call_2/volume"].shape == (41, 2)


def test_rows_of_a_file_are_read_in_any_cut(trace: Trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "a.h5")
    calls = trace.find(phase="combine", layer=1, kind=None)
    whole = trace.wire(calls)
    with Trace.open(tmp_path / "a.h5") as opened:
        for start, stop in itertools.combinations((0, 1, 7, 16, 33, 40), 2):
            assert np.array_equal(opened.wire(calls[start:stop]), whole[start:stop])
        shuffled = np.random.default_rng(0).permutation(40)
        assert np.array_equal(opened.wire(calls[shuffled]), whole[shuffled])


def test_a_large_matrix_is_cut_into_chunks_by_source(tmp_path: Path) -> None:
    demand = np.random.default_rng(0).integers(0, 9, (1, 1, 640, 640))
    Trace.from_arrays(demand).save(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5") as file, Trace.open(tmp_path / "a.h5") as trace:
        assert file["call_640/wire"].chunks == (1, 51, 640)
        dispatched = trace.wire(trace.find(phase="dispatch"))
        assert np.array_equal(dispatched, demand[:, 0])


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

    monkeypatch.setattr(files.os, "pwrite", pwrite)
    with pytest.raises(TraceError, match=r"cannot be written \(No space left"):
        trace.save(tmp_path / "a.h5")
    assert list(tmp_path.iterdir()) == []


def test_xarray_reads_a_layers_matrices(captured: Path) -> None:
    routed = xarray.open_dataset(captured, group="routing_4x8", engine="h5netcdf")
    calls = xarray.open_dataset(captured, group="call_4", engine="h5netcdf")
    with routed, calls, Trace.open(captured) as trace:
        assert routed.demand.dims == ("routing", "src", "expert")
        demand = routed.demand[(routed.layer == 3) & (routed.iteration == 5)]
        same = trace.find(operation="routing", layer=3, iterations="5:6")
        assert np.array_equal(demand.to_numpy(), trace.demand(same))
        mine = (calls.layer == 3) & (calls.bytes_row >= 0)
        wire = calls.wire[calls.bytes_row[mine]]
        turned = calls.transposed[mine] == 1
        wire = xarray.where(turned, wire.transpose("call", "dst", "src"), wire)
        assert wire.sizes["call"] == int(mine.sum())
        assert calls.wire.attrs["units"] in ("bytes", b"bytes")


def test_plain_h5py_reads_a_layers_matrices(captured: Path) -> None:
    with h5py.File(captured) as file, Trace.open(captured) as trace:
        calls = file["call_4"]
        sites = file["site/phase"][:].astype(str)[calls["site"][:]]
        mine = (sites == "combine") & (calls["layer"][:] == 3)
        wire = calls["wire"][:][calls["bytes_row"][:][mine]]
        wire = np.where(calls["transposed"][:][mine, None, None], wire.mT, wire)
        assert np.array_equal(
            wire, trace.wire(trace.find(phase="combine", layer=3, kind=None))
        )
        for dataset in file["call_4"].values():
            assert dataset.fletcher32
            assert (dataset.shuffle, dataset.compression) == (True, "gzip")


def test_h5dump_reads_it(captured: Path) -> None:
    tool = shutil.which("h5dump")
    assert tool, "h5dump is missing: make test installs it (apt-get install hdf5-tools)"
    name = "/routing_4x8/demand"
    shown = subprocess.run(
        [tool, "-p", "-d", name, "-s", "0,0,0", "-c", "1,4,8", str(captured)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    with Trace.open(captured) as trace:
        first = trace.panels["routing_4x8/demand"].read(0, 1)[0]
    rows = [
        line.split(":")[1] for line in shown.splitlines() if line.strip()[:3] == "(0,"
    ]
    values = [int(v) for row in rows for v in row.replace(",", " ").split()]
    assert values == first.ravel().tolist()
    assert "CHECKSUM FLETCHER32" in shown


def test_files_that_are_no_trace_get_one_sentence(
    captured: Path, tmp_path: Path
) -> None:
    whole = captured.read_bytes()
    cut, text, other = (tmp_path / f"{n}.h5" for n in ("cut", "text", "other"))
    text.write_text("iteration,loss\n")
    with h5py.File(other, "w") as file:
        file["x"] = np.arange(3)
    cases = {
        text: "not an HDF5 file",
        other: "of another kind",
        tmp_path: "is not a file",
        tmp_path / ("x" * 300): "there is no file",
        text / "below": "there is no file",
        tmp_path / "nothing.h5": "there is no file",
    }
    for path, said in cases.items():
        with pytest.raises(TraceError, match=said):
            Trace.open(path)
    for length in (0, 4, 100, 5000, len(whole) // 2, len(whole) - 1):
        cut.write_bytes(whole[:length])
        with pytest.raises(TraceError, match=r"damaged|not an HDF5") as caught:
            Trace.open(cut)
        assert "\n" not in str(caught.value)


def test_a_file_of_an_earlier_format_names_the_release(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "old.h5", "w") as file:
        file.attrs["format"] = np.bytes_(b"moetraffic")
        file.attrs["format_version"] = 1
    with pytest.raises(TraceError, match="has format version 1, and this moetraffic"):
        Trace.open(tmp_path / "old.h5")


def test_damage_names_the_file_and_the_dataset(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    trace.save(path)
    with h5py.File(path) as file:
        info = file["routing_4x8/demand"].id.get_chunk_info(0)
    hurt = bytearray(path.read_bytes())
    hurt[info.byte_offset + info.size // 2] ^= 0x10
    path.write_bytes(hurt)
    with (
        Trace.open(path) as opened,
        pytest.raises(TraceError, match=r"a\.h5 is damaged.*/routing_4x8/demand"),
    ):
        opened.demand(opened.find(operation="routing", layer=0))


def test_long_and_odd_texts_are_kept(trace: Trace, tmp_path: Path) -> None:
    sites = list(trace.sites)
    sites[-1] = replace(sites[-1], label="ü" * 2000)
    sites[-2] = replace(sites[-2], label="a\udcff")
    meta = replace(trace.meta, missing="x" * 100_000)
    trace.replaced(sites=sites, meta=meta).save(tmp_path / "a.h5")
    with Trace.open(tmp_path / "a.h5") as opened:
        assert opened.sites[-1].label == "ü" * 2000
        assert opened.sites[-2].label == "a?"
        assert opened.meta.missing == "x" * 100_000


def test_tables_that_contradict_each_other_are_refused(trace: Trace) -> None:
    short = trace.panels["call_4/issue"].read(0, 5)
    with pytest.raises(TraceError, match="call_4/issue has 360 rows"):
        trace.replaced(panels=trace.panels | {"call_4/issue": ArrayPanel(short)})
    every = replace(trace.occurrences, iteration=trace.occurrences.iteration[::-1])
    with pytest.raises(TraceError, match="sorted by site and iteration"):
        trace.replaced(occurrences=every)
    with pytest.raises(TraceError, match="distinct ranks"):
        trace.replaced(groups=[Group(kind="ep", ranks=(0, 0)), trace.groups[1]])
