"""Two runs: exact distances, noise, what is matched, and what is stated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moetraffic.analysis.comparison import compare
from moetraffic.analysis.distances import (
    amount,
    distance_row,
    duration,
    share,
    wasserstein,
)
from moetraffic.data import path
from moetraffic.errors import AnalysisError
from moetraffic.result import Result
from moetraffic.trace import Trace
from tests.analysis.routed import drawn, evening, routed


def test_exact_distances() -> None:
    one, other = np.array([[1.0, 0, 0, 1]]), np.array([[0.0, 1, 1, 0]])
    assert share(one, one * 7) == 0
    assert share(one, other) == 1
    assert np.isnan(share(one, 0 * one))
    assert wasserstein(np.array([0.0, 1]), np.array([5.0, 6])) == 5
    assert wasserstein(np.array([0.0]), np.array([1.0, 3])) == 2
    assert np.isnan(wasserstein(np.array([np.nan]), one))
    assert amount(np.array([2.0, 4]), np.array([6.0])) == 1
    assert np.isnan(amount(np.zeros(2), np.ones(2)))
    assert duration(np.array([1.0, 2, 9]), np.array([1.0])) == 0.5


def loads(seed: int, shares: list[float], steps: int = 120) -> np.ndarray:
    return np.random.default_rng(seed).multinomial(400, shares, size=steps)


def test_noise_is_what_halves_of_a_run_differ_by() -> None:
    p, q = [0.4, 0.3, 0.2, 0.1], [0.3, 0.3, 0.3, 0.1]
    above = 0
    for seed in range(20):
        one = loads(seed, p)
        far, near = (
            distance_row({}, "expert_load", "share", one, loads(seed + n, of))
            for n, of in ((100, q), (200, p))
        )
        above += near["distance"] > near["noise"]
        assert far["distance"] == pytest.approx(0.1, abs=0.02)
        assert far["noise"] < 0.03
    assert above <= 2
    short = distance_row({}, "expert_load", "share", one[:39], one)
    assert np.isnan(short["noise"])
    assert short["observations"] == 39


def test_a_run_is_at_no_distance_from_itself() -> None:
    result = compare(path("golden.h5"), path("golden.h5"))
    assert result.data["identical"]
    assert not result.frame("distances").distance.any()
    assert not result.frame("differences").difference.any()
    assert result.frame("settings").empty
    assert result.verdict[0].startswith("Same traffic, byte for byte, in 12 iterations")
    assert result.notes == ()


def test_only_equal_matrices_are_identical() -> None:
    demand = drawn(12, 4, 8)
    one, same, other = map(routed, (demand, demand, demand[::-1].copy()))
    assert compare(one, same).data["identical"]
    assert not compare(one, other).data["identical"]


def test_runs_of_one_process_are_not_shown_to_differ() -> None:
    shares = np.random.default_rng(0).dirichlet(np.ones(8))
    texts: list[str] = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        one, other = (
            routed(rng.multinomial(400, shares, size=(80, 4))) for _ in range(2)
        )
        texts += compare(one, other).verdict
    assert sum("not shown to differ" in text for text in texts) >= 4


def test_a_more_even_run_is_stated_with_its_busiest_receiver() -> None:
    skewed = evening(300)[:60]
    even = np.random.default_rng(1).multinomial(200, np.full(8, 1 / 8), (60, 4))
    result = compare(routed(skewed), routed(even))
    first, receiver, between, *_, last = result.verdict
    assert first.startswith("The load of the second run was more even in layer 0:")
    assert receiver.startswith("The busiest receiver of layer 0 had 1.")
    assert "of the bytes went between other ranks" in between
    assert last.startswith("Reruns of one configuration differ")
    assert all(len(text.split()) <= 25 for text in result.verdict)
    rows = result.frame("differences").set_index("measure")
    entropy = rows.loc["entropy"]
    assert entropy.difference_low <= entropy.difference <= entropy.difference_high
    assert entropy.difference == pytest.approx(entropy.second - entropy.first)
    assert entropy.outcome == "stated"
    assert entropy.noise < entropy.difference


def test_common_iterations_layers_and_shapes_are_stated(tmp_path: Path) -> None:
    demand = drawn(12, 4, 8)
    whole = routed(demand, layers=(0, 2))
    part = whole.select(
        np.flatnonzero(
            np.isin(whole.occurrences.iteration, range(4, 8))
            & np.array([s.layer == 0 for s in whole.sites])[whole.occurrences.site]
        )
    )
    result = compare(whole, part)
    assert result.data["identical"]
    assert result.data["iterations"] == 4
    assert "the first run alone had layer 2" in result.notes
    assert any("the 4 in common, 4 to 7, were compared" in n for n in result.notes)
    apart = compare(*(_of_iterations(whole, span) for span in ((0, 6), (6, 12))))
    assert any("no iteration in common: 6 and 6" in n for n in apart.notes)
    assert not apart.data["identical"]
    other = compare(whole, routed(drawn(12, 2, 6), layers=(0, 2)))
    assert any("had 4 ranks in the first run and 2" in n for n in other.notes)
    assert any("had 8 experts in the first run and 6" in n for n in other.notes)
    assert "share" not in set(other.frame("distances").measure)
    assert other.verdict[0].startswith("Too short for tests of differences")


def _of_iterations(trace: Trace, span: tuple[int, int]) -> Trace:
    when = trace.occurrences.iteration
    return trace.select(np.flatnonzero((when >= span[0]) & (when < span[1])))


def test_what_has_nothing_in_common_is_refused() -> None:
    with Trace.open(path("golden.h5")) as trace:
        nothing = trace.select(np.zeros(0, np.int64))
        with pytest.raises(AnalysisError, match="share nothing"):
            compare(trace, nothing)
        with pytest.raises(AnalysisError, match=r"not of \[9\]"):
            compare(trace, trace, layers="9")


def test_settings_that_differ_are_listed() -> None:
    result = compare(
        path("run-top2-balanced.h5"),
        path("run-top2-unbalanced.h5"),
        layers=0,
        iterations="0:8",
    )
    assert result.tables.rows("settings") == [  # type: ignore[attr-defined]
        {"field": "balance", "first": "0.01", "second": "0.0"}
    ]


# ---- replays -------------------------------------------------------------------------


@pytest.fixture
def replay() -> Trace:
    return Trace.open(path("golden-replayed.h5"))


def slower(trace: Trace, factor: int, runs: int = 3) -> Trace:
    """The replay with all sums of its runs longer; the first ``runs`` of them."""
    table = trace.runs[trace.runs["number"] < runs].copy()
    for name in ("call_ns", "transfer_ns", "wait_ns", "inside_ns"):
        table[name] *= factor
    return trace.replaced(runs=table)


def said(result: Result) -> str:
    return " ".join(result.verdict)


def test_replays_are_compared_over_their_runs(replay: Trace) -> None:
    same = said(compare(replay, replay))
    assert same.startswith("Same traffic, byte for byte, in 3 iterations. All-to-alls")
    assert "A difference was not shown over 3 and 3 runs (p = 1)" in same
    assert "99% CI" in same
    far = compare(replay, slower(replay, 1_000_000))
    assert "A difference was shown over 3 and 3 runs" in said(far)
    # noise within a run is not that between runs of a replay
    assert "duration" not in set(far.frame("distances").measure)
    captured = replay.replaced(meta=replace(replay.meta, origin="captured"))
    beside = compare(captured, replay).frame("distances")
    assert "dispatch" in set(beside[beside.measure == "duration"].subject)
    busy = replay.runs.copy()
    busy["busy"] = 1
    loaded = compare(replay.replaced(runs=busy), replay)
    assert "other processes used the hosts" in said(loaded)


@pytest.mark.parametrize(
    "lacking",
    [
        lambda replay: slower(replay, 1, runs=1),
        lambda replay: replay.replaced(runs=replay.runs[:0]),
        lambda replay: replay.select(replay.find(iterations=range(2))),
    ],
    ids=["one run", "no runs", "other iterations"],
)
def test_without_the_runs_of_both_there_is_no_interval(
    replay: Trace, lacking: Callable[[Trace], Trace]
) -> None:
    text = said(compare(replay, lacking(replay)))
    assert "CI" not in text
    assert "--repeat 5" in text


def test_times_of_zero_are_not_stated(replay: Trace) -> None:
    table = replay.runs.copy()
    for name in ("call_ns", "transfer_ns", "wait_ns", "inside_ns"):
        table[name][table["number"] == 1] = 0
    still = compare(replay, replay.replaced(runs=table))
    assert still.verdict == ("Same traffic, byte for byte, in 3 iterations.",)


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        ((0.22, 0.21, 0.24), "were 4.55 times as fast (95% CI 4.17 to 4.76)."),
        ((1.5, 1.4, 1.6), "took 1.50 times as long (95% CI 1.40 to 1.60)."),
        ((1.0, 0.9, 1.1), "longer or shorter: 1.00 times as long (95% CI 0.900 to "),
        ((1.0, 0.2, 5.0), "took 0.2 to 5 times as long (95% CI), too wide"),
        ((0.5, np.nan, np.nan), "were 2.00 times as fast."),
    ],
)
def test_a_ratio_is_stated_with_its_interval(
    ratio: tuple[float, float, float], text: str
) -> None:
    from moetraffic.analysis.compare_verdict import sentences

    names = ("ratio", "ratio_low", "ratio_high")
    row: dict[str, Any] = dict(zip(names, ratio, strict=True))
    row |= {"label": "all_to_all", "measure": "transfer", "p": np.nan}
    facts = {"identical": True, "origins": ["captured", "replayed"], "iterations": 3}
    distances = [{"layer": 0, "subject": "wire"}]
    tables = {"differences": [], "distances": distances, "time_ratios": [row]}
    same, sentence = sentences(facts, tables)
    assert same == "Same traffic, byte for byte, in 3 iterations."
    assert sentence.startswith("All-to-alls ")
    assert text in sentence
    assert len(sentence.split()) <= 25
