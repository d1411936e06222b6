"""Intervals hold the true value about as often as they say, and exact cases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.analysis.intervals import (
    DRAWS,
    UNKNOWN,
    block_length,
    block_means,
    difference,
    ratio,
)

pytestmark = pytest.mark.filterwarnings("error")


@given(st.lists(st.floats(0.1, 1e6), min_size=3, max_size=40), st.floats(0.01, 100))
def test_a_constant_ratio_has_no_scatter(base: list[float], times: float) -> None:
    interval = ratio(base, [times * b for b in base])
    for value in (interval.value, interval.low, interval.high):
        assert value == pytest.approx(times)


def test_few_iterations_have_no_interval_and_none_no_ratio() -> None:
    two = ratio([1.0, 1.0], [2.0, 4.0])
    assert two.value == 3
    assert np.isnan([two.low, two.high]).all()
    assert ratio([0.0], [1.0]) is ratio([], []) is UNKNOWN
    assert difference(np.zeros(0), np.ones(3)) is UNKNOWN


def test_a_ratio_holds_the_true_one_although_iterations_differ_in_size() -> None:
    held = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        shared = rng.gamma(4, 1, 60)
        below, above = (shared * rng.gamma(50, 1 / 50, 60) for _ in range(2))
        interval = ratio(below, 1.5 * above)
        held += interval.low <= 1.5 <= interval.high
    assert held >= 87


def test_a_difference_of_autocorrelated_series_holds_the_true_one() -> None:
    held = 0
    for seed in range(100):
        noise = np.random.default_rng(seed).normal(size=(2, 303))
        a, b = (np.convolve(one, np.ones(4) / 4, "valid") for one in noise)
        interval = difference(a, 2 + b)
        assert interval.low < interval.value < interval.high
        held += interval.low <= 2 <= interval.high
    assert held >= 87


def test_resamples_are_of_blocks_that_wrap_around() -> None:
    assert [block_length(n) for n in (1, 3, 20, 60, 1000)] == [1, 1, 5, 8, 20]
    x = np.arange(20.0)[:, None]
    means = block_means(x, np.random.default_rng(0))
    assert means.shape == (DRAWS, 1)
    around = [np.take(x, range(i, i + 5), mode="wrap").mean() for i in range(20)]
    sums = {round(float(v), 9) for v in np.unique(np.round(4 * means, 9))}
    assert sums <= {round(s / 5, 9) for s in range(5 * 4 * 20)}
    assert means.mean() == pytest.approx(np.mean(around), abs=0.5)
