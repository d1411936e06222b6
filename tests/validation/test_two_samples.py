"""Distances of samples, and tests that hold their level and have power."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from moetraffic.errors import AnalysisError
from moetraffic.validation.two_samples import (
    energy_distance,
    kolmogorov_smirnov,
    maximum_mean_discrepancy,
    median_distance,
    outlier_p,
    paired_p,
    swap_p,
)

SAMPLES = arrays(np.float64, st.integers(1, 12), elements=st.integers(-5, 5))


@given(SAMPLES, SAMPLES)
def test_ks_is_scipys(x: np.ndarray, y: np.ndarray) -> None:
    assert kolmogorov_smirnov(x, y) == pytest.approx(stats.ks_2samp(x, y).statistic)


def test_ks_leaves_out_what_is_unknown() -> None:
    assert kolmogorov_smirnov([0, np.nan, 1], [0, 1]) == 0
    assert np.isnan(kolmogorov_smirnov([np.nan], [1]))


@given(SAMPLES, SAMPLES)
def test_energy_distance_on_a_line_is_scipys(x: np.ndarray, y: np.ndarray) -> None:
    ours = energy_distance(x[:, None], y[:, None])
    assert ours == pytest.approx(stats.energy_distance(x, y), abs=1e-6)


@given(SAMPLES, SAMPLES)
def test_mmd_is_zero_for_the_same_sample_and_symmetric(
    x: np.ndarray, y: np.ndarray
) -> None:
    a, b = x[:, None], y[:, None]
    assert maximum_mean_discrepancy(a, a[::-1], width=1.0) < 1e-6
    assert maximum_mean_discrepancy(a, b, width=1.0) == pytest.approx(
        maximum_mean_discrepancy(b, a, width=1.0)
    )


def test_mmd_of_two_points_is_the_formula() -> None:
    found = maximum_mean_discrepancy([[0.0]], [[2.0]], width=2.0)
    assert found == pytest.approx(np.sqrt(2 - 2 * np.exp(-0.5)))
    far = maximum_mean_discrepancy([[0.0]], [[1e6]], width=1.0)
    assert far == pytest.approx(np.sqrt(2))


def test_median_distance() -> None:
    assert median_distance([[0.0], [1.0], [3.0]]) == 2
    assert median_distance([[7.0], [7.0]]) == 1


# ---- a run among others -------------------------------------------------------


def placed(runs: int, directions: int, away: float, cases: int) -> np.ndarray:
    """p of ``cases`` runs, each ``away`` standard deviations from ``runs`` others."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(cases):
        at = rng.normal(size=(runs + 1, directions))
        at[-1, 0] += away
        apart = np.linalg.norm(at[:, None] - at, axis=-1)
        found.append(outlier_p(apart[:-1, :-1], apart[-1, :-1]))
    return np.array(found)


@pytest.mark.parametrize("runs", [3, 5, 8])
def test_in_one_direction_it_is_students_prediction_test(runs: int) -> None:
    at = np.random.default_rng(runs).normal(size=runs + 1)
    apart = np.abs(at[:, None] - at)
    t = (at[-1] - at[:-1].mean()) / (at[:-1].std(ddof=1) * np.sqrt(1 + 1 / runs))
    expected = 2 * stats.t.sf(abs(t), runs - 1)
    assert outlier_p(apart[:-1, :-1], apart[-1, :-1]) == pytest.approx(expected)


@pytest.mark.parametrize(("runs", "directions"), [(3, 1), (3, 8), (7, 1), (7, 30)])
def test_a_run_of_the_same_kind_is_rejected_at_most_at_the_level(
    runs: int, directions: int
) -> None:
    p = placed(runs, directions, 0.0, 500)
    # the level and 3 standard errors
    assert (p < 0.05).mean() < 0.08
    assert (p < 0.01).mean() < 0.024


@pytest.mark.parametrize("directions", [1, 5])
def test_a_run_of_another_kind_is_found_out(directions: int) -> None:
    assert (placed(7, directions, 12.0, 200) < 0.002).mean() > 0.9


def test_what_only_the_run_in_question_lacks_tells_it() -> None:
    apart = 1.0 - np.eye(3)
    assert outlier_p(apart, np.full(3, np.inf)) == 0
    apart[0, 1] = apart[1, 0] = np.inf
    assert outlier_p(apart, np.ones(3)) == 1
    assert outlier_p(np.zeros((3, 3)), np.zeros(3)) == 1
    assert outlier_p(np.zeros((3, 3)), np.full(3, 1e-3)) == 0


def test_two_runs_are_too_few() -> None:
    with pytest.raises(AnalysisError, match="give more seeds"):
        outlier_p(1.0 - np.eye(2), np.ones(2))


# ---- twins ---------------------------------------------------------------------


def test_swapping_holds_its_level_under_a_trend() -> None:
    rng = np.random.default_rng(3)
    trend = np.linspace(0, 10, 12)[:, None]
    p = np.array(
        [
            swap_p(*(trend + rng.normal(size=(2, 12, 3))), draws=199, seed=i)
            for i in range(600)
        ]
    )
    assert 0.02 < (p <= 0.05).mean() < 0.08


def test_swapping_finds_a_shift_and_a_missing_figure() -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(12, 3))
    assert swap_p(x, rng.normal(size=(12, 3)) + 2.0) < 0.002
    assert swap_p(x, x) == 1
    gone = x.copy()
    gone[:, 1] = np.nan
    assert swap_p(x, gone) == pytest.approx(1 / 2000)
    assert swap_p(gone, gone) == 1


# ---- twins of several runs ----------------------------------------------------


def twinned(runs: int, directions: int, away: float, cases: int) -> np.ndarray:
    rng = np.random.default_rng(2)
    found = []
    for _ in range(cases):
        real, twin = rng.normal(size=(2, runs, directions))
        twin[:, 0] += away
        between = [
            np.linalg.norm(each[:, None] - real, axis=-1) for each in (twin, real)
        ]
        found.append(paired_p(*between))
    return np.array(found)


@pytest.mark.parametrize(("runs", "directions"), [(4, 1), (4, 9), (8, 3)])
def test_perfect_twins_are_rejected_at_most_at_the_level(
    runs: int, directions: int
) -> None:
    p = twinned(runs, directions, 0.0, 1000)
    assert (p < 0.05).mean() < 0.071
    assert (p < 0.01).mean() < 0.025


def test_twins_of_another_kind_are_found_out() -> None:
    assert (twinned(5, 3, 8.0, 200) < 0.002).mean() > 0.9
    among = 1.0 - np.eye(4)
    assert paired_p(np.full((4, 4), np.inf), among) == 0
    assert paired_p(among, among) == 1
    with pytest.raises(AnalysisError, match="more pairs"):
        paired_p(among[:3, :3], among[:3, :3])
