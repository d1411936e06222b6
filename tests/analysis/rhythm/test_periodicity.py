"""Periodicity: autocorrelation and harmonics of exact waves and of noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from moetraffic.analysis.rhythm.periodicity import (
    autocorrelation,
    harmonic_shares,
    spectral_share,
)
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")


def square(duty: float, cycles: int = 20, length: int = 4000):
    start = np.arange(cycles) * length
    return start, start + int(duty * length)


@pytest.mark.parametrize(("duty", "exact"), [(0.5, 0.810569), (0.25, 0.540380)])
def test_the_fundamental_of_a_square_wave(duty, exact):
    start, end = square(duty)
    for cycles in (None, 1, 4):
        share = harmonic_shares(start, end, period_ns=4000, cycles=cycles)[0]
        assert share == pytest.approx(exact, abs=1e-6)
    wave = np.tile(np.arange(4000) < duty * 4000, 3)
    assert spectral_share(wave, period=4000) == pytest.approx(exact, abs=1e-6)


@given(st.integers(1, 39), st.integers(0, 39))
def test_neither_phase_nor_window_changes_the_share_of_a_wave(on, shift):
    start = np.arange(24) * 40
    span = (40 + shift, 40 + shift + 40 * 20)
    duty = on / 40
    exact = 2 * np.sin(np.pi * duty) ** 2 / (np.pi**2 * duty * (1 - duty))
    for cycles in (None, 5):
        assert harmonic_shares(
            start, start + on, period_ns=40, cycles=cycles, span=span
        )[0] == pytest.approx(exact, abs=1e-9)


def test_a_wandering_wave_keeps_its_phase_for_some_cycles_only():
    rng = np.random.default_rng(0)
    start = np.cumsum(rng.normal(1000, 40, 2000)).astype(np.int64)
    long = harmonic_shares(start, start + 500, period_ns=1000)[0]
    short = harmonic_shares(start, start + 500, period_ns=1000, cycles=4)[0]
    assert long < 0.3 < 0.75 < short < 0.82


def test_the_spectral_share_of_many_series_at_once():
    t = np.arange(120)
    noise = np.random.default_rng(1).normal(size=120)
    waves = np.stack((np.sin(2 * np.pi * t / 12), np.ones(120), noise), axis=1)
    share = spectral_share(waves, period=12)
    assert share[0] == pytest.approx(1, abs=1e-12)
    assert np.isnan(share[1])
    assert share[2] < 0.2
    assert np.isnan(spectral_share(waves[:10], period=12)).all()


@given(
    hnp.arrays(
        np.float64,
        st.tuples(st.integers(4, 30), st.integers(1, 3)),
        elements=st.integers(0, 50).map(float),
    )
)
def test_autocorrelation_is_pearsons_coefficient_of_the_parts(series):
    most = len(series) - 2
    acf = autocorrelation(series, most)
    for lag in range(most + 1):
        for column in range(series.shape[1]):
            early, late = series[: len(series) - lag, column], series[lag:, column]
            if early.std() and late.std():
                expected = np.corrcoef(early, late)[0, 1]
                assert acf[lag, column] == pytest.approx(expected, abs=1e-6)
            else:
                assert np.isnan(acf[lag, column])


def test_the_autocorrelation_of_an_ar1_decays_by_phi():
    rng = np.random.default_rng(2)
    noise = rng.normal(size=100_000)
    x = np.empty_like(noise)
    x[0] = noise[0]
    for t in range(1, len(x)):
        x[t] = 0.8 * x[t - 1] + noise[t]
    assert autocorrelation(x, 3) == pytest.approx(0.8 ** np.arange(4), rel=0.05)


def test_too_few_cycles_tell_nothing():
    nan = float("nan")
    assert np.isnan(harmonic_shares([], [], period_ns=10)[0])
    assert np.isnan(harmonic_shares([0, 10], [5, 15], period_ns=nan)[0])
    assert np.isnan(harmonic_shares([0, 10], [5, 15], period_ns=10, cycles=2)[0])
    assert np.isnan(harmonic_shares([0], [90], period_ns=10, span=(0, 80))[0])


def test_bad_lags_are_refused():
    with pytest.raises(AnalysisError, match="T - 2"):
        autocorrelation([1, 2, 3], 2)


@pytest.mark.parametrize("duty", [0.5, 0.25, 0.1])
def test_the_harmonics_of_a_square_wave(duty):
    start, end = square(duty)
    shares = harmonic_shares(start, end, period_ns=4000, harmonics=9)
    n = np.arange(1, 10)
    exact = 2 * np.sin(np.pi * n * duty) ** 2 / (np.pi**2 * n**2 * duty * (1 - duty))
    assert shares == pytest.approx(exact, abs=1e-9)
    assert shares.sum() <= 1


def test_unknown_steps_are_left_out_of_the_autocorrelation():
    rng = np.random.default_rng(7)
    series = np.sin(2 * np.pi * np.arange(300) / 20) + rng.normal(0, 0.3, 300)
    series[rng.random(300) < 0.2] = np.nan
    series[80:130] = np.nan
    acf = autocorrelation(series, 60)
    for lag in (1, 7, 20, 60):
        early, late = series[: 300 - lag], series[lag:]
        both = np.isfinite(early) & np.isfinite(late)
        expected = np.corrcoef(early[both], late[both])[0, 1]
        assert acf[lag] == pytest.approx(expected, abs=1e-9)
    # what is known of nothing says nothing
    assert np.isnan(autocorrelation([1, np.nan, np.nan, np.nan, 2], 2)[1:]).all()
