"""Flows: counts, entropies and elephants of matrices that are known."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.analysis.network import flows
from moetraffic.analysis.network.flows import elephants, nic_flows
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")


def test_a_ring_has_one_flow_a_nic_though_its_bytes_are_even():
    ring = np.roll(np.eye(8, dtype=int), 1, axis=1) * 10**6
    found = nic_flows(ring)
    assert found.flows.tolist() == [1] * 8
    assert found.flow_entropy.tolist() == found.byte_entropy.tolist() == [0] * 8
    shared = nic_flows(ring, channels=4)
    assert shared.flow_entropy.tolist() == shared.byte_entropy.tolist() == [2] * 8
    assert shared.effective_flows.tolist() == [4] * 8


def test_a_uniform_all_to_all_has_a_flow_to_each_rank_off_the_host():
    uniform = np.full((16, 16), 3)
    found = nic_flows(uniform, 2, hosts=8)
    assert found.flows.tolist() == [2 * 8] * 8
    assert found.bytes.tolist() == [2 * 8 * 3] * 8
    assert found.flow_entropy == pytest.approx(4)
    assert found.concentration == pytest.approx(0, abs=1e-12)
    assert nic_flows(uniform).flows.tolist() == [15] * 16


def test_bytes_may_be_concentrated_where_flows_are_many():
    matrix = np.zeros((5, 5))
    matrix[0, 1:] = [97, 1, 1, 1]
    found = nic_flows(matrix)
    assert found.flow_entropy[0] == 2
    p = np.array([0.97, 0.01, 0.01, 0.01])
    bits = -(p * np.log2(p)).sum()
    assert found.byte_entropy[0] == pytest.approx(bits)
    assert found.concentration[0] == pytest.approx(2 - bits)
    assert np.isnan(found.flow_entropy[1:]).all()
    assert np.isnan(found.concentration[1:]).all()
    back = nic_flows(matrix, receiving=True)
    assert back.flows.tolist() == [0, 1, 1, 1, 1]


def test_nics_are_any_map_and_matrices_any_stack():
    rng = np.random.default_rng(2)
    stack = rng.poisson(2, (3, 2, 6, 6))
    nics = np.array([1, 0, 1, 2, 0, 2])
    found = nic_flows(stack, nics, channels=3)
    off = np.where(np.eye(6, dtype=bool), 0, stack)
    for nic in range(3):
        mine = off[..., nics == nic, :]
        assert (
            found.flows[..., nic].tolist()
            == (3 * (mine > 0).sum(axis=(-2, -1))).tolist()
        )
        assert found.bytes[..., nic].tolist() == mine.sum(axis=(-2, -1)).tolist()


def test_edges_nothing_to_send_and_one_rank():
    none = nic_flows(np.zeros((2, 3, 3)))
    assert none.flows.sum() == 0
    assert np.isnan(none.byte_entropy).all()
    assert nic_flows([[7]]).flows.tolist() == [0]
    assert np.isnan(elephants(np.zeros((3, 3)), 1).share_of_bytes)
    assert np.isnan(flows.largest_flows_share([[7]]))


def test_elephants_by_size_by_name_and_by_rank():
    matrix = np.zeros((4, 4))
    matrix[0, 1:] = [20e6, 10e6, 1e6]
    matrix[1, 0] = 9e6
    found = elephants(matrix)
    assert found.threshold_bytes == 10e6
    assert found.share_of_flows == 0.5
    assert found.share_of_bytes == pytest.approx(30 / 40)
    halved = elephants(matrix, 10e6, channels=2)
    assert halved.share_of_flows == 0.25
    assert halved.share_of_bytes == pytest.approx(0.5)
    assert flows.largest_flows_share(matrix, 0.25) == pytest.approx(0.5)
    assert flows.largest_flows_share(matrix, 0.26) == pytest.approx(0.75)
    assert flows.largest_flows_share(matrix, 1) == 1
    even = np.ones((11, 11))
    assert flows.largest_flows_share(even, 0.1) == pytest.approx(0.1)


def test_hashing_8_flows_onto_8_links():
    assert flows.expected_hottest_path(8, 8) == pytest.approx(2.59723, abs=1e-5)
    many = flows.expected_hottest_path([[0, 1], [100, 100]], 4)
    assert np.isnan(many[0, 0])
    assert many[0, 1] == 4
    assert 1 < many[1, 0] == many[1, 1] < 2


def test_uneven_flows_are_hotter_than_even_ones_on_average():
    rng = np.random.default_rng(3)
    link = rng.integers(0, 4, size=(4000, 12))
    loads = {}
    for name, sizes in {"even": np.ones(12), "uneven": np.arange(12.0)}.items():
        on = np.stack([(sizes * (link == one)).sum(axis=1) for one in range(4)])
        loads[name] = (on.max(axis=0) / on.mean(axis=0)).mean()
    assert loads["even"] == pytest.approx(
        float(flows.expected_hottest_path(12, 4)), rel=0.02
    )
    assert loads["uneven"] > loads["even"]


def test_what_cannot_be_is_refused():
    with pytest.raises(AnalysisError, match="elephant"):
        elephants([[0, 1], [1, 0]], "whale")
    with pytest.raises(AnalysisError, match="above 0"):
        elephants([[0, 1], [1, 0]], 0)
    with pytest.raises(AnalysisError, match="channel"):
        nic_flows([[0, 1], [1, 0]], channels=0)
    with pytest.raises(AnalysisError, match="ranks to ranks"):
        nic_flows([[0, 1]])
    with pytest.raises(AnalysisError, match="tenth"):
        flows.largest_flows_share([[0, 1], [1, 0]], 0)
