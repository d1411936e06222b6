"""Lomb-Scargle: scipy's peak, known sines, noise."""

from __future__ import annotations

from inspect import signature

import numpy as np
import pytest
from scipy.signal import lombscargle

from moetraffic.analysis.rhythm.lomb_scargle import strongest_of_series

pytestmark = pytest.mark.filterwarnings("error")


def test_it_is_looked_between_limits():
    t = np.arange(300)
    x = np.sin(2 * np.pi * t / 50) + 0.5 * np.sin(2 * np.pi * t / 10)
    assert strongest_of_series(x).period == pytest.approx(50, rel=0.01)
    assert strongest_of_series(x, longest=20).period == pytest.approx(10, rel=0.01)
    assert strongest_of_series(x, shortest=20).period == pytest.approx(50, rel=0.01)


def test_noise_raises_false_alarms_as_seldom_as_it_says():
    rng = np.random.default_rng(3)
    told = np.array([strongest_alarm(rng) for _ in range(150)])
    assert (told <= 0.2).mean() <= 0.28
    assert (told <= 0.02).mean() <= 0.06


def strongest_alarm(rng: np.random.Generator) -> float:
    x = rng.normal(size=90)
    x[rng.random(90) < 0.3] = np.nan
    return strongest_of_series(x).false_alarm


@pytest.mark.skipif(
    "floating_mean" not in signature(lombscargle).parameters,
    reason="scipy before 1.15 has no floating mean",
)
def test_the_peak_of_a_series_with_gaps_is_scipys():
    rng = np.random.default_rng(2)
    x = np.sin(2 * np.pi * np.arange(400) / 17.3) + rng.normal(0, 1, 400)
    x[100:180] = np.nan
    x[rng.random(400) < 0.3] = np.nan
    at = np.flatnonzero(np.isfinite(x))
    f = np.linspace(1 / 200, 0.5, 20_000)
    power = lombscargle(
        at.astype(float), x[at], 2 * np.pi * f, floating_mean=True, normalize=True
    )
    found = strongest_of_series(x)
    assert found.period == pytest.approx(1 / f[power.argmax()], rel=2e-3)
    assert found.power == pytest.approx(power.max(), rel=0.01)


@pytest.mark.parametrize("values", [[], [1, 2, 3], np.ones(20), np.full(20, np.nan)])
def test_what_does_not_vary_has_no_period(values):
    found = strongest_of_series(values)
    assert np.isnan([found.period, found.power, found.false_alarm]).all()
