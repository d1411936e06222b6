"""What a dry run says: every operation, and what they take at the least."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moetraffic.errors import MoetrafficError, ReplayError
from moetraffic.fabric import load_fabric
from moetraffic.patterns.bandwidth import BandwidthTable, Sample
from moetraffic.replay.__main__ import main
from moetraffic.replay.plan.background import BackgroundPattern
from moetraffic.replay.plan.planning import make_plan
from moetraffic.replay.request import Request
from moetraffic.replay.results.baselines import (
    by_hockney,
    by_table,
    parse_hockney,
    serialized_time,
)
from moetraffic.replay.results.dry_run import (
    estimate_plan,
    print_dry_run,
)
from moetraffic.trace import UNKNOWN_TIME, Trace
from moetraffic.trace.model import Presence
from moetraffic.trace.panel import ArrayPanel
from moetraffic.trace.what_if.rescale import Scaling
from moetraffic.units import byte_size
from tests.timed import with_times
from tests.trace.what_if.test_dispatchers import routed

RATE = 125e6  # bytes/s of 1Gbps


def on(asked: str, ranks: int):
    return load_fabric(asked, ranks, capacity="1Gbps")


def test_hockneys_model_is_alpha_a_round_and_bytes_over_beta(toy):
    plan = make_plan(toy(world=4, groups=[(0, 1, 2, 3)]), dense=False)
    found = by_hockney(plan, parse_hockney("10us,1GB/s"))
    np.testing.assert_allclose(
        found.operation_s, 3 * 10e-6 + plan.bottleneck_bytes / 1e9
    )
    assert found.total_s == pytest.approx(serialized_time(plan, found.operation_s))
    for text in ("10us", "10us,fast", "1,1GB/s"):
        with pytest.raises(MoetrafficError):
            parse_hockney(text)


def test_a_table_of_measurements_estimates_what_it_measured(toy):
    plan = make_plan(toy(world=2), dense=False)
    measured = [
        Sample(
            collective="all_to_all_v",
            ranks=2,
            span=1,
            size_bytes=size,
            time_us=5 + size / 100,
        )
        for size in (10, 100, 1000, 10_000)
    ]
    hosts = np.zeros(2, np.int64)
    found = by_table(plan, BandwidthTable(measured), "bench.csv", hosts)
    moved = plan.bottleneck_bytes > 0
    wire = plan.bottleneck_bytes[moved]
    np.testing.assert_allclose(
        found.operation_s[moved], (5 + 2 * wire / 100) / 1e6, rtol=1e-6
    )
    assert not found.operation_s[~moved].any()


def test_rows_are_the_whole_plan(toy):
    trace = toy(world=4, groups=[(0, 2), (3, 1)])
    beside = BackgroundPattern(layout="tp=2,dp=2,micro-batch=1", model="tiny").traffic(
        4
    )
    plan = make_plan(trace, background=beside)
    request = Request(trace=Path("toy.h5"), capacity="1Gbps")
    found = estimate_plan(trace, plan, request, hockney="1us,1GB/s")
    table = list(found.rows())
    sent = sum(sum(r["sends"]) for r in table)
    received = sum(sum(r["receives"]) for r in table)
    exchanges = plan.kind == 0
    assert sent == received == plan.total_bytes[exchanges].sum()
    assert all(r["rank"] in r["ranks"] for r in table)
    assert {r["stream"] for r in table} >= {"experts", "tp", "dp"}
    told = found.as_dict()
    assert told["lower_bound"]["network"] == "1 Gbps = 0.125 GB/s a rank"
    assert found.bound.pass_s == pytest.approx(told["lower_bound"]["pass_s"])
    assert {r["bound_us"] for r in table} == set(found.bound.operation_s * 1e6)
    assert sum(s["operations"] for s in told["streams"]) == len(plan)
    for rank in told["ranks"]:
        mine = plan.programs[rank["rank"]]
        assert (rank["send_buffer_bytes"], rank["receive_buffer_bytes"]) == (
            mine.buffer_bytes
        )


# ---- the command line ------------------------------------------------------------


@pytest.mark.slow
def test_a_dry_run_imports_no_torch_and_starts_no_rank(toy_file):
    trace = toy_file(world=4)
    code = (
        "import sys; from moetraffic.replay.__main__ import main;"
        f"code = main([{str(trace)!r}, '--dry-run', '--fold', '2', '--json']);"
        "sys.exit(code or 'torch' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["world"] == 2
    assert any("4 ranks onto 2; --fold 2" in note for note in told["notes"])


@pytest.mark.parametrize("dry", [("--dry-run",), ()])
def test_what_no_rank_could_replay_is_refused_before_the_plan(
    toy_file, tmp_path, capsys, monkeypatch, dry
):
    path = toy_file(world=2)
    with Trace.open(path) as trace:
        unknown = {2: np.full(trace.panels["call_2/issue"].shape, UNKNOWN_TIME)}
        virtual = with_times(trace, {"issue": unknown, "end": unknown})
        virtual.save(tmp_path / "virtual.h5")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for file, options, sentence in (
        (path, ("--backend", "glo"), "one of gloo, gloo-duplex, nccl"),
        (path, ("--gaps", "gemm"), "the buffers are on cpu: choose --gaps spin"),
        (tmp_path / "virtual.h5", ("--pace", "captured"), "virtual.h5 has none: choo"),
    ):
        assert main([str(file), *options, *dry]) == 2
        printed = capsys.readouterr()
        assert sentence in printed.err
        assert "operations of" not in printed.err
        assert not printed.out
    # a host without the GPUs, as a login node, may plan for those that have them
    assert main([str(path), "--backend", "nccl", *dry]) == (0 if dry else 2)
    needs = "needs a CUDA device for each rank" in capsys.readouterr().err
    assert needs is (not dry)


def test_the_bytes_of_a_dispatcher_are_beside_the_captured_ones(tmp_path):
    file = tmp_path / "run.h5"
    made, _ = routed(0)
    made.save(file)
    request = Request(trace=file, scaling=Scaling(dispatcher="padded"))
    with Trace.open(file) as trace:
        captured = int(make_plan(trace, dense=False).total_bytes.sum())
        plan = request.plan(trace)
    moved = int(plan.total_bytes.sum())
    assert moved != captured
    assert plan.notes[0] == (
        f"dispatcher padded: {byte_size(moved)} where {byte_size(captured)} were "
        f"captured ({moved / captured:.2f}x)"
    )


@pytest.mark.parametrize("rule", ["peers", "mean"])
@pytest.mark.parametrize("lost", ["exchange", "iteration"])
def test_a_dispatcher_moves_what_is_completed(tmp_path, rule, lost):
    """Where rank 2 left no record of one exchange, or of an iteration."""
    made, _ = routed(0, iterations=6)
    panels = dict(made.panels)
    gone = made.find(phase="dispatch", iterations=range(3, 4))
    if lost == "iteration":
        gone = np.flatnonzero(made.occurrences.iteration == 3)
        demand = panels["routing_4x8/demand"].read(0, 6).copy()
        demand[3, 2] = 0
        panels["routing_4x8/demand"] = ArrayPanel(demand)
    for table in ("call_4", "routing_4x8"):
        panel = panels[f"{table}/present"]
        there = panel.read(0, panel.shape[0]).copy()
        of = [made.table_of_site[s] == table for s in made.occurrences.site[gone]]
        there[made.row[gone[of]], 2] = Presence.ABSENT
        panels[f"{table}/present"] = ArrayPanel(there)
    made.replaced(panels=panels).save(tmp_path / "run.h5")
    scaling = Scaling(dispatcher="padded", missing=rule)
    request = Request(trace=tmp_path / "run.h5", scaling=scaling)
    with Trace.open(request.trace) as trace:
        plan = request.plan(trace)
        completed = replace(request, scaling=Scaling(missing=rule)).plan(trace)
    moved, before = int(plan.total_bytes.sum()), int(completed.total_bytes.sum())
    assert plan.notes[0] == (
        f"dispatcher padded: {byte_size(moved)} where {byte_size(before)} were "
        f"captured and completed ({moved / before:.2f}x)"
    )


def test_captured_bytes_are_read_where_they_are_shown(tmp_path):
    made, _ = routed(0)
    made.save(tmp_path / "run.h5")
    request = Request(trace=tmp_path / "run.h5", scaling=Scaling(dispatcher="padded"))
    with Trace.open(request.trace) as trace:
        plans = {ranks: request.plan(trace, ranks=ranks) for ranks in [(), (0,), (1,)]}
    (shown,) = {*plans[0,].notes} - {*plans[1,].notes}
    assert shown.startswith("dispatcher padded: ")
    assert plans[()].notes == plans[1,].notes
    assert len({plan.digest for plan in plans.values()}) == 1


def test_a_program_is_written_as_csv(toy_file, tmp_path, capsys):
    trace, path = toy_file(world=2), tmp_path / "plan.csv"
    assert main([str(trace), "--dry-run", "--program", str(path)]) == 0
    with Trace.open(trace) as opened:
        plan = make_plan(opened)
        found = estimate_plan(opened, plan, Request(trace=trace))
        rows = list(found.rows())
    table = list(csv.DictReader(path.open()))
    assert len(rows) == len(table) > 0
    for row, cells in zip(rows, table, strict=True):
        assert " ".join(map(str, row["sends"])) == cells["sends"]
        assert row["name"] == cells["name"]
    capsys.readouterr()
    assert main([str(trace), "--dry-run", "--program", str(path)]) == 2
    assert "give --force" in capsys.readouterr().err


def test_only_the_operations_of_some_layers_are_written(toy_file, tmp_path):
    trace, out = str(toy_file(world=2, iterations=(0, 1))), tmp_path / "plan.csv"
    assert main([trace, "--dry-run", "--program", str(out), "--layers", "3"]) == 0
    rows = list(csv.DictReader(out.read_text().splitlines()))
    # ranks, iterations
    assert [(r["layer"], r["name"]) for r in rows].count(("3", "dispatch")) == 4
    assert {r["layer"] for r in rows} <= {"3", ""}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--dry-run", "--program", "plan.txt"], "name a .csv file"),
        (["--dry-run", "--hockney", "10us"], "give 10us,50GB/s"),
        (["--dry-run", "--background", "tp=2"], "--model is missing"),
        (["--dry-run", "--background", "tp=2,dp=4", "--model", "tiny"], "are 8"),
        (["--bytes", "tenth"], "give x0.1"),
        (["--fold", "1", "--nproc", "2"], "start 1 (--nproc 1)"),
        (["--pairs", "1"], "2 to 1000 pairs"),
        (["--layers", "x"], "layers are numbers"),
    ],
)
def test_wrong_use_is_one_sentence(toy_file, capsys, options, says):
    assert main([str(toy_file(world=2)), *options]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_a_dry_run_refuses_what_it_cannot_write(tmp_path):
    request = Request(trace=tmp_path / "toy.h5")
    with pytest.raises(ReplayError, match="does not exist"):
        print_dry_run(request, program=tmp_path / "no" / "plan.csv")
