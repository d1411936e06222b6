"""Autocorrelation of exact waves and of noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from moetraffic.analysis.rhythm.periodicity import autocorrelation
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")


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


def test_bad_lags_are_refused():
    with pytest.raises(AnalysisError, match="T - 2"):
        autocorrelation([1, 2, 3], 2)


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
