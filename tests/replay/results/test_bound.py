"""The lower bound: exact cases of ports, cuts and dense operations."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.fabric import load_fabric
from moetraffic.replay.plan.background import traffic_of
from moetraffic.replay.plan.matrices import operation_matrices
from moetraffic.replay.plan.operations import operations
from moetraffic.replay.results.bound import (
    bounds_s,
    busiest_s,
    hosts_match,
)
from moetraffic.trace.panel import ArrayPanel

GB = 10**9


def pass_s(toy, network, *matrices):
    """Lower bound of a pass of two all-to-alls of four ranks, and those of each."""
    trace = toy(world=4, iterations=(0,), layers=(0,))
    wire = np.zeros((3, 4, 4), np.int64)
    for row, cells in zip(wire[1:], matrices, strict=True):
        for pair, nbytes in cells.items():
            row[pair] = nbytes
    trace = trace.replaced(panels=trace.panels | {"call_4/wire": ArrayPanel(wire)})
    each, whole = bounds_s(trace, operations(trace, dense=False), network)
    assert whole <= each.sum() * (1 + 1e-9)
    return whole


@pytest.mark.parametrize(
    ("first", "second", "seconds"),
    [
        # the two touch no common port: both last 1 s, and so do they together
        ({(0, 1): GB}, {(2, 3): GB}, 1),
        # one port sends both, or receives both
        ({(0, 1): GB}, {(0, 3): GB}, 2),
        ({(0, 1): GB}, {(2, 1): GB}, 2),
        # sending and receiving overlap
        ({(0, 1): GB, (1, 0): GB}, {}, 1),
        # rank 1 returns what it has received: the bound leaves out the order
        ({(0, 1): GB}, {(1, 0): GB}, 1),
        # bytes of a rank to itself are no traffic
        ({(0, 0): 5 * GB, (0, 1): GB}, {}, 1),
    ],
)
def test_the_bound_is_all_bytes_of_the_busiest_port(toy, first, second, seconds):
    network = load_fabric("single", 4, capacity="1GB/s")
    assert pass_s(toy, network, first, second) == pytest.approx(seconds)


def test_cuts_and_slow_ports_bound_by_their_own_rate(toy, tmp_path):
    racks = tmp_path / "racks.json"
    racks.write_text(
        '{"topology": "leaf-spine", "leaves": 2, "spines": 1, "oversubscription": 2,'
        ' "capacity": "1GB/s"}'
    )
    network = load_fabric(str(racks), 4)  # two racks with an uplink of 1 GB/s
    both = {(0, 2): GB}, {(1, 3): GB}
    assert pass_s(toy, network, *both) == pytest.approx(2)
    slow = tmp_path / "slow.json"
    slow.write_text('{"capacity": "1GB/s", "rates": {"rank3": "100MB/s"}}')
    assert pass_s(toy, load_fabric(str(slow), 4), *both) == pytest.approx(10)


def test_the_bound_of_an_operation_is_that_of_its_matrix(toy):
    """All-to-alls of overlapping groups, and dense operations as rings."""
    trace = toy(world=4, groups=[(0, 2), (3, 1)])
    beside = traffic_of("tp=2,dp=2,micro-batch=1", "tiny", 4)
    plan = operations(trace, background=beside)
    network = load_fabric("leaf-spine", 4, capacity="1Gbps")
    each, whole = bounds_s(trace, plan, network)
    for at, members, wire in operation_matrices(trace, plan):
        alone = [busiest_s(network, m, w) for m, w in zip(members, wire, strict=True)]
        np.testing.assert_allclose(each[at], alone)
    assert each.max() <= whole <= each.sum()
    single, _ = bounds_s(trace, plan, load_fabric("single", 4, capacity="1Gbps"))
    np.testing.assert_allclose(single, plan.bottleneck_bytes / 125e6, rtol=1e-3)


def test_a_network_is_measured_where_ranks_share_the_same_hosts():
    network = load_fabric("single", 4, capacity="1Gbps", ranks_per_host=2)
    assert hosts_match(network, ["a", "a", "b", "b"])
    for nodes in ("abcd", "aaaa", "abab"):
        assert not hosts_match(network, list(nodes))
