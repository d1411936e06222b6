"""Matrices and flows, read as their consumers read them, are what was sent."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from moetraffic.data import path
from moetraffic.errors import TraceError
from moetraffic.interop import ImportOptions as Reading
from moetraffic.interop import import_files
from moetraffic.interop.write import ExportOptions, export_trace
from moetraffic.trace import PHASES, ROUTING, Trace

GOLDEN = path("golden.h5")
SOME = range(4, 6)


def trace_of(matrices: Any, folder: Path) -> Trace:
    """All-to-alls of these bytes, ``[n, W, W]``, without phases or times."""
    file = folder / "matrices.txt"
    file.write_text(
        "\n".join("".join(" ".join(map(str, r)) + "\n" for r in m) for m in matrices)
    )
    return import_files([file], format="matrix", options=Reading(unit="B"))[1].trace


def sent(trace: Trace, iterations: range, *, of: Any = "wire") -> list[Any]:
    """``[W, W]`` bytes of all exchanges, in the order of a step."""
    return [
        trace.matrix(i, layer, phase, micro_batch=slot, of=of, space="world").values
        for i in iterations
        for slot in (0, 1)
        for layer, phases in ((1, PHASES[:2]), (3, PHASES), (1, PHASES[2:]))
        for phase in phases
    ]


def without_own(matrix: Any) -> Any:
    matrix = np.array(matrix)
    np.fill_diagonal(matrix, 0)
    return matrix


# ---- nccl-tests -------------------------------------------------------------------


def nccl_matrix(text: str) -> Any:
    """AlltoAllvReadTrafficMatrix: rows of strtod, square, down to multiples of 16."""
    rows = [[float(c) for c in line.split()] for line in text.splitlines() if line]
    assert all(len(row) == len(rows) for row in rows)
    return np.array(rows).astype(np.int64) & ~15


def test_nccl_tests_reads_every_matrix(tmp_path: Path) -> None:
    with Trace.open(GOLDEN) as trace:
        export_trace(
            trace, tmp_path / "m", "nccl-tests", options=ExportOptions(iterations=SOME)
        )
        with (tmp_path / "m" / "matrices.csv").open() as file:
            table = list(csv.DictReader(file))
        want = sent(trace, SOME)
        assert len(table) == len(want) == 32
        for row, matrix in zip(table, want, strict=True):
            read = nccl_matrix((tmp_path / "m" / row["file"]).read_text())
            assert (read == matrix).all()  # rows of 64 bytes are multiples of 16
            most = max(matrix.sum(axis=0).max(), matrix.sum(axis=1).max())
            assert int(row["size"]) == most
        assert table[0]["file"] == "iteration-000004-layer-001-dispatch-slot-0.txt"


def test_what_rounding_changes_is_said(tmp_path: Path) -> None:
    trace = trace_of([[[0, 3], [2047, 4096]]], tmp_path)
    done = export_trace(trace, tmp_path / "m", "nccl-tests")
    (file,) = [f for f in done.files if f.suffix == ".txt"]
    assert nccl_matrix(file.read_text()).tolist() == [[0, 16], [2048, 4096]]
    assert "2 cells are rounded to multiples of 16 bytes: 6160 bytes" in done.lost[0]
    kib = export_trace(
        trace, tmp_path / "k", "nccl-tests", options=ExportOptions(unit="KiB")
    )
    (file,) = [f for f in kib.files if f.suffix == ".txt"]
    assert file.read_text() == "0 1\n2 4\n"


# ---- htsim ------------------------------------------------------------------------


def connections(text: str) -> tuple[int, list[dict[str, Any]], dict[int, int]]:
    """ConnectionMatrix::load: nodes, flows, and the count of each barrier."""
    heads: dict[str, int] = {}
    flows: list[dict[str, Any]] = []
    barriers: dict[int, int] = {}
    for line in text.splitlines():
        tokens = line.split(" ")
        if tokens[0] in ("Nodes", "Connections", "Triggers", "Failures"):
            heads[tokens[0]] = int(tokens[1])
        elif "->" in tokens[0]:
            source, _, destination = tokens[0].partition("->")
            told = dict(zip(tokens[1::2], map(int, tokens[2::2]), strict=True))
            allowed = {"id", "start", "size", "trigger", "recv_done_trigger"}
            assert told.keys() <= allowed
            assert ("start" in told) != ("trigger" in told)
            assert 0 < told["id"] < 2**31
            assert 0 < told["size"] < 2**31
            flows.append({"source": int(source), "to": int(destination), **told})
        else:
            assert tokens[0] == "trigger"
            assert tokens[1] == "id"
            assert tokens[3:5] == ["barrier", "count"]
            barriers[int(tokens[2])] = int(tokens[5])
    assert len(flows) == heads["Connections"]
    assert len({f["id"] for f in flows}) == len(flows)
    assert len(barriers) == heads.get("Triggers", 0)
    assert all(0 <= f[e] < heads["Nodes"] for f in flows for e in ("source", "to"))
    return heads["Nodes"], flows, barriers


def run_to_the_end(flows: list[dict[str, Any]], barriers: dict[int, int]) -> list[Any]:
    """Flows in the order in which triggers let them begin, burst by burst."""
    ready = [f for f in flows if "start" in f]
    left = dict(barriers)
    bursts = []
    while ready:
        bursts.append(ready)
        fired = set()
        for flow in ready:
            if (trigger := flow.get("recv_done_trigger")) is not None:
                left[trigger] -= 1
                assert left[trigger] >= 0
                fired |= {trigger} if not left[trigger] else set()
        ready = [f for f in flows if f.get("trigger") in fired]
    assert sum(map(len, bursts)) == len(flows)
    return bursts


def test_htsim_runs_one_exchange_after_another(tmp_path: Path) -> None:
    with Trace.open(GOLDEN) as trace:
        options = ExportOptions(iterations=SOME, pace="asap")
        done = export_trace(trace, tmp_path / "a.cm", "htsim", options=options)
        nodes, flows, barriers = connections(done.files[0].read_text())
        bursts = run_to_the_end(flows, barriers)
        for burst, matrix in zip(bursts, sent(trace, SOME), strict=True):
            read = np.zeros((nodes, nodes), np.int64)
            for flow in burst:
                read[flow["source"], flow["to"]] += flow["size"]
            assert (read == without_own(matrix)).all()


def test_htsim_starts_flows_when_their_sender_did(tmp_path: Path) -> None:
    with Trace.open(GOLDEN) as trace:
        options = ExportOptions(iterations=SOME, layers=(3,), phase="dispatch")
        done = export_trace(trace, tmp_path / "c.cm", "htsim", options=options)
        _, flows, _ = connections(done.files[0].read_text())
        found = trace.find(phase="dispatch", layer=3, iterations=SOME)
        issue, start, _ = trace.times(found)
        begins = np.where(start < 0, issue, start)
        want = np.sort((begins - issue.min()).ravel()) * 1000
        assert sorted(f["start"] for f in flows) == want.tolist()
        # what the simulator makes of them is within what was said
        read = want.astype(np.float32).astype(np.int64)
        (said,) = [s for s in done.lost if "32-bit floats" in s]
        moved = int(re.search(r"up to (\d+) ps", said)[1])  # type: ignore[index]
        assert np.abs(read - want).max() == moved


@settings(max_examples=8)
@given(
    matrices=arrays.arrays(
        np.int64, (3, 3, 3), elements=st.sampled_from([0, 1, 77, 2**31, 2**33 + 5])
    )
)
def test_flows_carry_all_bytes_whatever_their_size(
    tmp_path_factory: pytest.TempPathFactory, matrices: Any
) -> None:
    folder = tmp_path_factory.mktemp("flows")
    trace = trace_of(matrices, folder)
    asap = ExportOptions(pace="asap")
    done = export_trace(trace, folder / "a.cm", "htsim", options=asap)
    nodes, flows, barriers = connections(done.files[0].read_text())
    total = np.zeros((nodes, nodes), np.int64)
    for burst in run_to_the_end(flows, barriers):
        for flow in burst:
            total[flow["source"], flow["to"]] += flow["size"]
    assert (total == without_own(matrices.sum(axis=0))).all()
    large = any("are cut into more" in sentence for sentence in done.lost)
    assert large == bool((without_own_each(matrices) >= 2**31).any())
    spaced = ExportOptions(every_ns=1_000_000)
    done = export_trace(trace, folder / "f.txt", "hpcc", options=spaced)
    total[:] = 0
    for begin, source, destination, size in hpcc_flows(done.files[0].read_text()):
        total[source, destination] += size
        assert begin in (2 * 10**9, 2 * 10**9 + 10**6, 2 * 10**9 + 2 * 10**6)
    assert (total == without_own(matrices.sum(axis=0))).all()


def without_own_each(matrices: Any) -> Any:
    return np.array([without_own(m) for m in matrices])


def test_captured_pace_needs_times(tmp_path: Path) -> None:
    trace = trace_of([[[0, 1], [1, 0]]], tmp_path)
    for name in ("htsim", "hpcc", "chakra"):
        with pytest.raises(TraceError, match="captured pace needs the time of each"):
            export_trace(trace, tmp_path / "out", name)
    assert not (tmp_path / "out").exists()


# ---- HPCC -------------------------------------------------------------------------


def hpcc_flows(text: str) -> list[tuple[int, int, int, int]]:
    """ReadFlowInput: start in ns, source, destination, bytes."""
    count, *lines = text.splitlines()
    found = []
    for line in lines:
        source, destination, priority, port, size, start = line.split()
        assert (int(priority), 0 < int(port) < 2**16) == (3, True)
        assert 0 < int(size) < 2**32
        assert int(source) != int(destination)
        seconds, _, behind = start.partition(".")
        found.append(
            (
                int(seconds) * 10**9 + int(behind),
                int(source),
                int(destination),
                int(size),
            )
        )
    assert len(found) == int(count)
    assert [f[0] for f in found] == sorted(f[0] for f in found)
    return found


def test_hpcc_flows_begin_as_captured(tmp_path: Path) -> None:
    with Trace.open(GOLDEN) as trace:
        options = ExportOptions(iterations=SOME)
        done = export_trace(trace, tmp_path / "f.txt", "hpcc", options=options)
        flows = hpcc_flows(done.files[0].read_text())
        total = np.zeros((2, 2), np.int64)
        for _, source, destination, size in flows:
            total[source, destination] += size
        assert (total == without_own(sum(sent(trace, SOME)))).all()
        assert flows[0][0] == 2 * 10**9
        found = trace.find(operation="all_to_all", iterations=SOME)
        phased = [o for o in found if trace.sites[trace.occurrences.site[o]].phase]
        issue, _, _ = trace.times(np.array(phased))
        assert flows[-1][0] - flows[0][0] <= issue.max() - issue.min()


def test_hpcc_sources_have_ports_for_so_many_flows(tmp_path: Path) -> None:
    trace = trace_of(np.full((1, 2, 2), 2**45), tmp_path)
    options = ExportOptions(every_ns=1)
    done = export_trace(trace, tmp_path / "f.txt", "hpcc", options=options)
    assert len(hpcc_flows(done.files[0].read_text())) == 2 * 8193
    trace = trace_of(np.full((8, 2, 2), 2**45), tmp_path)
    with pytest.raises(TraceError, match="up to 55536 flows, for each takes a port"):
        export_trace(trace, tmp_path / "g.txt", "hpcc", options=options)


# ---- EPLB -------------------------------------------------------------------------


def test_eplb_gets_the_load_of_each_layer(tmp_path: Path) -> None:
    with Trace.open(GOLDEN) as trace:
        options = ExportOptions(iterations=SOME)
        done = export_trace(trace, tmp_path / "l.npy", "eplb", options=options)
        load = np.load(done.files[0], allow_pickle=False)
        for row, layer in zip(load, trace.layers, strict=True):
            found = trace.find(operation=ROUTING, layer=layer, iterations=SOME)
            assert (row == trace.demand(found).sum(axis=(0, 1))).all()
        assert "rows are the MoE layers 1, 3, in this order" in done.lost
        demands = defaultdict(int)
        for one in sent(trace, SOME, of="demand")[::1]:
            demands["bytes"] += int(one.sum())
        # top-2 of 64-byte rows, in four phases
        assert demands["bytes"] == int(load.sum()) * 64 * 4
