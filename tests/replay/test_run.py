"""A replay on ranks of this host gives a result and a trace of what was sent."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from moetraffic.errors import ReplayError
from moetraffic.replay import operations, replay_trace
from moetraffic.replay.options import Options
from moetraffic.replay.pace import parse_pace
from moetraffic.trace.trace import Trace
from moetraffic.trace.what_if.rescale import Scaling


@pytest.mark.slow
def test_a_trace_in_memory_is_replayed_on_2_gloo_ranks(toy, tmp_path):
    trace, out = toy(world=2, iterations=(0, 1)), tmp_path / "out.h5"
    result = replay_trace(trace, ranks=2, output=out, layers=(1,), capacity="10Gbps")
    plan = operations(trace, layers=(1,))
    assert result.data["ranks"] == 2
    assert sum(result.data["operations"].values()) == len(plan)
    assert [r["bytes"] for r in result.rows("ranks")] == plan.rank_bytes.tolist()
    with Trace.open(out) as made:
        assert (operations(made).bottleneck_bytes == plan.bottleneck_bytes).all()
    (whole,) = (r for r in result.rows("operations") if r["by"] == "all")
    assert whole["bytes"] == plan.total_bytes.sum()


def test_four_ranks_in_two_groups_give_a_trace_and_a_result(
    toy_file, replay_with, tmp_path
):
    path = toy_file(world=4, groups=[(0, 2), (3, 1)])
    out = tmp_path / "replayed.h5"
    result = replay_with(path, out=out, iterations=range(1, 3), repeat=2)
    assert result.data["ranks"] == 4
    assert result.data["verified"] == "full"
    assert (result.data["first_iteration"], result.data["last_iteration"]) == (1, 2)
    with Trace.open(path) as trace, Trace.open(out) as made:
        plan = operations(trace, iterations=range(1, 3))
        again = operations(made)
        assert (again.bottleneck_bytes == plan.bottleneck_bytes).all()
        for occurrence in again.occurrence:
            issue, start, end = made.times(plan.occurrence[:1] * 0 + occurrence)
            assert (issue <= start).all()
            assert (end > issue).all()


def test_a_real_capture_is_replayed_and_its_ports_are_measured(captured, replay_with):
    result = replay_with(captured, iterations=range(2), ports=True)
    assert [row["rank"] for row in result.rows("ports")] == [0, 1, 2, 3]


def test_options_arrive_at_the_ranks_as_they_were_given():
    options = Options(
        trace=Path("run.h5"),
        out=Path("out.h5"),
        iterations=range(2, 9),
        layers=(1, 3),
        scaling=Scaling(fold="2", factor=Fraction(1, 3), self_traffic=False),
        background="tp=2",
        model="tiny",
        pace=parse_pace("scaled:0.5"),
        verify="none",
        repeat=3,
        ports=True,
        capacity="10Gbps",
    )
    assert Options.from_json(options.to_json()) == options
    assert Options.from_json(Options(trace=Path("a")).to_json()).scaling == Scaling()
    assert options.common().keys().isdisjoint({"trace", "out", "capacity"})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"timeout_s": 0}, "timeout must be above 0 s"),
        ({"start_timeout_s": float("nan")}, "start timeout must be above 0 s"),
        ({"repeat": 0}, "1 timed pass or more"),
        ({"pairs": 1}, "2 pairs of passes or more"),
        ({"background": "tp=2"}, "--model is missing"),
        ({"verify": "all"}, "full, none"),
    ],
)
def test_options_that_cannot_be_are_refused(given, says):
    with pytest.raises(ReplayError, match=says):
        Options(trace=Path("run.h5"), **given)


@pytest.mark.slow
def test_the_slowdown_is_told_with_its_interval(toy_file, replay_with):
    result = replay_with(
        toy_file(world=4, largest=20_000),
        background="tp=2,dp=2,micro-batch=1",
        model="tiny",
        pairs=3,
        verify="none",
    )
    assert result.data["trials"] == 3
    for row in result.rows("background"):
        assert 0 < row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
    labels = {row["label"] for row in result.rows("operations")}
    assert "tp" in labels


def test_pairs_without_dense_traffic_are_refused(toy_file, replay_with):
    with pytest.raises(ReplayError, match="replay both, with --background"):
        replay_with(toy_file(world=2), pairs=2, dense=False)
