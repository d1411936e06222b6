"""Quantiles and tail index, of laws whose index is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.analysis.skew.tails import tail


@pytest.mark.parametrize("index", [1.2, 2.5])
def test_the_interval_holds_the_index_of_pareto_values(index: float) -> None:
    rng = np.random.default_rng(1)
    found = [tail(1 + rng.pareto(index, 4000)) for _ in range(200)]
    held = [each.index_low <= index <= each.index_high for each in found]
    assert np.mean(held) == pytest.approx(0.95, abs=0.05)


def test_light_tails_have_large_indices() -> None:
    x = 100 + np.random.default_rng(2).normal(0, 1, 5000)
    assert tail(x).index > 50


@given(st.floats(0.01, 1e9), st.integers(1, 400))
def test_scale_and_order(scale: float, number: int) -> None:
    x = np.random.default_rng(number).exponential(1, number)
    one, other = tail(x), tail(x[::-1] * scale)
    assert other.p99 == pytest.approx(one.p99 * scale)
    assert one.p50 <= one.p90 <= one.p99
    assert other.index == pytest.approx(one.index, rel=1e-6, nan_ok=True)
    assert np.isnan(one.index) == (number < 190)


def test_equal_values_and_no_values_have_no_tail() -> None:
    assert np.isnan(tail(np.full(500, 3.0)).index)
    empty = tail([0.0, np.nan, -1.0])
    assert (empty.values, np.isnan(empty.p50)) == (0, True)
