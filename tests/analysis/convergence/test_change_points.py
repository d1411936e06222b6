"""Change points: known jumps, false alarms under serial correlation, several series."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter

from moetraffic.analysis.convergence.change_points import change_points
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")


def process(phi, steps, runs, seed):
    """AR(1) of variance 1, ``[T, runs]``."""
    noise = np.random.default_rng(seed).normal(size=(steps + 300, runs))
    return lfilter([1], [1, -phi], noise, axis=0)[300:] * np.sqrt(1 - phi**2)


def alarms(runs, **options):
    return np.mean(
        [
            len(change_points(runs[:, i], seed=i, **options).index) > 0
            for i in range(runs.shape[1])
        ]
    )


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_no_change_gives_few_alarms(phi):
    # of 40 runs at 5%, more than 6 would be chance in one of 300
    assert alarms(process(phi, 40, 40, seed=1), resamples=99) <= 6 / 40


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_a_large_jump_is_found_where_it_is(phi):
    found = [
        change_points(x + 5 * (np.arange(80) >= 50), resamples=99).index.tolist()
        for x in process(phi, 80, 12, seed=2).T
    ]
    assert np.mean([index == [50] for index in found]) > 0.8


def test_levels_gains_and_memory_are_told():
    x = process(0.5, 300, 1, seed=3)[:, 0]
    x[100:200] += 4
    found = change_points(10 * x + 7)
    assert found.index.tolist() == [100, 200]
    assert found.levels == pytest.approx([7, 47, 7], abs=5)
    assert (found.gain > found.penalty).all()
    assert found.order == 8
    assert found.resolution == 1
    assert 0 < found.memory <= 1


def test_series_that_jump_together_tell_more_than_one():
    noise = process(0.3, 60, 8, seed=4)
    jump = 1.8 * (np.arange(60) >= 30)[:, None] * np.tile([1, -1], 4)
    found = change_points(noise + jump)
    assert found.index.tolist() == [30]
    assert found.levels.shape == (2, 8)
    step = found.levels[1] - found.levels[0]
    assert step == pytest.approx(1.8 * np.tile([1, -1], 4), abs=1)


def test_what_ties_series_is_no_change():
    tied = [
        process(0.7, 60, 1, seed=i) + 0.3 * process(0.7, 60, 8, seed=100 + i)
        for i in range(12)
    ]
    found = [len(change_points(x, resamples=99).index) > 0 for x in tied]
    assert sum(found) <= 3


def test_counting_noise_on_a_slow_state_is_no_change():
    state = process(0.9, 60, 25, seed=5)
    counting = 0.5 * np.random.default_rng(6).normal(size=state.shape)
    assert alarms(state + counting, resamples=99) <= 4 / 25


def test_long_series_are_averaged_and_say_so():
    x = np.random.default_rng(7).normal(size=20_000)
    x[12_000:] += 0.5
    found = change_points(x, resamples=99)
    assert found.resolution == 40
    assert found.index == pytest.approx([12_000], abs=80)
    assert found.levels == pytest.approx([0, 0.5], abs=0.05)


def test_of_many_series_those_that_vary_take_part():
    x = np.random.default_rng(8).normal(size=(40, 6)) * [1, 5, 0, 2, 9, 3]
    found = change_points(x, max_series=3, resamples=19)
    assert found.used.tolist() == [1, 4, 5]
    assert found.levels.shape == (1, 6)
    assert found.levels[0] == pytest.approx(x.mean(axis=0))


def test_holes_are_left_out():
    x = process(0.3, 100, 1, seed=9)[:, 0] + 5 * (np.arange(100) >= 60)
    x[[10, 59, 60, 61]] = np.nan
    found = change_points(x)
    assert found.index.tolist() == [62]


@pytest.mark.parametrize(
    "x",
    [
        np.zeros(0),
        [1.0],
        np.ones(50),
        np.full((30, 2), np.nan),
        np.zeros((50, 0)),
        np.arange(10.0),
    ],
)
def test_too_little_has_no_changes(x):
    found = change_points(x)
    assert found.index.tolist() == []
    assert found.gain.tolist() == []
    assert np.isnan(found.penalty)
    assert len(found.levels) == 1


def test_what_it_needs():
    with pytest.raises(AnalysisError, match="false alarms"):
        change_points([1, 2], false_alarms=0)
    with pytest.raises(AnalysisError, match=r"\[T, C\]"):
        change_points(np.zeros((4, 2, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("steps", [30, 60, 200])
@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9, 0.95])
def test_alarms_stay_below_five_percent(steps, phi):
    runs = 300 if steps < 200 else 200
    # two standard errors of the runs above 5%
    bound = 0.05 + 2 * np.sqrt(0.05 * 0.95 / runs)
    assert alarms(process(phi, steps, runs, seed=10)) <= bound
