"""Times and ratios of a replay's operations: exact cases, one run and several."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from moetraffic.analysis.times.runs import mean_of_runs
from moetraffic.replay.plan.operations import operations
from moetraffic.replay.plan.program import Timing
from moetraffic.replay.results.comparison import (
    operation_rows,
    punctuality,
    ratio_rows,
    slowdown_rows,
)
from moetraffic.replay.results.durations import durations
from moetraffic.trace.model import CLOCK, UNKNOWN_TIME
from moetraffic.trace.panel import ArrayPanel
from tests.replay.results.timed import back_to_back


def row_of(rows, by, label="", baseline=""):
    wanted = by, label, baseline
    (row,) = (r for r in rows if (r["by"], r["label"], r.get("baseline", "")) == wanted)
    return row


def with_wire(trace, wire):
    name = f"call_{wire.shape[1]}/wire"
    counts = trace.panels[name].read(0, 1)
    panel = ArrayPanel(np.concatenate([counts, wire]))
    return trace.replaced(panels=trace.panels | {name: panel})


def test_rows_are_of_the_operations_that_they_name(toy):
    plan = operations(toy(world=2, iterations=range(6)))

    # layer 3 takes twice as long as layer 1, dense operations a tenth
    def took(rank, o):
        return {1: 1000, 3: 2000, -1: 100}[plan.sites[plan.site[o]].layer]

    rows = operation_rows(plan, [durations(plan, back_to_back(plan, took))], 0)
    labels = {(row["by"], row["label"]) for row in rows}
    assert {("operation", "all_to_all"), ("operation", "all_reduce")} <= labels
    assert {("layer", "1"), ("layer", "3"), ("phase", "dispatch")} <= labels
    assert row_of(rows, "all")["calls"] == len(plan)
    assert row_of(rows, "layer", "3")["call_p99"] == pytest.approx(2e-6)
    assert row_of(rows, "layer", "1")["call_max"] == pytest.approx(1e-6)
    assert row_of(rows, "operation", "all_reduce")["call_p50"] == pytest.approx(1e-7)
    total = sum(row["call_total"] for row in rows if row["by"] == "operation")
    assert total == pytest.approx(row_of(rows, "all")["call_total"])


@pytest.mark.parametrize("world", [2, 4, 8])
def test_for_an_even_exchange_busbw_is_nccls(toy, world):
    """nccl-tests: algbw = S/t and busbw = algbw (n-1)/n, S a rank's whole buffer."""
    trace = with_wire(
        toy(world=world, iterations=(0,), layers=(0,)), np.full((2, world, world), 5000)
    )
    plan = operations(trace, dense=False)
    own = durations(plan, back_to_back(plan, lambda r, o: 2_000))
    row = row_of(operation_rows(plan, [own], 0), "phase", "dispatch")
    assert row["busbw"] == pytest.approx(5000 * world / 2e-6 * (world - 1) / world)


def test_for_an_uneven_exchange_busbw_is_the_busiest_links(toy):
    wire = np.array([[[900, 10, 20], [5, 0, 0], [70, 300, 4]]] * 2)
    trace = with_wire(toy(world=3, iterations=(0,), layers=(0,)), wire)
    plan = operations(trace, dense=False)
    own = durations(plan, back_to_back(plan, lambda r, o: 1_000 + r))
    row = row_of(operation_rows(plan, [own], 0), "phase", "dispatch")
    assert row["busbw"] == pytest.approx(370 / 1.002e-6)  # rank 2 to others
    assert (row["bytes"], row["bytes_between_ranks"]) == (1309, 405)


def test_times_over_the_bound_are_the_slack_that_was_given(toy):
    """Replays that take a multiple of the port bound: one run, and three."""
    plan = operations(toy(world=4, iterations=range(9), largest=10**7), dense=False)
    bound = plan.bottleneck_bytes / 1e9

    def run(factor):
        return durations(
            plan,
            back_to_back(plan, lambda r, o: factor * int(plan.bottleneck_bytes[o])),
        )

    baselines = {"bound": ("transfer_s", bound)}
    one = run(2)
    for row in ratio_rows(plan, [one], baselines):
        assert [row[f"ratio{end}"] for end in ("", "_low", "_high")] == pytest.approx(
            [2] * 3
        )
        assert row["over"] == "iterations"
    assert row_of(operation_rows(plan, [one], 0), "all")["busbw"] == pytest.approx(5e8)
    runs = [run(factor) for factor in (2, 8, 4)]
    want = mean_of_runs([2.0, 8.0, 4.0])
    row = row_of(ratio_rows(plan, runs, baselines), "all", baseline="bound")
    assert (row["ratio"], row["ratio_low"], row["ratio_high"]) == pytest.approx(
        (want.value, want.low, want.high)
    )
    assert row["over"] == "runs"
    shown = row_of(operation_rows(plan, runs, 2), "all")
    assert shown["busbw"] == pytest.approx(1e9 / 4)
    assert shown["busbw_low"] == pytest.approx(1e9 / want.high)
    # times are those of the shown run
    assert shown["call_total"] == pytest.approx(np.nansum(runs[2].call_s))
    # and passes over the bound of a pass
    rows = ratio_rows(plan, runs, baselines, runs[0].pass_s)
    assert row_of(rows, "pass", baseline="bound")["ratio"] == pytest.approx(2.0)


def test_what_is_below_the_error_of_the_clocks_is_not_determined(toy):
    plan = operations(toy(world=2, iterations=range(4)), dense=False)
    times = back_to_back(plan, lambda r, o: 1_000 if o % 3 else 50_000)
    clocks = np.zeros(2, CLOCK)
    clocks["rank"], clocks["error_ns"] = [0, 1], [0, 10_000]
    own = durations(plan, times, clocks, ["a", "b"])
    row = row_of(operation_rows(plan, [own], 0), "all")
    assert row["undetermined"] == pytest.approx(2 / 3)
    assert math.isnan(row["transfer_p50"])
    assert row["transfer_max"] == pytest.approx(5e-5)
    assert row["busbw"] > 0  # the mean transfer is 17 us
    clocks["error_ns"] = [0, 100_000]
    own = durations(plan, times, clocks, ["a", "b"])
    row = row_of(operation_rows(plan, [own], 0), "all")
    assert math.isnan(row["busbw"])
    assert math.isnan(row["transfer_max"])
    assert row["call_max"] == pytest.approx(5e-5)  # each on its own clock


def test_punctuality_is_issue_minus_due():
    issue = np.array([0, 1_000_000, 2_000_000, 9_000_000], np.int64)
    due = np.array([0, 1_000_500, UNKNOWN_TIME, 5_000_000], np.int64)
    timing = Timing(operation=np.arange(4), issue=issue, end=issue + 10, due=due)
    (late,) = punctuality({3: timing})
    assert (late["calls"], late["late_calls"]) == (3, 1)
    assert late["error_max"] == pytest.approx(4e-3)
    assert late["error_p50"] == pytest.approx(500e-9)
    nothing = replace(timing, due=np.full(4, UNKNOWN_TIME))
    assert punctuality({0: nothing}) == []


def test_the_slowdown_is_that_of_the_all_to_alls_alone(toy):
    plan = operations(toy(world=2, iterations=range(12)))
    rng = np.random.default_rng(0)
    trials = []
    for _ in range(4):
        noise = rng.integers(900, 1100, len(plan))
        # dense operations take a thousand times as long, which is none of theirs
        alone, beside = (
            back_to_back(
                plan,
                lambda r, o, n=noise, f=factor: (
                    int(f * n[o]) * (1 if plan.kind[o] == 0 or f == 1 else 1000)
                ),
            )
            for factor in (1, 1.3)
        )
        passes = (durations(plan, times).transfer_s for times in (alone, beside, alone))
        trials.append(tuple(passes))
    rows = {row["background"]: row for row in slowdown_rows(plan, trials)}
    assert rows["with"]["ratio"] == pytest.approx(1.3, rel=2e-3)
    assert rows["with"]["ratio_high"] - rows["with"]["ratio_low"] < 0.01
    assert rows["smallest"]["ratio"] == pytest.approx(1.0)
    # the smallest sizes do not slow it: all of it is by bytes
    assert rows["bytes"]["ratio"] == pytest.approx(1.3, rel=2e-3)
    assert 1 < rows["bytes"]["ratio_low"] <= rows["bytes"]["ratio_high"] < 1.4
