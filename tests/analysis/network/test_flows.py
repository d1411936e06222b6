"""Flows: counts, entropies and largest flows of matrices that are known."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.analysis.network.flows import largest_flows, nic_flows
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")


def test_a_ring_has_one_flow_a_nic_though_its_bytes_are_even():
    found = nic_flows(np.roll(np.eye(8, dtype=int), 1, axis=1) * 10**6)
    assert found.flows.tolist() == [1] * 8
    assert found.flow_entropy.tolist() == found.byte_entropy.tolist() == [0] * 8


def test_a_uniform_all_to_all_has_a_flow_to_each_other_rank():
    found = nic_flows(np.full((2, 16, 16), 3))
    assert (found.flows == 15).all()
    assert found.byte_entropy == pytest.approx(np.full((2, 16), np.log2(15)))


def test_bytes_may_be_concentrated_where_flows_are_many():
    matrix = np.zeros((5, 5))
    matrix[0, 1:] = [97, 1, 1, 1]
    found = nic_flows(matrix)
    assert found.flow_entropy[0] == 2
    p = np.array([0.97, 0.01, 0.01, 0.01])
    assert found.byte_entropy[0] == pytest.approx(-(p * np.log2(p)).sum())
    assert np.isnan(found.flow_entropy[1:]).all()
    assert np.isnan(found.byte_entropy[1:]).all()


def test_largest_flows_are_at_least_one():
    matrix = np.zeros((4, 4))
    matrix[0, 1:] = [20e6, 10e6, 1e6]
    matrix[1, 0] = 9e6
    assert largest_flows(matrix) == (pytest.approx(0.5), 0.25)
    assert largest_flows(matrix, 0.5) == (pytest.approx(0.75), 0.5)
    assert largest_flows(matrix, 1) == (1, 1)
    assert largest_flows(np.ones((11, 11))) == pytest.approx((0.1, 0.1))


def test_edges_nothing_to_send_and_one_rank():
    none = nic_flows(np.zeros((2, 3, 3)))
    assert none.flows.sum() == 0
    assert np.isnan(none.byte_entropy).all()
    assert nic_flows([[7]]).flows.tolist() == [0]
    assert np.isnan(largest_flows([[7]])).all()


def test_what_cannot_be_is_rejected():
    with pytest.raises(AnalysisError, match="ranks to ranks"):
        nic_flows([[0, 1]])
    with pytest.raises(AnalysisError, match="tenth"):
        largest_flows([[0, 1], [1, 0]], 0)
