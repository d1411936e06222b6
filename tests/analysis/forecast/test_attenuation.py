"""The memory that counting noise hides is found again."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter

from moetraffic.analysis.forecast.attenuation import fit_memory
from moetraffic.analysis.noise.oracle import count_variance

pytestmark = pytest.mark.filterwarnings("error")


def seen(phi, noise, shape, rng):
    steps, cells = shape
    fresh = rng.normal(size=(steps + 300, cells))
    state = lfilter([1], [1, -phi], fresh, axis=0)[300:] * np.sqrt(1 - phi**2)
    return np.sqrt(1 - noise) * state + np.sqrt(noise) * rng.normal(size=shape)


def simulate(phi, noise, shape, runs, seed=0):
    rng = np.random.default_rng(seed)
    return [fit_memory(seen(phi, noise, shape, rng)) for _ in range(runs)]


@pytest.mark.parametrize(
    ("phi", "noise", "shape"),
    [(0.9, 0.5, (1000, 1)), (0.7, 0.3, (1000, 2)), (0.9, 0.8, (500, 8))],
)
def test_a_known_memory_is_found_without_bias_and_covered(phi, noise, shape):
    found = simulate(phi, noise, shape, 25)
    assert np.mean([f.phi for f in found]) == pytest.approx(phi, rel=0.05)
    assert np.mean([f.noise_share for f in found]) == pytest.approx(noise, abs=0.05)
    inside = [f.phi_low <= phi <= f.phi_high for f in found]
    assert np.mean(inside) >= 0.8
    inside = [f.noise_low <= noise <= f.noise_high for f in found]
    assert np.mean(inside) >= 0.8


@pytest.mark.slow
@pytest.mark.parametrize("steps", [200, 1000, 4000])
@pytest.mark.parametrize("noise", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("phi", [-0.5, 0.5, 0.7, 0.9, 0.98])
def test_coverage_over_the_whole_range(phi, noise, steps):
    found = simulate(phi, noise, (steps, 4), 150)
    told = [f for f in found if not f.reason]
    if len(told) < 0.9 * len(found):  # too much noise to see it: it says so
        assert steps * (1 - noise) ** 2 * phi**2 < 100
        return
    inside = [f.phi_low <= phi <= f.phi_high for f in told]
    assert np.mean(inside) >= 0.89
    inside = [f.noise_low - 1e-9 <= noise <= f.noise_high for f in told]
    assert np.mean(inside) >= 0.89


def test_of_real_counts_lag_one_alone_is_far_too_small():
    """Shares of 16 experts with memory .95 through 2000 tokens."""
    rng = np.random.default_rng(1)
    state = lfilter([1], [1, -0.95], rng.normal(size=(1500, 16)), axis=0)
    share = np.exp(0.02 * state)
    share /= share.sum(axis=1, keepdims=True)
    counts = np.stack([rng.multinomial(2000, p) for p in share])
    found = fit_memory(counts)
    x = counts - counts.mean(axis=0)
    lag_one = float((x[1:] * x[:-1]).sum() / (x**2).sum())
    assert lag_one < 0.6
    assert found.phi == pytest.approx(0.95, rel=0.03)
    assert found.acf1 == pytest.approx(lag_one, abs=0.05)
    mean, variance = counts.mean(axis=0), counts.var(axis=0, ddof=1)
    noise = float(count_variance(mean, 2000).sum() / variance.sum())
    assert found.noise_low <= noise <= found.noise_high
    assert found.series == pytest.approx(15, rel=0.1)


def test_the_half_life_of_a_series_without_noise():
    clean = fit_memory(seen(0.9, 0.0, (4000, 8), np.random.default_rng(3)))
    assert clean.half_life == pytest.approx(np.log(0.5) / np.log(0.9), rel=0.15)


def test_white_noise_has_no_memory_to_tell():
    rng = np.random.default_rng(4)
    found = [fit_memory(rng.normal(size=(500, 4))) for _ in range(12)]
    assert np.mean([bool(f.reason) for f in found]) >= 0.75
    assert all("white noise" in f.reason for f in found if f.reason)


def test_the_unit_and_constant_cells_do_not_matter():
    x = seen(0.8, 0.2, (300, 3), np.random.default_rng(5))
    plain = fit_memory(x)
    other = np.concatenate((x * [1, 100, 1e-6] + 7, np.full((300, 1), 3.0)), axis=1)
    assert fit_memory(other).phi == pytest.approx(plain.phi, rel=1e-3)


def test_gaps_and_edges():
    x = seen(0.9, 0.2, (400, 2), np.random.default_rng(6))
    cut = x.copy()
    cut[100] = np.nan
    assert fit_memory(cut).phi == pytest.approx(fit_memory(x[101:]).phi)
    assert fit_memory(cut).steps == 299
    for short in (np.zeros((0, 2)), np.ones(5), np.full(60, np.nan), np.ones((60, 3))):
        assert "too few" in fit_memory(short).reason
