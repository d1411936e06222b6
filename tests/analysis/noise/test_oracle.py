"""Sampling noise: bounds of the oracle, for balanced and other routers."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.analysis.noise.null_model import NullModel
from moetraffic.analysis.noise.oracle import (
    count_variance,
    oracle_bounds,
)
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")

TOLERANCES = (0.05, 0.1, 0.2, 0.5)


@pytest.mark.parametrize(("experts", "k", "held"), [(8, 1, 1), (8, 2, 1), (8, 3, 2)])
def test_the_variance_of_a_balanced_gate_is_exact(experts, k, held):
    n = 500
    mean = n * k * held / experts
    found = count_variance(mean, n, k=k, experts=experts, held=held)
    counts = NullModel(experts=experts, k=k).draw(n, draws=20_000, seed=1)
    drawn = counts.reshape(20_000, -1, held).sum(axis=-1)
    assert drawn.mean(axis=0) == pytest.approx(mean, rel=0.01)
    assert drawn.var(axis=0).mean() == pytest.approx(found, rel=0.02)
    if held == 1:
        assert found / mean**2 == pytest.approx((experts - k) / (k * n))
    else:
        ranks = experts // held
        cv = (ranks - 1) * (experts - k) / ((experts - 1) * k * n)
        assert found / mean**2 == pytest.approx(cv)


def test_shares_need_not_be_even():
    q = np.array([0.5, 0.3, 0.15, 0.05])
    x = np.random.default_rng(0).multinomial(2000, q, size=20_000)
    found = oracle_bounds(2000 * q, 2000, tolerances=TOLERANCES)
    assert x.var(axis=0) == pytest.approx(found.variance, rel=0.03)
    miss = np.abs(x - 2000 * q) / x
    assert miss.mean(axis=0) == pytest.approx(found.mape, rel=0.02)
    for at, tolerance in enumerate(TOLERANCES):
        hit = (x * (miss <= tolerance)).sum(axis=0) / x.sum(axis=0)
        assert hit == pytest.approx(found.within[at], abs=0.03)


@pytest.mark.parametrize("mean", [0.3, 2.5, 17.0, 120.0])
def test_no_forecast_of_a_small_count_beats_its_floor(mean):
    x = np.random.default_rng(1).binomial(400, mean / 400, size=200_000)
    found = oracle_bounds([mean], [400.0], tolerances=TOLERANCES)
    borders = [n * (1 + t) for n in range(1, int(2 * mean + 9)) for t in TOLERANCES]
    tried = np.concatenate((np.linspace(0.2, 2 * mean + 3, 400), borders))
    above = x[x > 0]
    values, times = np.unique(above, return_counts=True)
    miss = np.abs(tried[:, None] - values) / values
    mape = (miss * times).sum(axis=1) / times.sum()
    assert mape.min() == pytest.approx(found.mape[0], rel=0.02)
    for at, tolerance in enumerate(TOLERANCES):
        hit = ((miss <= tolerance + 1e-9) * values * times).sum(axis=1) / x.sum()
        assert hit.max() == pytest.approx(found.within[at, 0], abs=0.01)


def test_large_counts_have_the_floor_of_a_normal_variable():
    found = oracle_bounds([1024.0], [4096.0], k=2)
    balanced = np.sqrt(2 / np.pi * (8 - 2) / (2 * 4096))
    assert found.mape[0] == pytest.approx(balanced)
    near = oracle_bounds([199.9, 200.1], [4000.0, 4000.0], tolerances=[0.1])
    assert near.mape[0] == pytest.approx(near.mape[1], rel=0.02)
    assert near.within[0, 0] == pytest.approx(near.within[0, 1], abs=0.03)


def test_edges():
    found = oracle_bounds([0.0, 40.0, np.nan], [40.0, 40.0, 40.0], tolerances=[0.1])
    assert np.isnan(found.mape[[0, 2]]).all()
    assert found.mape[1] == 0
    assert found.within[0, 1] == 1
    assert np.isnan(count_variance(0, 0))
    with pytest.raises(AnalysisError, match="experts is not given"):
        count_variance(4, 8, k=2, held=2)
    with pytest.raises(AnalysisError, match="1 to E"):
        count_variance(4, 8, k=9, experts=8)
