"""Origins: the parts of a split, and how sure a skill is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.signal import lfilter

from moetraffic.analysis.forecast.origins import FEWEST, gain, split

pytestmark = pytest.mark.filterwarnings("error")


@given(st.integers(0, 5000), st.integers(1, 1200), st.integers(1, 300))
def test_parts_follow_each_other(steps, horizon, most):
    cut = split(steps, max_origins=most)
    validation, test = cut.validation(horizon), cut.test(horizon)
    if cut.too_short(horizon):
        assert min(len(validation), len(test)) < FEWEST or cut.train_end < 2
        return
    assert validation[0] == cut.train_end - 1
    assert test[0] == cut.validation_end - 1
    assert validation[-1] + horizon < cut.validation_end
    assert test[-1] + horizon < steps
    assert 1 <= len(validation) <= most
    assert 1 <= len(test) <= most
    refits = cut.refits()
    assert (np.diff(refits) > 0).all()
    assert refits[0] == cut.train_end
    assert cut.validation_end in refits
    assert np.diff(refits).max(initial=1) <= cut.refit_every


def test_a_reason_is_given():
    assert split(60).too_short(10) == ""
    assert "has 15 in a run of 60" in split(60).too_short(100)
    assert "has 0 in a run of 0" in split(0).too_short(1)


def test_the_interval_of_a_skill_covers_it():
    """Errors alike for several steps, of a forecast that is better by a fifth."""
    rng = np.random.default_rng(0)
    covered, spread = [], []
    for _ in range(400):
        level = np.exp(0.3 * lfilter([1], [1, -0.7], rng.normal(size=(2, 400))))
        found = gain(0.8 * level[0], level[1])
        covered.append(found.low <= 0.2 <= found.high)
        spread.append((found.value, found.error))
    values, errors = np.array(spread).T
    assert 0.9 <= np.mean(covered) <= 0.99
    assert values.mean() == pytest.approx(0.2, abs=0.01)
    assert np.median(errors) == pytest.approx(values.std(), rel=0.15)


@given(
    rates=arrays(float, (2, 24), elements=st.floats(1e-6, 1e6)),
    scale=st.floats(1e-9, 1e3),
)
def test_the_interval_of_a_skill_is_below_1_and_agrees_with_its_p_value(rates, scale):
    found = gain(scale * rates[0], rates[1])
    assert found.low - 1e-9 <= found.value <= found.high + 1e-9 <= 1 + 1e-9
    assert found.high <= 1
    if abs(found.p - 0.025) > 1e-6:
        assert (found.p < 0.025) == (found.low > 0)


def test_a_forecast_without_error_has_a_skill_of_1():
    found = gain(np.zeros(24), np.ones(24))
    assert (found.value, found.low, found.high, found.p) == (1, 1, 1, 0)


def test_few_origins_have_no_interval():
    found = gain(np.ones(8), 2 * np.ones(8), horizon=4)
    assert found.value == 0.5
    assert np.isnan([found.low, found.high, found.error]).all()
    assert np.isnan(gain(np.zeros(9), np.zeros(9)).value)
    assert np.isnan(gain(np.zeros(0), np.zeros(0)).value)
    alone = np.concatenate(([1.0], np.zeros(99)))
    assert np.isnan(gain(alone, alone).low)
