"""Times of the same calls in two runs, and intervals over the runs of a replay."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from moetraffic.analysis.times.completion import completion
from moetraffic.analysis.times.ratios import (
    RUNS,
    busiest_link_bytes,
    compare_times,
    matched,
    site_keys,
)
from moetraffic.analysis.times.runs import mean_of_runs, ratio_of_runs, run_sums
from moetraffic.columns import COLUMNS
from moetraffic.data import path
from moetraffic.trace import UNKNOWN_TIME, Trace
from moetraffic.trace.panel import ArrayPanel


def retimed(trace: Trace, name: str, change) -> Trace:
    """The trace with one kind of times changed: ``change(array)``."""
    panels = dict(trace.panels)
    for key, panel in trace.panels.items():
        if key.endswith(f"/{name}"):
            panels[key] = ArrayPanel(change(panel.read(0, panel.shape[0]).copy()))
    return trace.replaced(panels=panels, runs=None)


def unknown(times: np.ndarray) -> np.ndarray:
    return np.full_like(times, UNKNOWN_TIME)


# ---- two runs ------------------------------------------------------------------------


def test_what_lacks_a_members_time_is_left_out(captured: Path) -> None:
    with Trace.open(captured) as trace:
        every = completion(trace)

        def forget(times: np.ndarray) -> np.ndarray:
            times[::2, 0] = UNKNOWN_TIME
            return times

        fewer = completion(retimed(trace, "end", forget))
        assert 0 < len(fewer) < len(every)
        _, rows = matched((trace, trace), (fewer, every))
        np.testing.assert_array_equal(fewer["call_s"], every["call_s"][rows])
        silent = retimed(trace, "issue", unknown)
        assert len(completion(silent)) == 0
        assert compare_times(trace, silent) == []


def test_twice_as_slow_is_a_ratio_of_two_in_every_row(captured: Path) -> None:
    with Trace.open(captured) as trace:
        # all ranks share a clock there, so all times may be stretched together
        slow = trace
        for name in ("issue", "start", "end"):
            slow = retimed(slow, name, lambda t: np.where(t == UNKNOWN_TIME, t, 2 * t))
        rows = compare_times(trace, slow)
    assert {(r["by"], r["measure"]) for r in rows} >= {
        ("all", "transfer"),
        ("all", "call"),
        ("operation", "call"),
        ("phase", "transfer"),
        ("layer", "call"),
        ("iteration", "wall"),
    }
    for row in rows:
        assert row["over"] == "iterations"
        for name in ("ratio", "ratio_low", "ratio_high"):
            assert row[name] == pytest.approx(2)
        assert row["second_p99"] == pytest.approx(2 * row["first_p99"])
        assert set(row) <= set(COLUMNS)
    assert len({r["calls"] for r in rows if r["by"] == "phase"}) == 1


def test_calls_are_matched_by_what_they_are_whatever_the_ranks(captured: Path) -> None:
    with Trace.open(captured) as trace:
        keys = site_keys(trace)
        assert len(set(keys)) == len(keys)
        every = np.arange(len(trace.occurrences))
        later = trace.select(every[trace.occurrences.iteration >= 5])
        x, y = completion(trace), completion(later)
        mine, theirs = matched((trace, later), (x, y))
        assert len(mine) == len(y)
        np.testing.assert_array_equal(x["iteration"][mine], y["iteration"][theirs])
        np.testing.assert_array_equal(x["call_s"][mine], y["call_s"][theirs])


def test_waiting_and_bandwidth_of_two_runs_stand_side_by_side(captured: Path) -> None:
    """The second run moves the same bytes twice as fast, and waits for nobody."""
    with Trace.open(captured) as trace:
        some = trace.select(trace.find(operation="all_to_all"))
        calls = completion(some)["occurrence"]
        wire = some.wire(calls)
        wire[:, np.arange(4), np.arange(4)] = 0
        sent = [max(m.sum(axis=0).max(), m.sum(axis=1).max()) for m in wire]
        np.testing.assert_array_equal(busiest_link_bytes(some, calls), sent)
        ends = np.arange(1, 10**6) * 4_000_000

        def late(ns):
            return lambda t: np.repeat(ends[: len(t), None] + ns, t.shape[1], 1)

        slow = retimed(retimed(some, "issue", late(0)), "start", unknown)
        slow = retimed(slow, "end", late(2000))
        fast = retimed(slow, "end", late(1000))
        # rank 0 calls 1 us before the others
        early = retimed(slow, "issue", lambda t: t - np.array([1000, 0, 0, 0]))
        rows = {(r["label"], r["measure"]): r for r in compare_times(early, fast)}
    row = rows["all_to_all", "transfer"]
    assert row["ratio"] == pytest.approx(0.5)
    assert [row[f"{run}_waiting"] for run in RUNS] == pytest.approx([1 / 9, 0])
    rate = np.sum(sent) / (2e-6 * len(sent))
    assert [row[f"{run}_busbw"] for run in RUNS] == pytest.approx([rate, 2 * rate])
    assert math.isnan(rows["all_to_all", "call"]["first_waiting"])


# ---- several runs --------------------------------------------------------------------


@pytest.fixture
def replay():
    with Trace.open(path("golden-replayed.h5")) as trace:
        yield trace


def slower(trace: Trace, factor: int, runs: int = 3, number: int = -1) -> Trace:
    """The replay with all sums of its runs, or of one, longer; the first ``runs``."""
    table = trace.runs[trace.runs["number"] < runs].copy()
    rows = (table["number"] == number) | (number < 0)
    for name in ("call_ns", "transfer_ns", "wait_ns", "inside_ns"):
        table[name][rows] *= factor
    return trace.replaced(runs=table)


def test_the_ratio_of_runs_is_welchs_on_logarithms():
    rng = np.random.default_rng(3)
    for n, m in ((2, 2), (2, 9), (5, 5), (30, 4)):
        below, above = rng.lognormal(0, 0.1, n), rng.lognormal(1, 0.6, m)
        found, p = ratio_of_runs(below, above)
        known = stats.ttest_ind(np.log(above), np.log(below), equal_var=False)
        low, high = known.confidence_interval(0.95)
        assert np.log([found.low, found.high]) == pytest.approx([low, high])
        assert p == pytest.approx(known.pvalue)
        assert found.value == pytest.approx(stats.gmean(above) / stats.gmean(below))
        wider, less = ratio_of_runs(below, above, busy=True)
        assert wider.low < found.low < found.high < wider.high
        assert less > p
    assert np.isnan(ratio_of_runs(np.array([1.0, 0.0]), np.ones(2))[1])


def test_two_replays_are_compared_over_all_their_runs(replay):
    sums = run_sums(replay, completion(replay)["site"])
    rows = replay.runs[replay.runs["site"] >= 0]
    for number, total in enumerate(sums["transfer_s"]):
        row = rows["transfer_ns"][rows["number"] == number]
        assert total == pytest.approx(row.sum() / 1e9)
    for row in compare_times(replay, slower(replay, 3)):
        assert (row["first_runs"], row["second_runs"], row["over"]) == (3, 3, "runs")
        assert row["ratio"] == pytest.approx(3)
        if row["first_busbw"] > 0:
            assert row["first_busbw"] == pytest.approx(3 * row["second_busbw"])
            assert row["first_waiting"] == pytest.approx(row["second_waiting"])
    far = compare_times(replay, slower(replay, 1_000_000))
    assert all(row["ratio_low"] > 1 for row in far)


def test_the_tested_interval_excludes_one_where_the_test_rejects(replay):
    for factor in (1, 2, 3, 1_000_000):
        for row in compare_times(replay, slower(replay, factor)):
            low, high = row["tested_low"], row["tested_high"]
            assert low <= row["ratio_low"] <= row["ratio_high"] <= high
            assert (row["p"] < 0.01) == (not low <= 1 <= high)
            assert not row["busy"]
    same, far = (compare_times(replay, slower(replay, f))[0] for f in (1, 1_000_000))
    assert (same["p"], far["p"] < 0.01) == (1, True)
    busy = replay.runs.copy()
    busy["busy"] = 1
    wide = compare_times(replay.replaced(runs=busy), replay)[0]
    assert wide["busy"]
    assert wide["tested_high"] > same["tested_high"]


def test_times_of_zero_make_rates_and_ratios_unknown(replay):
    still = slower(replay, 0, number=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = compare_times(replay, still)
    for row in rows:
        for name in ("ratio", "p", "second_busbw", "second_waiting"):
            assert np.isnan(row[name])


@pytest.mark.parametrize("lacking", ["one run", "no runs", "other iterations"])
def test_without_the_runs_of_both_there_is_no_interval(replay, lacking):
    other = {
        "one run": lambda: slower(replay, 1, runs=1),
        "no runs": lambda: replay.replaced(runs=replay.runs[:0]),
        "other iterations": lambda: replay.select(replay.find(iterations=range(2))),
    }[lacking]()
    for row in compare_times(replay, other):
        assert np.isfinite(row["ratio"])
        assert np.isnan([row["ratio_low"], row["ratio_high"], row["p"]]).all()
        assert (row["over"], row["second_runs"]) == ("", 1)


def test_a_replay_of_several_runs_has_one_set_of_numbers(replay):
    """Beside the captured run its figures are those beside another replay."""
    meta = replace(replay.meta, origin="captured")
    run = replay.replaced(meta=meta, runs=replay.runs[:0])
    other = slower(replay, 2)
    twice = compare_times(replay, other)
    for before, two in zip(compare_times(run, other), twice, strict=True):
        assert (before["first_runs"], before["second_runs"]) == (1, 3)
        assert np.isnan(before["p"])  # one run has no test
        if before["by"] == "all" and before["measure"] == "transfer":
            sums = run_sums(other, completion(other)["site"])["transfer_s"]
            mean = mean_of_runs(sums / before["first_total"])
            assert before["ratio"] == mean.value
            assert before["ratio_low"] == mean.low
        names = ["waiting", "busbw", "busbw_low", "busbw_high"]
        figures = [[row[f"second_{name}"] for name in names] for row in (before, two)]
        np.testing.assert_array_equal(*figures)
    # one run of both: over iterations
    rows = compare_times(run, slower(replay, 1, runs=1))
    assert {row["over"] for row in rows} == {"iterations"}
