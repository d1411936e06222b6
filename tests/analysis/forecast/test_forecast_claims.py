"""Claims of forecasts: known processes, and what is not tested."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.analysis.claim import Outcome, claim_of
from moetraffic.analysis.forecast.forecast_claims import forecast_claims, matrix_claim
from moetraffic.analysis.forecast.forecasting import forecast
from tests.analysis.known_processes.loads import PROCESSES

PREDICTABLE = {
    "balanced": False,
    "skewed": False,
    "walk": True,
    "autoregression": True,
    "period": True,
    "drifting hot set": True,
}


def claims(series, horizons=(1,)):
    return forecast_claims(forecast(series, horizons=horizons), about="load")


@pytest.mark.parametrize("name", PREDICTABLE)
@pytest.mark.parametrize("seed", range(3))
def test_known_processes(name, seed):
    run = PROCESSES[name](np.random.default_rng([seed, 77]), 600)
    found = claim_of(claims(run.counts), "predictable")
    assert found.stated == PREDICTABLE[name]
    assert found.outcome is not Outcome.NOT_ENOUGH_DATA
    if found.stated:
        assert found.low < found.figure < found.high
        assert "below the mean of the past" in found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("name", ["balanced", "skewed"])
def test_noise_is_not_predictable(name):
    stated = [
        claim_of(claims(run.counts), "predictable").stated
        for seed in range(150)
        for run in [PROCESSES[name](np.random.default_rng([seed, 78]), 400)]
    ]
    assert sum(stated) <= 6  # 1.5 expected; more with a probability below .1%


def test_each_horizon_has_its_claims_and_a_short_run_its_needs():
    rng = np.random.default_rng(0)
    found = claims(rng.poisson(50, size=(60, 4)), horizons=[1, 10])
    assert [(c.name, c.about) for c in found[::2]] == [
        ("predictable", "load, 1 iteration ahead"),
        ("predictable", "load, 10 iterations ahead"),
    ]
    assert found[0].outcome is Outcome.NO_EVIDENCE
    assert found[1].name == "better than persistence"
    for late in found[2:]:
        assert late.outcome is Outcome.NOT_ENOUGH_DATA
        assert (late.needs, late.used) == (196, 60)
    longer = claims(rng.poisson(50, size=(196, 4)), horizons=[10])
    assert longer[0].outcome is Outcome.NO_EVIDENCE


def test_of_noise_half_of_the_error_of_persistence_is_no_improvement():
    """The mean of the past has it as well."""
    rng = np.random.default_rng(1)
    _, better = claims(rng.poisson(50, size=(1000, 4)))
    assert not better.stated
    assert better.low < 0.5 < better.high
    reason = "the p-value is that for the mean of the past"
    assert better.flags == (reason,)


def test_an_improvement_on_both_baselines_is_stated():
    """A slow motion under sampling noise: a mean of recent values is better."""
    rng = np.random.default_rng(1)
    levels = np.exp(rng.normal(0, 0.02, (1000, 8)).cumsum(axis=0))
    predictable, better = claims(rng.poisson(50 * levels))
    assert predictable.stated
    assert better.stated
    assert better.p >= predictable.p


def test_a_forecast_that_is_worse_than_persistence_says_so():
    """The validation part moves about a level, and the test part walks away."""
    rng = np.random.default_rng(2)
    still = 1e4 + rng.normal(0, 100, (750, 4))
    walk = 1e4 + 400 * rng.normal(size=(250, 4)).cumsum(axis=0)
    _, better = claims(np.concatenate([still, walk]))
    assert better.figure < 0
    assert better.flags[0].startswith("worse than persistence: MSE ")
    assert " above persistence (95% CI " in better.flags[0]


def test_a_forecaster_that_is_its_baseline_has_no_interval():
    for seed in range(20):
        counts = np.random.default_rng(seed).multinomial(4000, np.full(8, 1 / 8), 300)
        same, _ = claims(counts)
        if same.figure == 0:
            assert np.isnan(same.low)
            assert "the mean of the past itself" in same.flags[0]
            return
    pytest.fail("the mean of the past was never chosen")


def test_a_matrix_is_harder_to_predict_than_its_sums():
    """Columns move together; the noise of a cell is larger than that of a column."""
    rng = np.random.default_rng(1)
    level = 0.2 * np.sin(np.arange(300) / 9)[:, None, None] * np.array([1, -1, 1, -1])
    counts = rng.poisson(60 * np.exp(level) * np.ones((8, 1)))  # [T, source, expert]
    of_load = claims(counts.sum(axis=1))[0]
    scores = forecast(counts.reshape(300, -1), horizons=[2, 1])
    of_matrix = matrix_claim(scores, about="demand matrix")
    assert of_load.stated
    assert of_matrix.stated
    assert of_matrix.figure < of_load.low
    assert of_matrix.about == "demand matrix, 1 iteration ahead"


def test_what_has_no_error_is_not_claimed():
    found = claims(np.full((100, 3), 8.0))
    assert [claim.outcome for claim in found] == [Outcome.NO_EVIDENCE] * 2
