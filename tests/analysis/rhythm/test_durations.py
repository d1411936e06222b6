"""Durations: quantiles and a histogram of known lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.analysis.rhythm.on_off import BINS_A_DECADE, durations

pytestmark = pytest.mark.filterwarnings("error")


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=40))
def test_every_length_is_in_its_bin(lengths):
    found = durations(lengths)
    assert found.number == found.counts.sum() == len(lengths)
    for value in lengths:
        at = int(np.searchsorted(found.edges_ns, value * (1 + 1e-9), "right")) - 1
        assert found.counts[at] > 0
    steps = np.diff(np.log10(found.edges_ns)) * BINS_A_DECADE
    assert steps == pytest.approx(np.ones(len(steps)))


def test_quantiles_and_cv_of_an_exponential():
    lengths = np.random.default_rng(0).exponential(1e6, 50_000)
    found = durations(lengths)
    exact = -1e6 * np.log(1 - np.array([0.05, 0.25, 0.5, 0.75, 0.95]))
    assert found.quantiles_ns == pytest.approx(exact, rel=0.05)
    assert found.cv == pytest.approx(1, rel=0.05)
    assert found.mean_ns == pytest.approx(1e6, rel=0.05)


def test_powers_of_ten_begin_a_bin():
    found = durations([1000, 10_000])
    assert found.edges_ns[0] == pytest.approx(1000)
    assert found.counts.tolist() == [1] + [0] * 9 + [1]


@pytest.mark.parametrize("lengths", [[], [0, 0]])
def test_of_no_length_there_is_no_histogram(lengths):
    found = durations(lengths)
    assert found.counts.size == found.edges_ns.size == 0
    assert np.isnan(found.cv)
    assert np.isnan(found.quantiles_ns).all() == (not lengths)
