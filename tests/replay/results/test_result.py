"""The result of a replay: its tables, sentences and JSON, from known times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from moetraffic.replay.options import Options
from moetraffic.replay.pace import parse_pace
from moetraffic.replay.plan.operations import operations
from moetraffic.replay.plan.program import Timing
from moetraffic.replay.results.result import conclude
from moetraffic.trace.model import CLOCK
from tests.replay.results.timed import back_to_back


def concluded(toy, factors, *, nodes="abc", capacity="8Gbps", **more):
    """Result of runs that take the port bound of 1 GB/s times a factor."""
    trace = toy(world=3, iterations=range(5), largest=10**7)
    plan = operations(trace, dense=False)
    bound = plan.bottleneck_bytes
    runs = [
        back_to_back(plan, lambda r, o, f=factor: max(1, int(f * bound[o])))
        for factor in factors
    ]
    options = Options(trace=Path("toy.h5"), capacity=capacity, repeat=len(factors))
    return conclude(options, trace, plan, runs, nodes=list(nodes), **more)


def test_the_first_screen_is_a_table_and_few_sentences(toy):
    result = concluded(toy, [2.0, 2.2, 2.1])
    (kind,) = result.rows("kinds")
    assert kind["call"] == "all-to-all"
    assert kind["busbw_gbs"] == pytest.approx(0.477, abs=1e-3)
    assert kind["busbw_gbit_s"] == pytest.approx(8 * kind["busbw_gbs"])
    assert kind["busbw_interval"] == pytest.approx((0.423, 0.536), abs=1e-3)
    assert len(result.verdict) <= 5
    assert result.verdict[0] == (
        "All-to-all busbw 0.477 GB/s (95% CI 0.423 to 0.536) = 3.81 Gbit/s, over 3 "
        "runs; transfers took 2.10 (95% CI 1.86 to 2.36) times the bound of 8 Gbps = "
        "1.00 GB/s a rank."
    )
    assert result.verdict[1].startswith("Verified: every size and byte; 5 iterations, ")
    assert "--ports measures each rank's" in result.verdict[2]
    screen = "\n".join(result.lines(result.screen, width=100))
    assert screen.startswith("trace, as fast as possible, 3 ranks on 3 hosts, gloo\n")


def test_a_value_is_stated_only_if_its_interval_is_narrow(toy):
    result = concluded(toy, [2.0, 40.0, 5.0])
    assert "GB/s (95% CI; not determined), over 3 runs" in result.verdict[0]
    assert "Gbit/s" not in result.verdict[0]
    assert any("--repeat 12 on idle hosts narrows it" in note for note in result.notes)


def test_no_ratio_is_stated_to_a_network_on_which_it_did_not_run(toy):
    elsewhere = concluded(toy, [2.0], nodes="aaa")
    assert "bound" not in " ".join(elsewhere.verdict)
    assert any("not on 8 Gbps = 1.00 GB/s a rank" in note for note in elsewhere.notes)


def test_slow_ports_clocks_and_other_load_are_stated(toy):
    clocks = np.zeros(3, CLOCK)
    clocks["rank"], clocks["error_ns"] = range(3), [0, 10**6, 10**6]
    ports = [
        {
            **{"rank": rank, "host": host, "slow": "send" * (rank == 2)},
            **{f"{way}{end}": rate for way in ("send", "receive") for end in ENDS},
        }
        for rank, (host, rate) in enumerate(zip("abc", (1e9, 1e9, 1e8), strict=True))
    ]
    meters = np.array([[2.0, 1.0, 1.0], [2.0, 9.0, 1.0], [2.0, 1.0, 1.0]])
    result = concluded(toy, [2.0], clocks=clocks, ports=ports, meters=meters)
    texts = " ".join(result.verdict)
    assert "Slow port: rank 2 on c sends at 0.100 GB/s (0.100 to 0.100)" in texts
    notes = " ".join(result.notes)
    assert "agree within 2 ms: " in notes
    assert "on b, other processes used 4 of " in notes
    limits = [row for row in result.rows("ratios") if row["baseline"] == "ports"]
    assert limits
    assert [row["slow"] for row in result.rows("ports")] == ["", "", "send"]


ENDS = ("", "_low", "_high")


def test_a_replay_at_the_captured_times_has_the_ratio_one(toy):
    """Times taken from the trace itself: ratios are 1, and the schedule is kept."""
    trace = toy(world=2, iterations=range(6))
    plan = operations(trace)
    times = {}
    for rank in range(2):
        rows = np.flatnonzero(plan.of_rank(rank))
        table = np.zeros((2, len(rows)), np.int64)
        for n, row in enumerate(plan.occurrence[rows].tolist()):
            one = np.array([row])
            at = int(np.flatnonzero(trace.members(one)[0] == rank)[0])
            _, start, end = (t[0, at] for t in trace.times(one))
            table[:, n] = start, end
        times[rank] = Timing(
            operation=rows, issue=table[0], end=table[1], due=table[0] - 5_000
        )
    options = Options(trace=Path("toy.h5"), pace=parse_pace("open-loop"))
    result = conclude(options, trace, plan, [times], nodes=["a", "a"])
    ratios = [r for r in result.rows("ratios") if r["baseline"] == "captured"]
    assert {(r["by"], r["label"]) for r in ratios} >= {("all", ""), ("layer", "1")}
    for row in ratios:
        assert row["ratio"] == pytest.approx(1, abs=1e-6)
    (late,) = result.rows("schedule")
    assert late["error_max"] == late["error_p50"] == pytest.approx(5e-6)
    assert "times as long as captured" in " ".join(result.verdict)
    assert "off their due times" in " ".join(result.verdict)
