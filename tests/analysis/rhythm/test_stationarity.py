"""Stationarity: exact values, and size and power by simulation."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from moetraffic.analysis.rhythm.stationarity import FEWEST, stationarity

pytestmark = pytest.mark.filterwarnings("error")


def autoregressive(seed: int, phi: float, steps: int, runs: int) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=(steps + 100, runs))
    out = np.zeros_like(noise)
    for t in range(1, len(noise)):
        out[t] = phi * out[t - 1] + noise[t]
    return out[100:].T


def rejections(series: np.ndarray) -> tuple[float, float]:
    found = [stationarity(10 + s) for s in series]
    return (
        float(np.mean([f.p <= 0.05 for f in found])),
        float(np.mean([f.change_p <= 0.05 for f in found])),
    )


def test_a_straight_line_has_its_exact_statistic():
    # no lags: by hand, of residuals -1.5 -0.5 0.5 1.5 spread over 16 steps
    x = np.repeat([0.0, 1.0, 2.0, 3.0], 4)
    found = stationarity(x)
    e = x - 1.5
    gamma = [float(e[j:] @ e[: 16 - j]) / 16 for j in range(found.lags + 1)]
    spread = gamma[0] + 2 * sum(
        (1 - j / (found.lags + 1)) * g for j, g in enumerate(gamma) if j
    )
    assert found.kpss == pytest.approx(float((np.cumsum(e) ** 2).sum()) / 256 / spread)
    assert found.change == pytest.approx(2.5 / 0.5 - 1)
    assert found.lags > 0


def test_what_wanders_or_changes_is_found():
    kpss, halves = rejections(autoregressive(3, 1.0, 200, 150))
    assert kpss > 0.7
    assert halves > 0.6
    step = autoregressive(4, 0.0, 200, 150) + 0.8 * (np.arange(200) >= 100)
    kpss, halves = rejections(step)
    assert kpss > 0.9
    assert halves > 0.95


@pytest.mark.parametrize("series", [[], [1.0], np.full(40, np.nan), np.arange(15)])
def test_of_too_little_nothing_is_said(series):
    found = stationarity(series)
    assert found.steps < FEWEST
    assert np.isnan([found.kpss, found.p, found.change, found.change_p]).all()


@pytest.mark.slow  # importing statsmodels takes seconds
def test_statsmodels_has_the_same_statistic_and_p_value():
    from statsmodels.tsa.stattools import kpss

    for seed, phi in enumerate((0.0, 0.5, 0.95)):
        for steps in (16, 40, 500):
            x = autoregressive(seed, phi, steps, 1)[0]
            found = stationarity(x)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                statistic, p, lags, _ = kpss(x, regression="c", nlags="auto")
            assert found.kpss == pytest.approx(statistic, rel=1e-9)
            assert (found.p, found.lags) == (pytest.approx(p, rel=1e-9), lags)
