"""Bounds: innovations of known processes, intervals, and premises that fail."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter

from moetraffic.analysis.forecast.bounds import innovation_variance, kpss, limits
from moetraffic.analysis.forecast.forecasting import forecast
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")


def process(ahead, back, steps, runs, seed=0):
    noise = np.random.default_rng(seed).normal(size=(steps + 400, runs))
    return lfilter(ahead, back, noise, axis=0)[400:]


@pytest.mark.parametrize("steps", [64, 500])
@pytest.mark.parametrize(
    ("ahead", "back", "exact"),
    [
        ([1], [1], 1.0),
        ([2], [1, -0.9], 4.0),
        ([1], [1, 0.6], 1.0),
        ([1, 0.5], [1], 1.0),
        ([1], [1, -0.5, -0.3], 1.0),
    ],
)
def test_innovations_of_known_processes(ahead, back, exact, steps):
    found = innovation_variance(process(ahead, back, steps, 600))
    assert found.variance.mean() == pytest.approx(exact, rel=0.06)
    off = np.log(found.variance / exact)
    assert (np.abs(off) < 1.96 * found.error).mean() > 0.91


def test_counting_noise_lifts_the_bound():
    state = process([1], [1, -0.9], 2000, 100)
    noisy = state + np.sqrt(1 / 0.19) * np.random.default_rng(1).normal(
        size=state.shape
    )
    # innovations of AR(1) plus white noise, by the Riccati equation of its filter
    p = 1.0
    for _ in range(200):
        p = 0.81 * p * 1 / (p + 1) + 0.19
    exact = (p + 1) / 0.19
    assert innovation_variance(noisy).variance.mean() == pytest.approx(exact, rel=0.03)


@pytest.mark.parametrize("length", [7, 7.3, 12.1])
def test_a_period_is_no_innovation(length):
    """Its line does not leak, on or between the frequencies of the run."""
    rng = np.random.default_rng(2)
    phase = 2 * np.pi * np.arange(500)[:, None] / length
    wave = 10 * np.sin(phase + rng.uniform(0, 2 * np.pi, 100))
    found = innovation_variance(wave + rng.normal(size=wave.shape))
    assert found.variance.mean() == pytest.approx(1, rel=0.05)
    assert innovation_variance(wave).variance.max() < 1e-3  # of a variance of 50


def test_scale_and_shift_do_not_matter_and_gaps_leave_the_longest_stretch():
    x = process([1], [1, -0.7], 300, 3, seed=2)
    found = innovation_variance(x)
    assert innovation_variance(1e6 - 3 * x).variance == pytest.approx(
        9 * found.variance, rel=1e-6
    )
    x[40, 0] = np.nan
    x[[10, 290], 1] = np.nan
    x[::5, 2] = np.nan
    holed = innovation_variance(x)
    assert holed.steps.tolist() == [259, 279, 4]
    alone = innovation_variance(x[41:, :1])
    assert holed.variance[0] == pytest.approx(alone.variance[0])
    assert np.isnan(holed.variance[2])


def test_kpss_is_that_of_statsmodels():
    from statsmodels.tsa.stattools import kpss as expected

    x = process([1], [1, -0.5], 200, 3, seed=3)
    for column, found in zip(x.T, kpss(x), strict=True):
        with pytest.warns():
            assert found == pytest.approx(expected(column, nlags=14)[0])
    assert kpss(np.ones((50, 1))).tolist() == [0]


@pytest.mark.parametrize("weights", [1.0, 512.0])
def test_the_bound_is_below_what_forecasters_reach_and_close(weights):
    x = 100 + process([1], [1, -0.8], 1200, 12, seed=4)
    bound = limits(x, weights=weights)
    one = forecast(x, horizons=[1], weights=weights).horizons[0]
    assert bound.low < one.score().nmse < 1.1 * bound.nmse
    assert bound.nmse == pytest.approx(0.36, rel=0.15)
    assert bound.mse == pytest.approx(bound.nmse * one.mean_mse)


def test_no_bound_is_above_what_was_reached():
    """A forecaster at the bound is below the estimate in half of all runs."""
    above = 0
    for seed in range(8):
        x = 100 + process([1], [1, -0.8], 300, 8, seed=[7, seed])
        reached = forecast(x, horizons=[1]).lowest_nmse(1)
        free, bound = limits(x), limits(x, reached=reached)
        above += free.nmse > reached
        assert free.low == bound.low <= bound.nmse <= bound.high <= reached
        assert bound.mse / free.mse == pytest.approx(bound.nmse / free.nmse)
    assert above > 0
    contradicted = limits(x, reached=0.9 * bound.low)
    assert np.isnan(contradicted.nmse)
    assert "below the interval" in contradicted.reason


def test_an_exact_period_has_a_bound_as_low_as_its_forecasts():
    rng = np.random.default_rng(5)
    x = np.tile(rng.gamma(2, 50, size=(7, 12)), (120, 1)) + rng.normal(size=(840, 12))
    bound = limits(x)
    best = forecast(x, horizons=[1]).horizons[0].score()
    assert bound.low < best.nmse < 1.5 * bound.nmse


def test_where_the_premises_fail_there_is_no_bound():
    rng = np.random.default_rng(6)
    walk = rng.normal(size=(800, 8)).cumsum(axis=0)
    step = rng.normal(size=(800, 8))
    step[600:] += rng.normal(0, 2, 8)
    for x in (walk, step):
        found = limits(x)
        assert np.isnan([found.nmse, found.low, found.high]).all()
        assert "not stationary" in found.reason
    step = rng.normal(size=(800, 8))
    step[:300] += 5  # before the half that is bounded
    assert limits(step).nmse > 0


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (np.zeros((80, 4)), "equals the mean of the past"),
        (np.zeros((1, 1)), "needs 64 iterations, has 1"),
        (np.zeros((0, 3)), "needs 64 iterations, has 0"),
        (np.full((80, 2), np.nan), "without a gap"),
        (np.zeros((80, 0)), "there are no cells"),
    ],
)
def test_what_has_no_bound_has_a_reason(x, reason):
    found = limits(x)
    assert np.isnan(found.nmse)
    assert reason in found.reason
    with pytest.raises(AnalysisError, match=r"\[T, C\]"):
        limits(np.zeros(5))
