"""Traffic between hosts, and flows, of matrices that are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from moetraffic import Trace
from moetraffic.analysis.exchange import exchanges, read
from moetraffic.analysis.network import (
    inter_host_share,
    largest_flows,
    network_tables,
    nic_flows,
)
from moetraffic.analysis.rows import rows
from moetraffic.data import path

pytestmark = pytest.mark.filterwarnings("error")


def test_flows_of_a_ring_and_of_a_uniform_all_to_all() -> None:
    ring = np.roll(np.eye(8, dtype=int), 1, axis=1) * 10**6
    assert nic_flows(ring).tolist() == [1] * 8
    assert (nic_flows(np.full((2, 16, 16), 3)) == 15).all()
    assert nic_flows(np.zeros((2, 3, 3))).sum() == 0
    assert nic_flows([[7]]).tolist() == [0]


def test_largest_flows_are_at_least_one() -> None:
    matrix = np.zeros((4, 4))
    matrix[0, 1:] = [20e6, 10e6, 1e6]
    matrix[1, 0] = 9e6
    assert largest_flows(matrix) == (pytest.approx(0.5), 0.25)
    assert largest_flows(matrix, 0.5) == (pytest.approx(0.75), 0.5)
    assert largest_flows(matrix, 1) == (1, 1)
    assert largest_flows(np.ones((11, 11))) == pytest.approx((0.1, 0.1))
    assert np.isnan(largest_flows([[7]])).all()


@pytest.mark.parametrize(
    ("ranks", "share"), [(16, 0.533333), (64, 0.888889), (1024, 0.993157)]
)
def test_r_minus_g_of_r_minus_1_leaves_the_host(ranks: int, share: float) -> None:
    measured = inter_host_share(np.ones((ranks, ranks), int), np.arange(ranks) // 8)
    assert measured == pytest.approx(share, abs=1e-6)
    assert measured == pytest.approx((ranks - 8) / (ranks - 1))


@settings(max_examples=10)
@given(
    hnp.arrays(np.int64, (6, 6), elements=st.integers(0, 10**12)),
    st.lists(st.integers(0, 3), min_size=6, max_size=6),
)
def test_the_inter_host_share_counts_pairs_of_other_hosts(
    matrix: np.ndarray, hosts: list[int]
) -> None:
    pairs = [(a, b) for a in range(6) for b in range(6) if a != b]
    away = sum(int(matrix[a, b]) for a, b in pairs if hosts[a] != hosts[b])
    sent = sum(int(matrix[a, b]) for a, b in pairs)
    share = away / sent if sent else np.nan
    measured = inter_host_share(matrix, np.array(hosts))
    assert measured == pytest.approx(share, nan_ok=True)


def test_edges_of_the_inter_host_share() -> None:
    assert np.isnan(inter_host_share([[5]], np.zeros(1, int)))
    assert inter_host_share(np.ones((4, 4)), np.zeros(4, int)) == 0
    assert np.isnan(inter_host_share(np.zeros((2, 4, 4)), np.arange(4) // 2)).all()
    local = np.array([[np.nan, 1], [3, np.nan]])  # rank-local traffic does not count
    assert inter_host_share(local, np.arange(2)) == 1


def test_a_run_has_the_bottleneck_of_its_matrices() -> None:
    with Trace.open(path("golden-token-sample.h5")) as trace:
        exchange = exchanges(trace, [])[0]
        (row,) = network_tables(exchange, rows(trace, exchange))["network"]
        window = read(trace, exchange, range(len(exchange.iterations)))
    assert window.wire is not None
    wire = window.wire * window.row_bytes
    wire[:, range(2), range(2)] = 0
    most = np.maximum(wire.sum(axis=1), wire.sum(axis=2)).max(axis=1)
    assert row["bottleneck_bytes"] == pytest.approx(most.mean())
    assert row["bottleneck_p50"] == pytest.approx(np.median(most))
    assert (row["hosts"], row["inter_host"], row["inter_host_uniform"]) == (2, 1, 1)
    assert (row["nic_flows"], row["largest_flows_number_share"]) == (1, 0.5)


def test_without_bytes_there_is_no_row() -> None:
    trace = Trace.from_arrays(np.ones((3, 1, 1, 4), int), k=1)
    for exchange in exchanges(trace, []):
        assert network_tables(exchange, rows(trace, exchange)) == {"network": []}
