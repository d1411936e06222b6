"""Packet networks: max-min fairness, the LP optimum, and rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import csr_array

from moetraffic import Trace, load_fabric
from moetraffic.errors import FabricError
from moetraffic.fabric import (
    Hosts,
    block,
    cut_bounds,
    expected_max_load,
    leaf_spine,
    port_bound,
    single_switch,
)
from moetraffic.policies.evaluation import evaluate
from moetraffic.policies.service.fluid import fair_rates, fluid_seconds
from moetraffic.policies.service.optical import crossing, line_bytes
from moetraffic.policies.service.packet_network import (
    PacketNetwork,
    Rounds,
    optimum_seconds,
    packet_bound,
    rounds_violations,
    serve_rounds,
)
from moetraffic.policies.transmission.rounds import (
    AllAtOnce,
    ShiftedRounds,
)

from .conftest import A_LATER, A, B, H, view_of

POLICIES = (
    AllAtOnce(),
    AllAtOnce(routing="ideal"),
    ShiftedRounds(),
)


def ports(ranks: int) -> PacketNetwork:
    """Unit ports on one switch; links inside hosts do not matter."""
    hosts = Hosts(number=ranks, nic_bytes_s=1, inside_bytes_s=1e6)
    return PacketNetwork(topology=single_switch(hosts), slots=block(ranks, hosts))


def seconds(policy: Any, matrix: Any, network: PacketNetwork) -> float:
    plan = policy.plan(view_of(matrix, network))
    assert rounds_violations(plan, len(matrix), network) == ""
    return serve_rounds(matrix, plan, network).completion_s


UNFAIR = [[0, 2, 2, 2], [2, 0, 2, 2], [4, 4, 0, 0], [2, 2, 1, 0]]


@pytest.mark.parametrize(
    ("matrix", "fair", "shifted"),
    [(A, 11, 13), (A_LATER, 10, None), (B, 10, 10), (H, 10, 19), (UNFAIR, 10, None)],
)
def test_one_switch(matrix: Any, fair: float, shifted: float | None) -> None:
    network = ports(len(matrix))
    phi = line_bytes(crossing(matrix))
    assert seconds(AllAtOnce(), matrix, network) == pytest.approx(fair)
    if shifted is not None:
        assert seconds(ShiftedRounds(), matrix, network) == pytest.approx(shifted)
    assert optimum_seconds(matrix, network) == pytest.approx(phi)
    assert packet_bound(matrix, network) == pytest.approx(phi)


def test_the_cut_between_two_leaves() -> None:
    """A on two leaves of two hosts with one uplink each."""
    hosts = Hosts(number=4, nic_bytes_s=1, inside_bytes_s=1e6)
    topology = leaf_spine(hosts, leaves=2, spines=1, oversubscription=2)
    network = PacketNetwork(topology=topology, slots=block(4, hosts))
    assert optimum_seconds(A, network) == pytest.approx(12)
    assert packet_bound(A, network) == pytest.approx(12)


def test_three_flows_on_two_links() -> None:
    single = csr_array(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    assert fluid_seconds(np.ones(3), single, np.ones(2)) == 2
    split = csr_array(np.full((3, 2), 0.5))
    assert fluid_seconds(np.ones(3), split, np.ones(2)) == pytest.approx(1.5)
    hashed = [
        fluid_seconds(np.ones(3), csr_array(np.eye(2)[list(links)]), np.ones(2))
        for links in np.ndindex(2, 2, 2)
    ]
    assert np.mean(hashed) == expected_max_load(3, 2) == pytest.approx(2.25)


def by_pairs(matrix: np.ndarray, network: PacketNetwork) -> float:
    """The same optimum with a commodity for each pair, in GB and GB/s."""
    graph, topology = network.topology.graph, network.topology
    nodes, links = list(graph.nodes), topology.links
    pairs = np.argwhere(matrix > 0)
    size = topology.hosts.ranks
    equal, right = [], []
    for p, (s, d) in enumerate(pairs):
        names = [f"host{x // size}.gpu{x % size}" for x in network.slots[[s, d]]]
        for node in nodes:
            row = np.zeros(len(pairs) * len(links) + 1)
            for at, (a, b) in enumerate(links):
                row[p * len(links) + at] += (b == node) - (a == node)
            equal.append(row)
            sign = (node == names[1]) - (node == names[0])
            right.append(sign * matrix[s, d])
    load = np.zeros((len(links), len(pairs) * len(links) + 1))
    for at in range(len(links)):
        load[at, at : len(pairs) * len(links) : len(links)] = 1
    load[:, -1] = -topology.capacity / 1e9
    cost = np.zeros(load.shape[1])
    cost[-1] = 1
    found = linprog(
        cost, A_eq=np.array(equal), b_eq=right, A_ub=load, b_ub=np.zeros(len(links))
    )
    return float(found.fun)


@pytest.mark.parametrize("number", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_the_lp_equals_another_formulation_and_bounds_every_policy(number: int) -> None:
    rng = np.random.default_rng()
    names = ("leaf-spine", "torus", "single")
    for at in range(number):
        found = load_fabric(names[at % 3], 4, capacity="8Gbps")
        network = PacketNetwork(topology=found.topology, slots=found.slots)
        matrix = crossing(rng.integers(0, 10, (4, 4)) * 1e9)
        best = optimum_seconds(matrix, network)
        assert best == pytest.approx(by_pairs(matrix / 1e9, network), rel=1e-6)
        bound = packet_bound(matrix, network)
        assert bound <= best * (1 + 1e-6)
        parts = port_bound(found.topology, found.slots, matrix)
        cuts = cut_bounds(found.topology, found.slots, matrix)
        assert bound == pytest.approx(max([parts, *cuts.values()]))
        took = [seconds(policy, matrix, network) for policy in POLICIES]
        assert min(took) >= best * (1 - 1e-6)
        # all flows at once are not slower than the slowest policy, one by one
        assert took[0] <= _one_by_one(matrix, network) * (1 + 1e-6)


def _one_by_one(matrix: np.ndarray, network: PacketNetwork) -> float:
    """Return the time of one transfer after another, the worst that uses the links."""
    sent = np.diag(matrix.ravel())
    shares, capacity = network.shares("ecmp"), network.topology.capacity
    return sum(fluid_seconds(one, shares, capacity) for one in sent if one.any())


def test_paths_that_lose_bytes_are_impossible() -> None:
    network = ports(3)
    whole = np.ones((1, 3, 3))
    shares = network.shares("ecmp")
    assert not rounds_violations(Rounds(shares=whole, routing=shares), 3, network)
    lost = shares.copy()
    lost.data[len(lost.data) // 2] = 0.0
    for wrong in (lost, csr_array(2 * shares), csr_array(shares[:4])):
        plan = Rounds(shares=whole, routing=wrong)
        assert "shares" in rounds_violations(plan, 3, network)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (Rounds(shares=np.ones((2, 3, 3)), routing="ecmp"), "sum to 1"),
        (Rounds(shares=np.ones((1, 2, 2)), routing="ecmp"), "shape"),
        (Rounds(shares=np.ones((1, 3, 3)), routing="magic"), "routing is one of"),
        (3, "Rounds"),
    ],
)
def test_impossible_rounds(plan: object, why: str) -> None:
    assert why in rounds_violations(plan, 3, ports(3))


def test_policies_on_a_network_are_scored_against_the_optimum() -> None:
    rng = np.random.default_rng()
    share = rng.dirichlet(np.full(4, 0.3), size=4)
    trace = Trace.from_arrays(
        rng.multinomial(500, share, size=(20, 1, 4)), row_bytes=4096
    )
    fabric = load_fabric("torus", 4, capacity="400Gbps")
    network = PacketNetwork(topology=fabric.topology, slots=fabric.slots, optimum=True)
    names = ["all-at-once", "sprayed", "shifted-rounds"]
    found = evaluate(
        trace, names, networks={"torus": network}, forecasters=["persistence"]
    )
    assert found.failures == ()
    assert {s.policy for s in found.scores} == set(names)
    assert min(s.over_bound.value for s in found.scores) >= 1 - 1e-6


@pytest.mark.slow  # compiles
def test_compiled_flows_end_as_those_of_a_plain_loop() -> None:
    """Also with shares of several links, and with another rate every 1e-3."""
    pytest.importorskip("numba")
    rng = np.random.default_rng()
    found = load_fabric("torus", 12, capacity="8Gbps")
    network = PacketNetwork(topology=found.topology, slots=found.slots)
    capacity = found.topology.capacity
    for routing in ("ecmp", "ideal"):
        shares = network.shares(routing)
        sent = crossing(rng.integers(0, 9, (12, 12)) * 1e9).ravel()
        left, clock, on = sent, 0.0, shares
        while True:
            some = left > 1e-6 * sent.max()
            left, on = left[some], csr_array(on[some])
            if not some.any():
                break
            rate = fair_rates(on, capacity)
            clock += (left / rate).min()
            left = left - rate * (left / rate).min()
        exact = fluid_seconds(sent, shares, capacity)
        assert exact == pytest.approx(clock)
        coarse = fluid_seconds(sent, shares, capacity, resolution=1e-2)
        assert exact * (1 - 1e-9) <= coarse <= 1.2 * exact


def test_the_lp_is_for_few_ranks() -> None:
    with pytest.raises(FabricError, match="at most 64 ranks"):
        optimum_seconds(np.ones((65, 65)), ports(65))
