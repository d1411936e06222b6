"""The chain rule of entropy over hosts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from moetraffic.analysis.network.flows import host_entropy
from moetraffic.analysis.skew.measures import entropy

pytestmark = pytest.mark.filterwarnings("error")

matrices = hnp.arrays(
    np.int64, st.tuples(st.just(6), st.just(6)), elements=st.integers(0, 10**9)
)


@settings(max_examples=40)
@given(matrices, st.lists(st.sampled_from("abc"), min_size=6, max_size=6))
def test_the_chain_rule_holds_over_any_hosts(matrix, names):
    hosts = np.unique(names, return_inverse=True)[1]
    pairs, within = host_entropy(matrix, hosts)
    whole = entropy(matrix, axis=(-2, -1), diagonal=False)
    assert np.isnan(pairs + within) == np.isnan(whole)
    if not np.isnan(whole):
        assert whole == pytest.approx(pairs + within, abs=1e-12)


def test_the_chain_rule_over_uniform_hosts():
    pairs, within = host_entropy(np.ones((2, 16, 16)), np.arange(16) // 8)
    inter = 8 / 15
    assert pairs == pytest.approx([entropy([inter, 1 - inter]) + 1] * 2)
    assert pairs + within == pytest.approx([np.log2(240)] * 2, abs=1e-12)
    demand = np.random.default_rng(1).poisson(9, (8, 8))
    whole = entropy(demand, axis=(-2, -1), diagonal=False)
    one_host = host_entropy(demand, np.zeros(8, int))
    assert one_host == (0, pytest.approx(whole, abs=1e-12))
    assert host_entropy(demand, np.arange(8))[1] == pytest.approx(0, abs=1e-12)


def test_edges_are_nan_without_a_warning():
    for matrix in (np.zeros((3, 3)), np.array([[5]])):
        hosts = np.arange(len(matrix))
        assert np.isnan(host_entropy(matrix, hosts)).all()
