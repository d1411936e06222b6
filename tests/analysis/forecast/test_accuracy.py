"""Accuracy: exact values, and what guessing gets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from moetraffic.analysis.distances import total_variation
from moetraffic.analysis.forecast.accuracy import hot_recall

pytestmark = pytest.mark.filterwarnings("error")

loads = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 5), st.integers(2, 9)),
    elements=st.integers(0, 50).map(float),
)


@given(loads)
def test_what_came_is_like_itself(x):
    some = x.sum(axis=1) > 0
    assert total_variation(x, x)[some] == pytest.approx(0)
    assert np.isnan(total_variation(x, x)[~some]).all()


@given(loads, st.floats(0.1, 10))
def test_the_unit_does_not_matter_for_shares(x, factor):
    other = x[:, ::-1]
    assert total_variation(factor * other, x) == pytest.approx(
        total_variation(other, x), nan_ok=True, abs=1e-12
    )


@given(loads, st.data())
def test_a_forecast_that_tells_nothing_apart_finds_as_many_as_guessing(x, data):
    hot = data.draw(st.integers(1, x.shape[1]))
    varies = x.max(axis=1) > x.min(axis=1)
    found = hot_recall(np.ones_like(x), x, hot)
    assert found[varies] == pytest.approx(hot / x.shape[1])
    assert np.isnan(found[~varies]).all()


def test_exact_values():
    x = np.array([[4.0, 0, 0, 0], [1, 1, 1, 1]])
    f = np.array([[1.0, 1, 1, 1], [4, 0, 0, 0]])
    assert total_variation(f, x) == pytest.approx([0.75, 0.75])
    ranked = np.array([[9.0, 8, 7, 1, 0, 0, 0, 0]])
    assert hot_recall(ranked[:, ::-1], ranked, 3) == pytest.approx([0])
    assert hot_recall(ranked, ranked, 3) == pytest.approx([1])


def test_ties_are_shared():
    # the second place is one of two: half of each in the forecast, all of one came
    forecast, target = np.array([[5.0, 3, 3, 0]]), np.array([[9.0, 8, 1, 0]])
    assert hot_recall(forecast, target, 2) == pytest.approx([0.75])
