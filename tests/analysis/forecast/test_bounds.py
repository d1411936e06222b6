"""Limits: flatness of known processes, its interval, and symbols made of traffic."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter

from moetraffic.analysis.forecast.bounds import (
    hot_symbols,
    level_symbols,
    limits,
    spectral_flatness,
)
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")


def process(ahead, back, steps, runs, seed=0):
    noise = np.random.default_rng(seed).normal(size=(steps + 400, runs))
    return lfilter(ahead, back, noise, axis=0)[400:]


@pytest.mark.parametrize(
    ("ahead", "back", "exact"),
    [
        ([1], [1], 1.0),
        ([1], [1, -0.9], 0.19),
        ([1], [1, -0.5], 0.75),
        ([1], [1, 0.6], 0.64),
        ([1, 0.5], [1], 0.8),  # MA(1): 1 / (1 + .25)
        ([1], [1, -0.5, -0.3], 0.91 * (1 - (0.5 / 0.7) ** 2)),  # AR(2)
    ],
)
def test_flatness_of_known_processes(ahead, back, exact):
    found = spectral_flatness(process(ahead, back, 1000, 300))
    assert found.nmse.mean() == pytest.approx(exact, rel=0.05)
    inside = (found.low <= exact) & (exact <= found.high)
    assert inside.mean() > 0.9
    assert np.log(found.nmse).std() < 1.2 * found.error.mean()


@pytest.mark.parametrize(("phi", "bias"), [(0.0, 0.99), (0.5, 1.02), (0.9, 1.54)])
def test_bias_of_short_runs_is_as_documented(phi, bias):
    found = spectral_flatness(process([1], [1, -phi], 60, 1500))
    assert found.nmse.mean() / (1 - phi**2) == pytest.approx(bias, rel=0.05)


def test_counting_noise_lifts_the_limit():
    state = process([1], [1, -0.9], 2000, 100)
    state /= np.sqrt(1 / 0.19)
    noisy = state + np.random.default_rng(1).normal(size=state.shape)
    # innovations of AR(1) plus white noise, by the Riccati equation of its filter
    p = 1.0
    for _ in range(200):
        p = 0.81 * p * 1 / (p + 1) + 0.19
    assert spectral_flatness(noisy).nmse.mean() == pytest.approx((p + 1) / 2, rel=0.03)


def test_scale_and_shift_do_not_matter_and_series_do_not_touch():
    x = process([1], [1, -0.7], 200, 6, seed=2).reshape(200, 2, 3)
    found = spectral_flatness(x)
    assert found.nmse.shape == (2, 3)
    again = spectral_flatness(1e6 - 3 * x[:, 1, 2])
    assert again.nmse == pytest.approx(found.nmse[1, 2], rel=1e-6)
    assert again.variance == pytest.approx(9 * found.variance[1, 2], rel=1e-6)


def test_what_repeats_is_told_exactly():
    wave = np.sin(2 * np.pi * np.arange(400) / 10)
    assert spectral_flatness(wave).nmse < 0.01


def test_gaps_leave_the_longest_stretch():
    x = process([1], [1, -0.5], 300, 3, seed=3)
    holed = x.copy()
    holed[40, 0] = np.nan
    holed[[10, 290], 1] = np.nan
    holed[::5, 2] = np.nan
    found = spectral_flatness(holed)
    assert found.steps.tolist() == [259, 279, 4]
    assert found.nmse[0] == pytest.approx(spectral_flatness(x[41:, 0]).nmse)
    assert np.isnan(found.nmse[2])


@pytest.mark.parametrize(
    "x",
    [
        np.zeros((60, 4)),
        np.zeros((1, 1)),
        np.zeros((0, 3)),
        np.full((30, 2), np.nan),
        np.zeros((30, 0)),
        np.ones((100, 1)),
    ],
)
def test_nothing_that_varies_has_no_limit(x):
    found = limits(x)
    assert np.isnan(found.pooled_nmse)
    assert np.isnan(found.flatness.nmse).all()
    for rate in found.rates.values():
        assert rate.symbols <= 1


def test_the_pool_weighs_with_variance():
    x = process([1], [1, -0.9], 4000, 1, seed=4)[:, 0] * 10
    noise = np.random.default_rng(5).normal(size=4000)
    found = limits(np.stack((x, noise), axis=1))
    share = found.flatness.variance / found.flatness.variance.sum()
    assert found.pooled_nmse == pytest.approx(float(share @ found.flatness.nmse))
    assert found.pooled_nmse == pytest.approx(0.19, rel=0.15)
    assert 0 < found.pooled_error < 0.2


def test_symbols_are_made_as_stated():
    loads = [[1, 2, 0], [0, 0, 0], [5, 5, 1], [np.nan, 1, 2], [0, 1, 3]]
    assert hot_symbols(loads).tolist() == [1, 0, 2]
    assert hot_symbols(loads, top=2).tolist() == [3, 1, 7]
    assert level_symbols(np.arange(8), levels=4).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert level_symbols([5, 5, 5, 5]).tolist() == [0, 0, 0, 0]
    with pytest.raises(AnalysisError, match=r"\[T, C\]"):
        limits([1, 2])


def test_a_hot_expert_that_wanders_is_told_as_its_chain_allows():
    rng = np.random.default_rng(6)
    hot = np.cumsum(rng.random(20_000) < 0.1) % 2  # stays with 90%
    loads = rng.random((20_000, 2)) + np.eye(2)[hot] * 2
    rate = limits(loads).rates["hottest"]
    assert rate.markov == pytest.approx(0.468996, rel=0.05)
    assert rate.markov_guess == pytest.approx(0.9, rel=0.02)
    assert rate.frequent == pytest.approx(0.5, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1000, 3000])
def test_flatness_and_its_interval_over_many_runs(phi, steps):
    found = spectral_flatness(process([1], [1, -phi], steps, 2000, seed=7))
    exact = 1 - phi**2
    assert found.nmse.mean() == pytest.approx(exact, rel=0.02)
    assert ((found.low <= exact) & (exact <= found.high)).mean() > 0.91
