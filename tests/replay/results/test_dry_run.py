"""A dry run: calls, bytes, buffers, and bound."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from moetraffic.replay.options import Options
from moetraffic.replay.plan.background import traffic_of
from moetraffic.replay.plan.operations import operations
from moetraffic.replay.plan.program import programs
from moetraffic.replay.results.dry_run import dry_run, rank_rows


@pytest.fixture
def planned(toy):
    trace = toy(world=4, groups=[(0, 2), (3, 1)])
    beside = traffic_of("tp=2,dp=2,micro-batch=1", "tiny", 4)
    return trace, operations(trace, background=beside)


def test_tables_hold_the_whole_plan(planned):
    trace, plan = planned
    options = Options(trace=Path("toy.h5"), capacity="1Gbps", repeat=2)
    result = dry_run(options, trace, plan)
    for table in ("kinds", "streams"):
        rows = result.rows(table)
        assert sum(row["calls"] for row in rows) == len(plan)
        assert sum(row["bytes"] for row in rows) == plan.total_bytes.sum()
    assert {"experts", "tp", "dp"} <= {row["stream"] for row in result.rows("streams")}
    assert result.data["network"] == "1 Gbps = 0.125 GB/s a rank"
    assert (
        sum(row["bound_s"] for row in result.rows("kinds"))
        > (result.data["pass_bound_s"])
    )
    assert result.verdict[0] == "Passes: a verification, 2 timed runs."
    assert "A pass takes at least " in result.verdict[2]


def test_buffers_and_calls_hold_those_of_each_ranks_program(planned):
    trace, plan = planned
    rows = rank_rows(plan)
    for rank, program in programs(trace, plan, range(4)).items():
        row = rows[rank]
        assert row["calls"] == len(program)
        assert row["bytes"] == plan.rank_bytes[rank]
        assert sum(program.buffer_bytes) <= row["buffer_bytes"]


@pytest.mark.slow
def test_a_dry_run_imports_no_torch_and_starts_no_rank(toy_file):
    trace = toy_file(world=4)
    code = (
        "import sys; from moetraffic.replay.__main__ import main;"
        f"code = main([{str(trace)!r}, '--dry-run', '--fold', '2']);"
        "sys.exit(code or 'torch' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert ", 2 ranks\n" in ran.stdout
    assert "scale: 4 ranks onto 2; --fold 2" in ran.stdout
