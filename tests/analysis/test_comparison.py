"""Distances of traces: exact cases, coverage, and captured runs."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from moetraffic.analysis.claim import Claim, Outcome
from moetraffic.analysis.comparison import (
    FEWEST,
    Comparison,
    compare,
    distance,
    worst,
)
from moetraffic.analysis.distances import (
    relative_difference,
    relative_median,
    total_variation,
    wasserstein,
)
from moetraffic.data import path
from moetraffic.errors import AnalysisError
from moetraffic.report.results.comparison import (
    claim_sentence,
    claims,
    sentences,
    tables,
)
from moetraffic.trace import Trace
from moetraffic.trace.model import Steps


def test_exact_distances() -> None:
    one, other = np.array([1.0, 0, 0, 1]), np.array([0.0, 1, 1, 0])
    assert total_variation(one, one * 7) == 0
    assert total_variation(one, other) == 1
    assert np.isnan(total_variation(one, 0 * one))
    assert wasserstein(np.array([0.0, 1]), np.array([5.0, 6])) == 5
    assert wasserstein(np.array([0.0]), np.array([1.0, 3])) == 2
    assert np.isnan(wasserstein(np.array([np.nan]), one))
    assert relative_difference(np.array([2.0, 4]), np.array([6.0])) == 1
    assert relative_median(np.array([1.0, 2, 9]), np.array([1.0])) == 0.5


def _shares(seed: int, p: np.ndarray, steps: int = 120) -> np.ndarray:
    return np.random.default_rng(seed).multinomial(400, p, size=steps).astype(float)


@pytest.mark.parametrize("runs", [10, pytest.param(40, marks=pytest.mark.slow)])
def test_the_interval_covers_the_truth_and_the_floor_chance(runs: int) -> None:
    p = np.array([0.4, 0.3, 0.2, 0.1])
    q = np.array([0.3, 0.3, 0.3, 0.1])
    names = {"layer": 0, "of": "load", "unit": "1"}
    covered = chance = 0
    for seed in range(runs):
        one = _shares(seed, p)
        far = distance(one, _shares(seed + 100, q), total_variation, **names)
        near = distance(one, _shares(seed + 200, p), total_variation, **names)
        covered += far.low <= 0.1 <= far.high
        chance += near.beyond_noise
        assert far.beyond_noise
        assert near.low <= near.value <= near.high
    assert covered >= 0.9 * runs
    assert chance <= 0.15 * runs


def test_reruns_with_a_motion_of_their_own_exceed_the_noise_within_a_run() -> None:
    found, runs, keep = [], 10, 0.5 ** (1 / 20)  # half-life of 20 iterations
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        moved = np.zeros((2, 120, 4))
        for t in range(1, 120):
            moved[:, t] = keep * moved[:, t - 1] + rng.normal(0, 0.1, (2, 4))
        p = np.exp(moved) / np.exp(moved).sum(axis=-1, keepdims=True)
        one, other = rng.multinomial(2048, p).astype(float)
        found.append(
            distance(one, other, total_variation, layer=0, of="load", unit="1")
        )
    assert sum(d.beyond_noise for d in found) > runs / 2
    # so the summary states no difference of the two runs
    for d in found:
        text = " ".join(sentences(Comparison(distances=(d,), notes=())))
        assert ("whether these differ by more" in text) == d.beyond_noise


def test_few_iterations_have_neither_noise_nor_interval() -> None:
    """With one block, all resamples have the mean of the run: no noise at all."""
    even = np.full(8, 1 / 8)
    for steps in (4, FEWEST - 1, FEWEST):
        unknown = steps < FEWEST
        d = distance(
            _shares(0, even, steps),
            _shares(1, np.arange(1, 9) / 36, steps),
            total_variation,
            layer=0,
            of="load",
            unit="1",
        )
        assert np.isnan([d.low, d.high, d.floor]).all() == unknown
        assert d.beyond_noise != unknown
        found = Comparison(distances=(d,), notes=())
        # the threshold of a test in CI is then that of the distance itself
        assert worst(found, {"total variation": 0.1}) == [d]
        text = " ".join(sentences(found))
        needs = (
            f"noise unknown: too few iterations or calls (needs {FEWEST}, has {steps})"
        )
        assert (needs in text) == unknown
        assert ("interval" in text) != unknown
        assert f"{d.value:.3g}" in text


def test_a_run_is_at_no_distance_from_itself() -> None:
    with Trace.open(path("golden.h5")) as a, Trace.open(path("golden.h5")) as b:
        found = compare(a, b)
        assert {d.value for d in found.distances} == {0.0}
        assert not any(d.beyond_noise for d in found.distances)
        frame = found.to_frame()
        assert frame.value.tolist() == [d.value for d in found.distances]
        assert frame.columns.tolist()[:3] == ["layer", "of", "measure"]
        assert not frame.beyond_noise.any()
        assert worst(found, {"total variation": 0.0}) == []


def test_early_and_late_training_are_apart(captured: Path) -> None:
    with Trace.open(captured) as trace:
        every = np.arange(len(trace.occurrences))
        early = trace.select(every[trace.occurrences.iteration < 12])
        late = trace.select(every[trace.occurrences.iteration >= 12])
        found = compare(early, late)
        loads = [d for d in found.distances if d.of == "expert load"]
        assert len(loads) == 2
        assert all(0 < d.value < 1 for d in loads)
        told = {d.of for d in found.distances}
        assert {"wire matrix", "cv of demand", "duration of dispatch"} <= told


def test_what_has_nothing_in_common_is_refused(captured: Path) -> None:
    with Trace.open(captured) as trace:
        nothing = trace.select(np.zeros(0, np.int64))
        with pytest.raises(AnalysisError, match="share nothing"):
            compare(trace, nothing)


def test_the_command_says_by_its_exit_code(
    captured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from moetraffic.cli import main

    golden = str(path("golden.h5"))
    assert main(["compare", golden, golden, "--at-most", "shares=0"]) == 0
    summary = capsys.readouterr().out
    assert summary.startswith("Byte-identical: ")
    with Trace.open(golden) as trace:
        rows = tables(compare(trace, trace))[0].rows
    traffic = [row for row in rows if not str(row[1]).startswith("duration")]
    assert traffic
    assert {row[6] for row in traffic} == {"identical"}
    assert "Claims" not in summary  # equal traffic has equal claims, at no distance
    assert "Distances" not in summary
    assert summary.endswith("--only claims,distances,times\n")
    assert main(["compare", golden, golden, "--only", "times"]) == 0
    assert "within-run noise" not in capsys.readouterr().out
    assert main(["compare", golden, golden, "--tables"]) == 0
    said = capsys.readouterr().out
    assert "expert load" in said
    # 12 iterations: of each run the same, with what the test needs
    (layer,) = re.findall(r"expert load of layer 1, .*?\n\n", said, re.S)
    assert re.search(r"\n converged +(needs 32) +\1 ", layer)
    # amounts with their units; shares and measures of skew have none
    assert re.search(r"wire per iteration +relative difference +[\d.]+ kB", said)
    assert re.search(r"demand per iteration +relative difference +\d+ copies", said)
    assert re.search(r"duration of dispatch +relative difference +[\d.]+ [mu]s", said)
    assert main(["compare", str(captured), golden, "--at-most", "skew=0.001"]) == 1
    out = capsys.readouterr().out
    assert "above threshold: Wasserstein-1: " in out
    assert "Byte-identical" not in out
    # shares of other experts are not compared
    assert "otal variation" not in out
    assert main(["compare", str(captured), golden, "--at-most", "shares=0.1"]) == 2
    assert "needs distances of shares" in capsys.readouterr().err
    bytes_alone = ["compare", golden, golden, "--of", "wire", "--at-most"]
    assert main([*bytes_alone, "shares=0.1"]) == 0
    assert "is applied to bytes" in capsys.readouterr().out
    assert main([*bytes_alone, "amounts=0.1"]) == 0
    assert "is applied to bytes" not in capsys.readouterr().out
    for threshold in ("color=1", "shares=5", "skew=-1"):
        assert main(["compare", golden, golden, "--at-most", threshold]) == 2
        assert "--at-most shares=0.05" in capsys.readouterr().err


def test_a_part_of_a_run_is_compared_with_the_same_iterations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from moetraffic.cli import main

    golden, part = str(path("golden.h5")), str(tmp_path / "part.h5")
    with Trace.open(golden) as trace:
        when, steps = trace.occurrences.iteration, trace.steps
        rows = {f.name: getattr(steps, f.name)[4:8] for f in fields(steps)}
        kept = trace.select(np.flatnonzero((when >= 4) & (when < 8)))
        kept.replaced(steps=Steps(**rows)).save(part)
    assert main(["compare", golden, part]) == 0
    first = capsys.readouterr().out.replace("\n  ", " ").splitlines()[0]
    assert "has 4 of the 12 iterations" in first
    assert "--iterations 4:8" in first
    assert main(["compare", golden, part, "--iterations", "4:8"]) == 0
    assert capsys.readouterr().out.startswith("Byte-identical: ")


def test_claims_are_counted_where_both_runs_have_them() -> None:
    def made(outcome: Outcome, about: str = "load of layer 0") -> Claim:
        return Claim(
            name="moves", about=about, outcome=outcome, statement="it moves", null="no"
        )

    stated, not_shown = made(Outcome.STATED), made(Outcome.NO_EVIDENCE)
    other = made(Outcome.STATED, "load of layer 1")
    assert claim_sentence([stated, other], [not_shown]) == (
        "Claims, by layer and horizon: 0 of 1 have the same outcome in both; stated in "
        'the first only: "moves" 1x; 1 more are of layers, ranks, horizons or routers '
        "that one run lacks."
    )
    assert claim_sentence([stated], [other]).startswith("Claims: none is of the same")


def test_expert_loads_of_a_layer_are_compared_on_other_numbers_of_ranks() -> None:
    def made(subject: str, ranks: str) -> Claim:
        return Claim(
            name="moves",
            about=f"{subject} of layer 0, ranks {ranks}, 1 iteration ahead",
            outcome=Outcome.STATED,
            statement="it moves",
            null="no",
        )

    load, matrix = "expert load", "demand matrix"
    four = [made(load, "0 to 3"), made(matrix, "0 to 3")]
    two = [made(load, "0 to 1"), made(matrix, "0 to 1")]
    assert claim_sentence(four, two) == (
        "Claims, by layer and horizon: 1 of 1 have the same outcome in both; 2 more "
        "are of layers, ranks, horizons or routers that one run lacks."
    )
    titles = [table.title for table in claims(four, two)]
    assert titles[0] == "expert load of layer 0"
    assert titles[1:] == [f"{matrix} of layer 0, ranks 0 to {n}" for n in (3, 1)]
    # with several groups of ranks it is not known which are the same
    several = [*two, made(load, "2 to 3")]
    assert claim_sentence(four, several).startswith("Claims: none is of the same")
