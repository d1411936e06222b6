"""The classifiers learn what there is to learn, and no more."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from moetraffic.validation.classifier import (
    CLASSIFIERS,
    fits_auc_test,
    halves_auc,
    runs_auc_test,
    windows,
)
from moetraffic.validation.features import count_features

Make = Callable[..., np.ndarray]


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_of_noise_nothing_is_learned(name: str) -> None:
    rng = np.random.default_rng(0)
    found = [
        halves_auc(name, (x[0], x[1]), (x[0], x[2]))
        for x in rng.normal(size=(8, 3, 40, 6))
    ]
    assert np.mean(found) == pytest.approx(0.5, abs=0.08)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_shift_is_learned_across_runs(name: str) -> None:
    rng = np.random.default_rng(1)
    a, b, c = rng.normal(size=(3, 40, 3))
    assert np.mean(halves_auc(name, (a + 3.0, b), (a + 3.0, c))) > 0.9


def test_a_wider_scatter_is_learned_by_trees() -> None:
    rng = np.random.default_rng(1)
    a, b, c = rng.normal(size=(3, 100, 3)) * np.array([4.0, 1.0, 1.0])[:, None, None]
    assert np.mean(halves_auc("gradient boosting", (a, b), (a, c))) > 0.9


def test_windows_of_a_run(simulated: Make) -> None:
    run = count_features(simulated(0))
    found = windows(run)
    assert found.shape[0] == 12
    assert np.isfinite(found).all()
    # the first feature is the mean entropy of the first layer
    assert found[3, 0] == pytest.approx(run.series["entropy"][30:40, 0].mean())
    # the last are the mean ordered loads of the last layer
    assert found[3, -6:] == pytest.approx(run.ordered[30:40, 1].mean(axis=0))


@pytest.mark.slow
def test_a_rerun_is_within_the_limit_and_another_process_is_not(
    simulated: Make,
) -> None:
    real = [count_features(simulated(1, run, iterations=200)) for run in range(3)]
    found = runs_auc_test(count_features(simulated(1, 8, iterations=200)), real)
    assert found.passed
    assert len(found.real) == 3
    assert set(found.by_classifier) == set(CLASSIFIERS)
    other = simulated(1, 9, iterations=200, persistence=0.2, concentration=200.0)
    bad = runs_auc_test(count_features(other), real)
    assert not bad.passed
    assert bad.interval[0] > bad.limit


@pytest.mark.slow
def test_fits_of_a_good_generator_are_within_the_limit(simulated: Make) -> None:
    seeds = range(4)
    real = [count_features(simulated(seed)) for seed in seeds]
    good = [count_features(simulated(seed, 1)) for seed in seeds]
    found = fits_auc_test(good, real)
    assert found.passed
    assert found.real == ()
    bad = [count_features(simulated(seed, 1, concentration=200.0)) for seed in seeds]
    assert not fits_auc_test(bad, real).passed
