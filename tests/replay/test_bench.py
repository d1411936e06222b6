"""The benchmark: every collective right and counted, as ranks and as a command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from moetraffic.analysis.times.traffic import world_matrices
from moetraffic.errors import ReplayError
from moetraffic.patterns.bandwidth import read_table
from moetraffic.patterns.collectives import COLLECTIVES, UNEVEN, wire_bytes
from moetraffic.replay.backends.backend import Backend
from moetraffic.replay.bench import __main__ as bench
from moetraffic.replay.bench import operations, rank, sweep
from moetraffic.replay.bench.__main__ import main
from moetraffic.replay.bench.sweep import ONLY_OUT, Sweep, matrix_rows, size_range
from moetraffic.replay.results.machine_load import HostLoad
from moetraffic.replay.results.output import from_json, to_json
from moetraffic.trace import Trace

MATRIX = ((400, 0, 4000), (80, 0, 0), (0, 12, 400))


def everything(**more):
    return Sweep(
        **{
            "collectives": tuple(COLLECTIVES),
            "sizes": (24, 5000),
            "warmup": 1,
            "iterations": 2,
            "matrix": MATRIX,
            "timeout_s": 30.0,
            **more,
        }
    )


# ---- what is measured ----------------------------------------------------------------


def test_sizes_are_whole_elements_a_rank_as_in_nccl_tests():
    asked = everything(sizes=(1, 24, 25, 26, 100))
    assert asked.rounded("all_reduce", 3) == [24, 24, 24, 100]
    assert asked.rounded("all_gather", 3) == [24, 24, 24, 96]
    calls = [c for c in asked.calls(3) if c.collective == "all_gather"]
    assert [(c.size_bytes, c.place) for c in calls] == [
        *((24, "out"), (24, "in")),
        *((96, "out"), (96, "in")),
    ]
    for name in ONLY_OUT:
        assert {c.place for c in asked.calls(3) if c.collective == name} == {"out"}


def test_a_matrix_is_scaled_to_the_size_in_whole_elements():
    asked = everything(sizes=(480, 48000))
    assert asked.scaled(4400).tolist() == [[400, 0, 4000], [80, 0, 0], [0, 12, 400]]
    assert asked.rounded(UNEVEN, 3) == [476, 47996]
    assert (asked.scaled(48000) % 4 == 0).all()
    alone = everything(sizes=(), collectives=(UNEVEN,))
    assert alone.rounded(UNEVEN, 3) == [4400]


def test_a_sweep_survives_its_way_to_a_rank():
    asked = everything(platform="here", protocol="TCP/IP")
    assert from_json(Sweep, to_json("sweep", asked)) == asked


def test_a_trace_gives_the_matrix_of_its_all_to_alls(toy_file):
    with Trace.open(toy_file(world=3)) as trace:
        cells = world_matrices(trace, [1], operations=("all_to_all",))[0]
        found = bench._matrix(None, Path(trace.name), 1)
        assert found == tuple(map(tuple, cells.tolist()))
        assert bench._matrix(None, Path(trace.name), None) != found


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"collectives": ("sum",)}, "collectives are all_reduce"),
        ({"dtype": "float16"}, "in which sums are exact"),
        ({"iterations": 0}, "1 iteration or more"),
        ({"matrix": ()}, "there is no matrix"),
        ({"collectives": ("reduce",)}, "there is only a matrix"),
        ({"backend": "mpi"}, "measured with gloo, nccl"),
        ({"timeout_s": float("nan")}, "above 0 s"),
    ],
)
def test_what_cannot_be_measured_is_refused(wrong, said):
    with pytest.raises(ReplayError, match=said):
        everything(**wrong)


def test_ranges_and_matrices_that_are_none_are_refused():
    for begin, end, more in (
        ("4M", "1M", {}),
        ("1", "1G", {"step": "1"}),
        ("1K", "2K", {"factor": 1.0}),
        ("0", "2K", {}),
        ("many", "2K", {}),
    ):
        with pytest.raises(ReplayError):
            size_range(begin, end, **{"factor": None, "step": None, **more})
    for cells in ([[0, 1]], [[0, -1], [1, 0]], [[0, 0], [0, 0]], [[0, 0.5], [1, 0]]):
        with pytest.raises(ReplayError, match="no matrix of bytes"):
            matrix_rows(cells, "m.csv")
    with pytest.raises(ReplayError, match="2 ranks or more"):
        sweep.validate_sweep(everything(), 1)
    with pytest.raises(ReplayError, match="give --nproc 3"):
        sweep.validate_sweep(everything(), 2)
    with pytest.raises(ReplayError, match="raise -e"):
        sweep.validate_sweep(everything(sizes=(4,)), 3)


# ---- on real ranks -------------------------------------------------------------------


def test_every_collective_arrives_right_and_is_counted_by_its_convention(forked):
    asked = everything(dtype="int32")

    def work(rank_env):
        found = rank.run_rank(asked, rank_env)
        return found and found.to_json()

    told, *others = forked(3, work)
    assert others == [None, None]
    said = json.loads(told)
    assert len(said["rows"]) == len(asked.calls(3))
    for row in said["rows"]:
        assert row["wrong"] == 0, row
        assert row["time_us"] > 0
        if row["collective"] != UNEVEN:
            wire = wire_bytes(row["collective"], 3, row["size_bytes"])
            assert row["wire_bytes"] == round(float(wire))
        ratio = row["busbw_gbs"] / row["algbw_gbs"]
        assert ratio == pytest.approx(row["wire_bytes"] / row["size_bytes"])
    uneven = [r for r in said["rows"] if r["collective"] == UNEVEN]
    # the diagonal is on no wire: 4000 of the 4400 B that rank 0 has to send
    assert uneven[-1]["wire_bytes"] / uneven[-1]["size_bytes"] == pytest.approx(
        10 / 11, rel=1e-3
    )


@pytest.mark.slow
def test_wrong_elements_are_counted_on_the_rank_that_has_them(forked):
    asked = everything()
    calls = [c for c in asked.calls(2) if c.collective != UNEVEN]

    def work(rank_env):
        gloo = Backend()
        gloo.start(rank_env, [(0, 1)], 30.0)
        counts = []
        for call in calls:
            made = operations.Operation(call, asked, rank_env.rank, 2, gloo)
            right, run = made.wrong(7), made.run

            def spoil(made=made, run=run):
                run()
                if len(made.receive):
                    made.receive[-1] += 1
                    made.receive[0] -= 1

            made.run = spoil
            counts.append((right, made.wrong(8)))
        gloo.stop()
        return counts

    first, second = forked(2, work)
    for call, one, two in zip(calls, first, second, strict=True):
        assert one == (0, 2), call
        rooted = call.collective in ("reduce", "gather")
        assert two == (0, 0 if rooted else 2), call


@pytest.mark.slow
def test_the_command_starts_ranks_and_its_file_is_a_table(tmp_path):
    out = tmp_path / "bench.csv"
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "moetraffic.replay.bench", "all_reduce"),
            *("-b", "1K", "-e", "64K", "-f", "8", "-n", "2", "-w", "1"),
            *("--nproc", "2", "--platform", "here", "-o", str(out), "--tables"),
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    summary, _, table = ran.stdout.partition("all_reduce, float32")
    assert len(summary.splitlines()) <= 8
    assert "wrong elements: 0" in summary
    assert "alpha" in summary or "no usable fit" in summary
    for name in ("size [B]", "count", "time [us]", "algbw [GB/s]", "busbw [GB/s]"):
        assert name in " ".join(table.split())
    assert {"1,024", "8,192", "65,536"} <= {*table.split()}
    for place in ("out", "in"):
        table = read_table(out, place=place)
        assert len(table) == 3
        got = table.effective("all_reduce", 2, 3000, platform="here")
        assert got.inside
        assert float(got.time_s) > 0
    # once more: refused before any rank starts, and the file is kept
    assert main(["all_reduce", "-o", str(out)]) == 2
    assert main(["all_reduce", "-o", str(tmp_path / "bench.txt")]) == 2


@pytest.mark.slow
def test_nccl_is_refused_with_the_reason_where_there_is_no_device(forked):
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")

    def work(rank_env):
        rank.run_rank(everything(backend="nccl", matrix=MATRIX), rank_env)

    for found in forked(3, work):
        assert isinstance(found, ReplayError)
        assert "nccl needs a CUDA device for each rank" in str(found)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_nccl_is_refused_before_ranks_are_started(capsys):
    assert main(["all_reduce", "-e", "8", "--backend", "nccl"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("moetraffic: the backend nccl needs a CUDA device")
    assert said.count("\n") == 1


def test_a_busy_host_is_named_before_the_measurement(monkeypatch, capsys):
    busy = HostLoad(node="", cores=2, others=1.3)
    monkeypatch.setattr(bench, "load_now", lambda: busy)
    monkeypatch.setattr(bench, "measure", Mock(side_effect=ReplayError("ended")))
    assert main(["all_reduce", "-e", "8"]) == 2
    said = capsys.readouterr().err
    assert "busy (before the measurement, other processes use 1.3 of 2 cores)" in said


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_nccl_moves_right_bytes(tmp_path):
    out = tmp_path / "bench.json"
    assert main(["all", "-e", "1M", "--backend", "nccl", "-o", str(out)]) == 0
    assert len(read_table(out)) > 0


def test_no_ranks_are_not_taken_for_the_default(capsys):
    assert main(["--nproc", "0"]) == 2
    assert "give --nproc 2" in capsys.readouterr().err
