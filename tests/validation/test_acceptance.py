"""A rerun passes, baselines fail, and too few runs are said to be too few."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from moetraffic.errors import AnalysisError
from moetraffic.validation.acceptance import CHANGE, USUAL, accept, accept_fits
from moetraffic.validation.features import Features, count_features
from moetraffic.validation.figures import LEVEL

Make = Callable[..., np.ndarray]


@pytest.fixture(scope="module")
def real(simulated: Make) -> list[Features]:
    return [count_features(simulated(1, run), name=f"run {run}") for run in range(3)]


def multinomial(shares: np.ndarray) -> np.ndarray:
    rows = np.broadcast_to(shares[:, :, None], (*shares.shape[:2], 4, 6))
    return np.random.default_rng(0).multinomial(128, rows)


def uniform(counts: np.ndarray) -> np.ndarray:
    return multinomial(np.full((len(counts), 2, 6), 1 / 6))


def iid(counts: np.ndarray) -> np.ndarray:
    mean = counts.sum(axis=(0, 2)) / counts.sum(axis=(0, 2, 3))[:, None]
    return multinomial(np.broadcast_to(mean, (len(counts), 2, 6)))


def frozen(counts: np.ndarray) -> np.ndarray:
    return np.broadcast_to(np.rint(counts.mean(axis=0)).astype(int), counts.shape)


@pytest.mark.slow
def test_a_rerun_passes_with_its_power_stated(
    simulated: Make, real: list[Features]
) -> None:
    found = accept(count_features(simulated(1, 5)), real)
    assert found.outcome == "passed"
    assert found.power.change == CHANGE
    assert found.power.probability > 0.5
    assert CHANGE < found.power.detectable <= 0.5
    assert len(real) < found.power.needed < 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("baseline", "named"),
    [
        (uniform, {"max over mean", "row dispersion"}),
        (iid, {"row dispersion", "change over sampling noise"}),
        (frozen, {"row persistence"}),
    ],
)
def test_a_baseline_fails_against_three_runs(
    simulated: Make,
    real: list[Features],
    baseline: Callable[[np.ndarray], np.ndarray],
    named: set[str],
) -> None:
    found = accept(count_features(baseline(simulated(1))), real)
    assert found.outcome == "failed"
    assert named <= {t.name for t in found.failures}
    assert found.recognized


@pytest.mark.slow
@pytest.mark.parametrize(
    ("other", "named"),
    [
        (partial(dict, persistence=0.2), "change over sampling noise"),
        (partial(dict, concentration=200.0), "row dispersion"),
    ],
)
def test_another_process_fails_in_what_it_differs(
    simulated: Make, real: list[Features], other: Callable[[], dict], named: str
) -> None:
    found = accept(count_features(simulated(1, 5, **other())), real)
    assert named in {t.name for t in found.failures}


@pytest.mark.parametrize("runs", [1, 2])
def test_too_few_runs_cannot_judge(
    simulated: Make, real: list[Features], runs: int
) -> None:
    found = accept(count_features(simulated(1, 5)), real[:runs])
    assert found.outcome == "cannot be judged"
    assert not found.passed
    assert found.classifier is None
    assert found.power.probability < 0.5
    assert found.power.needed == USUAL


@pytest.mark.slow
def test_a_generator_is_tested_on_several_fits(simulated: Make) -> None:
    seeds = range(1, 5)
    runs = [count_features(simulated(seed)) for seed in seeds]
    assert accept_fits(
        [count_features(simulated(seed, 1)) for seed in seeds], runs
    ).passed
    poor = [count_features(iid(simulated(seed))) for seed in seeds]
    found = accept_fits(poor, runs)
    assert found.way == "fits"
    assert "row dispersion" in {t.name for t in found.failures}
    assert found.recognized
    with pytest.raises(AnalysisError, match="give as many"):
        accept_fits(poor[:3], runs)


def test_runs_of_other_length_are_cut_and_too_short_ones_refused(
    simulated: Make, real: list[Features]
) -> None:
    longer = count_features(simulated(1, 5, iterations=130))
    assert "first 120" in accept(longer, real[:1]).notes[0]
    with pytest.raises(AnalysisError, match="need 100 iterations"):
        accept(count_features(simulated(1, iterations=60)), real)
    with pytest.raises(AnalysisError, match="none is given"):
        accept(real[0], [])


@pytest.mark.parametrize(
    ("made", "how", "found"),
    [
        (
            {},
            {"width": 1, "holder": np.zeros((2, 6), int)},
            ("EP 1 against 4", "group 1 ag"),
        ),
        ({}, {"k": 2}, ("k 2 against 1",)),
        ({"experts": 4}, {}, ("experts 4 against 6",)),
        ({"layers": 3}, {}, ("layers 3 against 2",)),
        (
            {"ranks": 8},
            {},
            ("EP 6 against 4", "group 8 against 4", "ranks 8 against 4"),
        ),
        ({"tokens": 64}, {}, ("64 against 128",)),
        ({"tokens": 127}, {"k": 0}, ()),
    ],
)
def test_another_size_fails_by_name_without_a_test(
    simulated: Make,
    made: dict[str, Any],
    how: dict[str, Any],
    found: tuple[str, ...],
) -> None:
    real = [count_features(simulated(1, run), name="real", k=1) for run in range(2)]
    other = count_features(simulated(1, 5, **made), **{"k": 1} | how)
    judged = accept(other, real)
    assert len(judged.mismatches) == len(found)
    for each, named in zip(judged.mismatches, found, strict=True):
        assert named in each
    # what generate is asked to change needs real runs of that size
    resized = bool({"ranks", "experts"} & {*made} or how.get("k", 1) > 1)
    expected = "cannot be judged" if resized else "failed"
    assert judged.resized == resized
    assert (judged.outcome == expected) == bool(found)
    assert bool(judged.figures) != bool(found)
    assert accept_fits([other], real[:1]).mismatches == judged.mismatches
    if found and not made.get("tokens"):
        with pytest.raises(AnalysisError, match="give runs of one size"):
            accept(real[0], [real[1], other])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_reruns_fail_at_most_at_the_two_levels(simulated: Make) -> None:
    cases, failed = 40, 0
    for case in range(cases):
        runs = [count_features(simulated(1000 + case, run)) for run in range(4)]
        failed += accept(runs[0], runs[1:]).outcome == "failed"
    both = 2 * LEVEL  # of the figures and of the classifiers
    assert failed / cases <= both + 3 * np.sqrt(both * (1 - both) / cases)
