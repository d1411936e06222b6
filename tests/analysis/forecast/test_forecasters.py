"""Forecasters: nothing looks ahead, and each does what its formula says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from moetraffic.analysis.forecast.forecasters import (
    FORECASTERS,
    best_so_far,
    ema,
    persistence,
    seasonal,
    window_mean,
)
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")

series = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 24), st.integers(1, 3)),
    elements=st.one_of(st.integers(0, 999).map(float), st.just(float("nan"))),
)


def every(x: np.ndarray, horizon: int) -> dict[str, np.ndarray]:
    made = {name: make(x, horizon=horizon) for name, make in FORECASTERS.items()}
    made["seasonal"] = seasonal(x, period=3, horizon=horizon)
    made["best"] = best_so_far(x, made, horizon=horizon)
    return made


@given(series, st.integers(1, 4), st.data())
def test_nothing_looks_ahead(x, horizon, data):
    cut = data.draw(st.integers(0, len(x)))
    other = x.copy()
    other[cut:] = 12345.0
    before, after = every(x, horizon), every(other, horizon)
    for name in before:
        assert before[name].shape == x.shape
        early = slice(None, cut + horizon)
        assert after[name][early] == pytest.approx(
            before[name][early], rel=1e-12, nan_ok=True
        ), name
        assert np.isnan(before[name][:horizon]).all()


@given(series, st.integers(1, 30), st.integers(1, 3))
def test_a_window_mean_is_the_mean_of_what_is_known_in_it(x, window, horizon):
    found = window_mean(x, window=window, horizon=horizon)
    for t in range(horizon, len(x)):
        for column in range(x.shape[1]):
            last = t - horizon + 1
            seen = x[max(0, last - window) : last, column]
            seen = seen[np.isfinite(seen)]
            expected = seen.mean() if seen.size else np.nan
            assert found[t, column] == pytest.approx(expected, nan_ok=True)


def test_long_windows_agree_with_short_ones_in_form():
    x = np.random.default_rng(0).normal(1e6, 1, size=(300, 2))
    found = window_mean(x, window=100)
    assert found[200] == pytest.approx(x[100:200].mean(axis=0), rel=1e-12)
    assert found[50] == pytest.approx(x[:50].mean(axis=0), rel=1e-12)


@given(series, st.floats(0.05, 1))
def test_an_ema_is_its_recursion(x, alpha):
    found = ema(x, alpha=alpha)
    for column in range(x.shape[1]):
        level = np.nan
        for t in range(len(x) - 1):
            value = x[t, column]
            if np.isfinite(value):
                level = value if np.isnan(level) else level + alpha * (value - level)
            assert found[t + 1, column] == pytest.approx(
                level, rel=1e-9, abs=1e-9, nan_ok=True
            )


def test_limits_of_window_and_alpha_are_persistence():
    x = np.random.default_rng(1).normal(size=(50, 2))
    assert np.array_equal(window_mean(x, window=1), persistence(x), equal_nan=True)
    assert ema(x, alpha=1)[1:] == pytest.approx(persistence(x)[1:])


def test_a_horizon_is_so_many_steps():
    x = np.arange(6.0)
    assert persistence(x, horizon=3).tolist()[3:] == [0, 1, 2]
    assert np.isnan(persistence(x, horizon=9)).all()


@given(series, st.integers(1, 9), st.integers(1, 20))
def test_a_season_repeats_the_last_known_same_phase(x, period, horizon):
    found = seasonal(x, period=period, horizon=horizon)
    for t in range(len(x)):
        known = [s for s in range(t - horizon + 1) if (t - s) % period == 0]
        expected = x[known[-1]] if known else np.full(x.shape[1], np.nan)
        assert np.array_equal(found[t], expected, equal_nan=True)


def test_the_best_so_far_follows_the_better_one():
    rng = np.random.default_rng(2)
    walk = np.cumsum(rng.normal(size=400))
    noise = rng.normal(size=400)
    x = np.stack((walk, noise), axis=1)
    made = {"last": persistence(x), "mean": window_mean(x, window=50)}
    best = best_so_far(x, made)
    assert (best[100:, 0] == made["last"][100:, 0]).all()
    assert (best[100:, 1] == made["mean"][100:, 1]).all()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: window_mean([1, 2], window=0),
        lambda: ema([1, 2], alpha=0),
        lambda: ema([1, 2], alpha=1.1),
        lambda: persistence([1, 2], horizon=0),
        lambda: seasonal([1, 2], period=0),
        lambda: seasonal([1, 2], period=2, horizon=0),
    ],
)
def test_settings_that_forecast_nothing_are_refused(wrong):
    with pytest.raises(AnalysisError):
        wrong()


@pytest.mark.parametrize("name", sorted(FORECASTERS))
def test_an_empty_series_has_no_forecast(name):
    assert FORECASTERS[name](np.zeros((0, 3)), horizon=1).shape == (0, 3)
