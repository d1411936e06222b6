"""Two replays: the interval is over their runs, and two of one command agree."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from moetraffic.analysis.comparison import compare
from moetraffic.analysis.resampling import Interval
from moetraffic.analysis.times.completion import completion
from moetraffic.analysis.times.repeated_runs import (
    mean_of_runs,
    ratio_of_runs,
    run_sums,
)
from moetraffic.analysis.times.time_ratios import compare_times
from moetraffic.data import path
from moetraffic.report.results.comparison import sentences
from moetraffic.trace import Trace


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
    assert np.isnan(ratio_of_runs(np.array([1.0, 0.0]), np.ones(2))[1])


def test_what_a_replay_does_not_determine_a_comparison_does_not_either(replay):
    table = replay.runs.copy()
    for number, factor in enumerate((1, 10, 100)):
        mine = table["number"] == number
        for name in ("call_ns", "transfer_ns", "wait_ns", "inside_ns"):
            table[name][mine] *= factor
    spread = replay.replaced(runs=table)
    steady = np.tile(replay.runs[replay.runs["number"] == 0], 3)
    steady["number"] = replay.runs["number"]
    other = replay.replaced(runs=steady)
    (said,) = (s for s in sentences(compare(spread, other)) if "busbw" in s)
    assert said.count("(not determined)") == 2  # the first's busbw, and the ratio
    (said,) = (s for s in sentences(compare(other, other)) if "busbw" in s)
    assert "not determined" not in said


def test_the_interval_that_is_printed_decides_whether_a_ratio_is_determined(replay):
    """Ends of the 95% interval may be within a factor that those of 99% exceed."""
    found = compare(replay, replay)
    near, far = (Interval(value=1, low=1 / x, high=x) for x in (1.5, 2.5))
    times = [replace(t, ratio=near, ratio_tested=far) for t in found.times]
    (said,) = (s for s in sentences(replace(found, times=times)) if "busbw" in s)
    assert "99% CI 0.4 to 2.5 times the first's (not determined)" in said


@pytest.fixture
def replay():
    with Trace.open(path("golden-replayed.h5")) as trace:
        yield trace


def slower(trace: Trace, factor: int, runs: int = 3) -> Trace:
    """The replay with all sums of its runs longer; the first ``runs`` of them."""
    table = trace.runs[trace.runs["number"] < runs].copy()
    for name in ("call_ns", "transfer_ns", "wait_ns", "inside_ns"):
        table[name] *= factor
    return trace.replaced(runs=table)


def test_two_replays_are_compared_over_all_their_runs(replay):
    sums = run_sums(replay, completion(replay).site)
    mine = replay.runs[replay.runs["site"] >= 0]
    for number, total in enumerate(sums.transfer_s):
        row = mine["transfer_ns"][mine["number"] == number]
        assert total == pytest.approx(row.sum() / 1e9)
    for found in compare_times(replay, slower(replay, 3)):
        assert found.runs == (3, 3)
        assert found.ratio.value == pytest.approx(3)
        if found.busbw_gbs is not None:
            assert found.busbw_gbs[0] == pytest.approx(3 * found.busbw_gbs[1])
            assert found.waiting[0] == pytest.approx(found.waiting[1])
    far = compare_times(replay, slower(replay, 1_000_000))
    assert all(t.ratio.low > 1 for t in far)


def test_times_of_zero_make_rates_and_ratios_unknown(replay):
    """Of a run that took no time nothing is divided; what is unknown is named."""
    table = replay.runs.copy()
    for name in ("call_ns", "transfer_ns", "wait_ns", "inside_ns"):
        table[name][table["number"] == 1] = 0
    still = replay.replaced(runs=table)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = compare(replay, still)
    assert all(t.busbw_gbs is None and np.isnan(t.ratio.value) for t in found.times)
    (said,) = (s for s in sentences(found) if s.startswith("All-to-alls"))
    assert said.startswith(
        "All-to-alls, 15 common calls: busbw unknown; transfer time unknown; waiting "
        "for late ranks unknown; no difference of transfer times is shown over 3 and 3 "
        "runs (no test)"
    )


@pytest.mark.parametrize("p", [None, float("nan")])
def test_without_a_p_value_no_difference_is_shown(replay, p):
    found = compare(replay, slower(replay, 1_000_000))
    untested = replace(found, times=tuple(replace(t, p=p) for t in found.times))
    (said,) = (s for s in sentences(untested) if "busbw" in s)
    shown = "no difference of transfer times is shown over 3 and 3 runs (no test)."
    assert said.endswith(shown)


@pytest.mark.parametrize("lacking", ["one run", "no runs", "other iterations"])
def test_without_the_runs_of_both_there_is_no_interval(replay, lacking):
    other = {
        "one run": lambda: slower(replay, 1, runs=1),
        "no runs": lambda: replay.replaced(runs=replay.runs[:0]),
        "other iterations": lambda: replay.select(replay.find(iterations=range(2))),
    }[lacking]()
    for found in compare_times(replay, other):
        assert np.isfinite(found.ratio.value)
        assert np.isnan([found.ratio.low, found.ratio.high]).all()
        assert found.runs[1] == 1
    said = " ".join(sentences(compare(replay, other)))
    assert "no interval" in said
    assert "--repeat 5" in said


def test_a_difference_is_stated_only_with_its_interval(replay):
    same = " ".join(sentences(compare(replay, replay)))
    assert "times is shown over 3 and 3 runs (p = 1, level 0.01)" in same
    assert "no difference of transfer times" in same
    assert "duration of" not in same
    far = " ".join(sentences(compare(replay, slower(replay, 1_000_000))))
    assert "a difference of transfer times is shown over 3 and 3 runs" in far
    # the interval beside the test is of its level, and agrees with it
    for factor in (1, 2, 3, 1_000_000):
        made = compare(replay, slower(replay, factor))
        (said,) = (s for s in sentences(made) if "busbw" in s)
        assert "99% CI" in said
        assert "95% CI" not in said
        for found in made.times:
            tested = found.ratio_tested
            assert tested.low <= found.ratio.low <= found.ratio.high <= tested.high
            assert (found.p < 0.01) == (not tested.low <= 1 <= tested.high)
    busy = replay.runs.copy()
    busy["busy"] = 1
    loaded = replay.replaced(runs=busy)
    (said,) = (s for s in sentences(compare(loaded, replay)) if "busbw" in s)
    assert "no difference of transfer times is shown" in said
    assert "wider because other processes used the hosts: replays then differ" in said
    assert "GB/s (geometric means of 3 and 3 runs)" in said
    # a large difference is stated on busy hosts, too
    far = " ".join(sentences(compare(loaded, slower(replay, 1_000_000))))
    assert "a difference of transfer times is shown" in far
    run = replay.replaced(meta=replace(replay.meta, origin="captured"))
    assert "duration of dispatch" in {d.of for d in compare(run, replay).distances}


def test_a_replay_of_several_runs_has_one_set_of_numbers(replay):
    """Beside the captured run its figures are those beside another replay."""
    meta = replace(replay.meta, origin="captured")
    run = replay.replaced(meta=meta, runs=replay.runs[:0])
    other = slower(replay, 2)
    twice = compare_times(replay, other)
    for before, two in zip(compare_times(run, other), twice, strict=True):
        assert before.runs == (1, 3)
        if before.by == "all" and before.measure == "transfer":
            sums = run_sums(other, completion(other).site).transfer_s
            mean = mean_of_runs(sums / before.a.total)
            assert before.ratio == mean
        if two.waiting is not None:
            assert before.waiting[1] == two.waiting[1]
        if two.busbw_runs is not None:
            assert before.busbw_runs[1] == two.busbw_runs[1]
    (said,) = (s for s in sentences(compare(run, other)) if "busbw" in s)
    assert "GB/s (geometric means of 1 and 3 runs)" in said
    assert "difference of transfer times" not in said  # one run has no test
    # one run of both: over iterations
    assert all(t.runs is None for t in compare_times(run, slower(replay, 1, runs=1)))
