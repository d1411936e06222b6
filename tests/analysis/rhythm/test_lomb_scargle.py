"""Lomb-Scargle: least squares by another way, known sines, noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.analysis.rhythm.lomb_scargle import (
    lomb_scargle,
    strongest,
    strongest_of_series,
)
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")


@given(st.integers(0, 999), st.integers(6, 40), st.floats(0.02, 0.4))
def test_power_is_what_a_sine_and_a_constant_explain(seed, number, frequency):
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(0, 30, number))
    y = rng.normal(3, 1, number)
    turn = 2 * np.pi * frequency * t
    design = np.stack((np.ones(number), np.cos(turn), np.sin(turn)), axis=1)
    left = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    explained = 1 - (left**2).sum() / ((y - y.mean()) ** 2).sum()
    assert lomb_scargle(t, y, [frequency])[0] == pytest.approx(explained, abs=1e-6)


def test_it_is_scipys_where_scipy_has_a_floating_mean():
    from inspect import signature

    from scipy.signal import lombscargle

    if "floating_mean" not in signature(lombscargle).parameters:
        pytest.skip("scipy before 1.15 has no floating mean")
    rng = np.random.default_rng(0)
    t = np.sort(rng.uniform(0, 100, 150))
    y = 2 + np.sin(t) + rng.normal(0, 0.5, 150)
    f = np.linspace(0.01, 1, 300)
    theirs = lombscargle(t, y, 2 * np.pi * f, floating_mean=True, normalize=True)
    assert lomb_scargle(t, y, f) == pytest.approx(theirs, abs=1e-9)


def test_a_sine_sampled_unevenly_is_found():
    rng = np.random.default_rng(1)
    t = np.sort(rng.uniform(0, 500, 200))
    found = strongest(
        t, np.sin(2 * np.pi * t / 7.3) + rng.normal(0, 0.5, 200), shortest=2
    )
    assert found.period == pytest.approx(7.3, rel=2e-3)
    assert found.power == pytest.approx(0.5 / 0.75, rel=0.15)
    assert found.false_alarm < 1e-12


def test_a_series_with_gaps_is_the_same_as_its_known_steps():
    rng = np.random.default_rng(2)
    x = np.sin(2 * np.pi * np.arange(400) / 17.3) + rng.normal(0, 1, 400)
    x[100:180] = np.nan
    x[rng.random(400) < 0.3] = np.nan
    by_steps = strongest(np.arange(400), x, shortest=2)
    by_series = strongest_of_series(x)
    assert by_series.period == pytest.approx(by_steps.period, rel=1e-3)
    assert by_series.power == pytest.approx(by_steps.power, rel=0.01)
    assert by_series.period == pytest.approx(17.3, rel=0.01)


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
    t = np.sort(rng.uniform(0, 60, 60))
    return strongest(t, rng.normal(size=60), shortest=2).false_alarm


@pytest.mark.parametrize("values", [[], [1, 2, 3], np.ones(20), np.full(20, np.nan)])
def test_what_does_not_vary_has_no_period(values):
    at = np.arange(len(values))
    for found in (strongest(at, values, shortest=2), strongest_of_series(values)):
        assert np.isnan([found.period, found.power, found.false_alarm]).all()
    assert np.isnan(lomb_scargle(at, values, [0.1])).all()


def test_values_without_a_time_are_refused():
    with pytest.raises(AnalysisError, match="one time"):
        lomb_scargle([1, 2], [1], [0.1])
