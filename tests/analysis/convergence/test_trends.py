"""Trends: against another library, worked cases and by simulation."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.signal import lfilter
from scipy.stats import kendalltau, theilslopes

from moetraffic.analysis.convergence.trends import Trend, trend
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")


@given(hnp.arrays(np.int64, st.integers(4, 40), elements=st.integers(0, 9)))
def test_slope_interval_and_tau_are_those_of_scipy(x):
    found = trend(x, serial=False)
    slopes = theilslopes(x)
    assert found.slope == pytest.approx(slopes.slope)
    if x.min() < x.max():
        assert found.tau == pytest.approx(kendalltau(np.arange(len(x)), x).statistic)
        assert found.low == pytest.approx(slopes.low_slope)
        assert found.high == pytest.approx(slopes.high_slope)
    else:
        assert np.isnan(found.tau)
        assert np.isnan(found.p)


def test_mann_kendall_of_a_worked_case():
    # S = 28 - 2 pairs that fall = 26; Var S = 8 * 7 * 21 / 18
    found = trend([1, 2, 3, 5, 4, 6, 7, 8], serial=False)
    assert found.z == pytest.approx(25 / np.sqrt(8 * 7 * 21 / 18), abs=1e-6)
    assert found.tau == pytest.approx(26 / 28, abs=1e-6)
    # with one tie, Var S loses 2 * 1 * 9 / 18, and one pair no longer counts
    tied = trend([1, 2, 3, 4, 4, 6, 7, 8], serial=False)
    assert tied.z == pytest.approx(26 / np.sqrt(8 * 7 * 21 / 18 - 1), abs=1e-6)


@given(
    hnp.arrays(np.float64, st.integers(4, 30), elements=st.integers(-50, 50)),
    st.sampled_from([-2.0, 0.5, 4.0]),
    st.integers(-3, 3),
)
def test_a_line_added_is_a_slope_added(x, factor, slope):
    t = np.arange(len(x))
    once, again = trend(x), trend(factor * x + slope * t)
    assert again.slope == pytest.approx(factor * once.slope + slope, abs=1e-9)
    mirrored = trend(-x)
    assert mirrored.z == pytest.approx(-once.z, nan_ok=True)
    assert mirrored.low == pytest.approx(-once.high)


def each(curves, **options):
    """Arrays of the fields of the trends of curves ``[T, n]``."""
    found = [trend(curve, **options) for curve in np.transpose(curves)]
    names = Trend.__dataclass_fields__
    return SimpleNamespace(
        **{n: np.array([getattr(f, n) for f in found]) for n in names}
    )


@pytest.mark.parametrize("phi", [0.0, 0.7])
def test_a_curve_without_trend_is_called_one_in_five_percent(phi):
    noise = np.random.default_rng(1).normal(size=(250, 600))
    x = lfilter([1], [1, -phi], noise, axis=0)[100:]
    found = each(x)
    assert 0.02 < (found.p < 0.05).mean() < 0.09
    assert 0.91 < ((found.low <= 0) & (found.high >= 0)).mean() < 0.98
    if phi:  # what the classical test makes of it
        assert (each(x, serial=False).p < 0.05).mean() > 0.25


def test_the_interval_covers_a_true_slope():
    noise = np.random.default_rng(2).normal(size=(80, 600))
    t = np.arange(80)[:, None]
    found = each(0.05 * t + noise)
    assert found.slope.mean() == pytest.approx(0.05, rel=0.05)
    assert 0.9 < ((found.low <= 0.05) & (found.high >= 0.05)).mean() < 0.99
    assert (found.p < 0.05).mean() > 0.99


def test_missing_steps_are_left_out():
    rng = np.random.default_rng(3)
    x = rng.normal(size=40)
    kept = np.sort(rng.choice(40, 25, replace=False))
    holed = np.full(40, np.nan)
    holed[kept] = x[kept]
    found, alone = trend(holed, serial=False), trend(x[kept], at=kept, serial=False)
    for name in ("tau", "z", "p", "slope", "low", "high"):
        assert getattr(found, name) == pytest.approx(getattr(alone, name))


def test_long_curves_keep_their_slope_a_step():
    t = np.arange(5000)
    x = 3 + 0.002 * t + np.random.default_rng(4).normal(size=5000)
    found = trend(x, at=t * 10)
    assert found.slope == pytest.approx(0.0002, rel=0.05)
    assert found.low < 0.0002 < found.high
    assert trend(t * 1.0).slope == pytest.approx(1)


def test_too_few_points_have_no_trend():
    for x in ([], [1.0], [1.0, 2.0], np.full(9, np.nan)):
        found = trend(x)
        assert np.isnan([found.tau, found.z, found.p, found.slope, found.low]).all()


def test_steps_must_increase_and_be_as_many():
    with pytest.raises(AnalysisError, match="increase"):
        trend([1, 2, 3], at=[0, 2, 2])
    with pytest.raises(AnalysisError, match="increase"):
        trend([1, 2, 3], at=[0, 1])
    with pytest.raises(AnalysisError, match="one curve"):
        trend([[1, 2, 3]])


def test_counting_noise_does_not_hide_a_long_memory():
    rng = np.random.default_rng(8)
    noise = rng.normal(size=(800, 150)) * np.sqrt(1 - 0.95**2)
    x = lfilter([1], [1, -0.95], noise, axis=0)[300:]
    found = each(x + rng.normal(size=x.shape))
    assert (found.p < 0.05).mean() < 0.14
    # of the lag-1 autocorrelation alone, a half of them would be trends
    assert np.median(found.inflation) > 8


def test_a_hundred_thousand_steps_take_blocks():
    t = np.arange(100_000)
    x = 1e-4 * t + np.random.default_rng(9).normal(size=len(t))
    found = trend(x)
    assert found.slope == pytest.approx(1e-4, rel=0.01)
    assert found.low <= 1e-4 <= found.high
