"""Flows: counts and largest flows of matrices that are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from moetraffic.analysis.network.flows import inter_host_share, largest_flows, nic_flows

pytestmark = pytest.mark.filterwarnings("error")


def test_a_ring_has_one_flow_a_nic_though_its_bytes_are_even():
    ring = np.roll(np.eye(8, dtype=int), 1, axis=1) * 10**6
    assert nic_flows(ring).tolist() == [1] * 8


def test_a_uniform_all_to_all_has_a_flow_to_each_other_rank():
    assert (nic_flows(np.full((2, 16, 16), 3)) == 15).all()


def test_largest_flows_are_at_least_one():
    matrix = np.zeros((4, 4))
    matrix[0, 1:] = [20e6, 10e6, 1e6]
    matrix[1, 0] = 9e6
    assert largest_flows(matrix) == (pytest.approx(0.5), 0.25)
    assert largest_flows(matrix, 0.5) == (pytest.approx(0.75), 0.5)
    assert largest_flows(matrix, 1) == (1, 1)
    assert largest_flows(np.ones((11, 11))) == pytest.approx((0.1, 0.1))


def test_edges_nothing_to_send_and_one_rank():
    assert nic_flows(np.zeros((2, 3, 3))).sum() == 0
    assert nic_flows([[7]]).tolist() == [0]
    assert np.isnan(largest_flows([[7]])).all()


@pytest.mark.parametrize(
    ("ranks", "share"), [(16, 0.533333), (64, 0.888889), (1024, 0.993157)]
)
def test_of_a_uniform_matrix_r_minus_g_of_r_minus_1_leaves_the_host(ranks, share):
    found = inter_host_share(np.ones((ranks, ranks), int), np.arange(ranks) // 8)
    assert found == pytest.approx(share, abs=1e-6)
    assert found == pytest.approx((ranks - 8) / (ranks - 1))


@settings(max_examples=10)
@given(
    hnp.arrays(np.int64, (6, 6), elements=st.integers(0, 10**12)),
    st.lists(st.integers(0, 3), min_size=6, max_size=6),
)
def test_the_inter_host_share_counts_pairs_of_other_hosts(matrix, hosts):
    pairs = [(a, b) for a in range(6) for b in range(6) if a != b]
    away = sum(int(matrix[a, b]) for a, b in pairs if hosts[a] != hosts[b])
    sent = sum(int(matrix[a, b]) for a, b in pairs)
    found = inter_host_share(matrix, np.array(hosts))
    assert found == pytest.approx(away / sent if sent else np.nan, nan_ok=True)


def test_edges_of_the_inter_host_share():
    assert np.isnan(inter_host_share([[5]], np.zeros(1, int)))
    assert inter_host_share(np.ones((4, 4)), np.zeros(4, int)) == 0
    nothing = inter_host_share(np.zeros((2, 4, 4)), np.array([0, 0, 1, 1]))
    assert np.isnan(nothing).all()
    unknown = np.array([[np.nan, 1], [3, np.nan]])  # rank-local traffic does not count
    assert inter_host_share(unknown, np.arange(2)) == 1
