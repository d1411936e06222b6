"""Decay: exact half-lives, the interval's coverage, and noise that does not decay."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter

from moetraffic.analysis.convergence.decay import decay
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")


def process(phi, steps, runs, seed):
    noise = np.random.default_rng(seed).normal(size=(steps + 200, runs))
    return lfilter([1], [1, -phi], noise, axis=0)[200:] * np.sqrt(1 - phi**2)


def test_an_exact_approach():
    t = np.arange(0, 300, 3)
    wave = np.exp(-t / 40)[:, None]
    noise = 1e-6 * np.random.default_rng(0).normal(size=(100, 3))
    found = decay([1, 2, 5] + wave * [3, -1, 0] + noise, at=t)
    assert found.half_life == pytest.approx(40 * np.log(2), rel=1e-3)
    assert found.low < found.half_life < found.high
    assert found.end == pytest.approx([1, 2, 5], abs=1e-3)
    assert found.start == pytest.approx([4, 1, 5], abs=1e-3)
    assert found.explained == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(("phi", "series"), [(0.0, 1), (0.5, 1), (0.0, 8), (0.5, 8)])
def test_the_interval_covers_the_half_life(phi, series):
    t = np.arange(120)
    wave = 5 * np.exp(-t / 15)[:, None] * np.where(np.arange(series) % 2, -1, 1)
    runs = 50
    noise = process(phi, 120, runs * series, seed=1).reshape(120, runs, series)
    found = [decay(wave + noise[:, run]) for run in range(runs)]
    exact = 15 * np.log(2)
    covered = [one.low <= exact <= one.high for one in found]
    assert np.mean(covered) >= 0.85
    lives = [one.half_life for one in found]
    assert np.nanmedian(lives) == pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize("phi", [0.0, 0.7])
@pytest.mark.parametrize("series", [1, 8])
def test_noise_has_no_half_life(phi, series):
    noise = process(phi, 100, 40 * series, seed=2).reshape(100, 40, series)
    found = [decay(noise[:, run]).half_life for run in range(40)]
    assert np.isfinite(found).mean() <= 0.13


def test_a_run_too_short_for_its_end_says_so():
    t = np.arange(60)
    noise = 0.01 * np.random.default_rng(3).normal(size=60)
    found = decay(t / 60 + noise)
    assert found.high == float("inf")


def test_unit_and_shift_of_the_steps():
    x = 3 * np.exp(-np.arange(80) / 9) + process(0, 80, 1, seed=4)[:, 0] / 10
    one, two = decay(x), decay(x, at=500 + 7 * np.arange(80))
    assert two.half_life == pytest.approx(7 * one.half_life, rel=1e-3)
    assert two.start == pytest.approx(one.start, rel=1e-2)


def test_long_series_and_holes():
    t = np.arange(30_000)
    x = np.exp(-t / 2000) + 0.1 * np.random.default_rng(5).normal(size=t.size)
    x[::17] = np.nan
    found = decay(x)
    assert found.half_life == pytest.approx(2000 * np.log(2), rel=0.05)


@pytest.mark.parametrize(
    "x", [np.zeros(0), [1.0, 2], np.ones((40, 2)), np.full(9, np.nan), np.zeros((9, 0))]
)
def test_nothing_decays(x):
    found = decay(x)
    assert np.isnan([found.half_life, found.low, found.high, found.p]).all()
    assert np.shape(found.end) == np.shape(x)[1:]


def test_steps_increase():
    with pytest.raises(AnalysisError, match="increase"):
        decay([1, 2, 3], at=[0, 2, 1])
