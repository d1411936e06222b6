"""The chain rule of entropy over hosts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from moetraffic.analysis.network.tiers import host_entropy
from moetraffic.analysis.skew.measures import entropy

pytestmark = pytest.mark.filterwarnings("error")

matrices = hnp.arrays(
    np.int64, st.tuples(st.just(6), st.just(6)), elements=st.integers(0, 10**9)
)


@settings(max_examples=40)
@given(
    matrices,
    st.lists(st.sampled_from("abc"), min_size=6, max_size=6),
    st.booleans(),
)
def test_the_chain_rule_holds_over_any_hosts(matrix, hosts, diagonal):
    found = host_entropy(matrix, hosts, diagonal=diagonal)
    parts = found.host_pairs + found.within
    assert np.isnan(parts) == np.isnan(found.matrix)
    if not np.isnan(parts):
        assert found.matrix == pytest.approx(parts, abs=1e-12)


def test_the_chain_rule_over_uniform_hosts():
    found = host_entropy(np.ones((2, 16, 16)), 8)
    assert found.host_pairs.tolist() == [2, 2]
    assert found.within == pytest.approx(6)
    without = host_entropy(np.ones((16, 16)), 8, diagonal=False)
    assert without.matrix == pytest.approx(np.log2(240), abs=1e-12)
    inter = 8 / 15
    assert without.host_pairs == pytest.approx(entropy([inter, 1 - inter]) + 1)
    demand = np.random.default_rng(1).poisson(9, (8, 8))
    one_host = host_entropy(demand, 8)
    assert one_host.host_pairs == 0
    assert one_host.within == pytest.approx(one_host.matrix, abs=1e-12)
    assert host_entropy(demand, 1).within == pytest.approx(0, abs=1e-12)


def test_edges_are_nan_without_a_warning():
    for matrix in (np.zeros((3, 3)), [[5]]):
        split = host_entropy(matrix, 1, diagonal=False)
        assert np.isnan([split.matrix, split.host_pairs, split.within]).all()
