"""Lower bounds against linear programs over the class of routings that each names."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import block_diag, csr_array, hstack, identity

from moetraffic import load_fabric
from moetraffic.arrays import Float64, Int64
from moetraffic.fabric import (
    Cut,
    Hosts,
    Network,
    bounds,
    cut_bounds,
    forwarding_bound,
    leaf_spine,
    nic_name,
    port_bound,
    rail_optimized,
    route,
    routing_bound,
    torus,
    transfer_seconds,
)

SLOW_NIC = {"rates": {"rank1": "25Gbps"}}
GBPS = 1e9 / 8


def least_s(
    graph: nx.DiGraph, flows: dict[tuple[str, str], float], fixed: Float64
) -> float:
    """Compute the least time over all routings of flows between nodes, seconds.

    ``fixed`` are bytes that each link carries besides.  The flows of a source are one
    commodity: of each, every node receives what is sent to it and conserves the rest.
    """
    nodes = {name: at for at, name in enumerate(graph.nodes)}
    room = np.array([graph.edges[link]["capacity"] for link in graph.edges])
    into = np.zeros((len(nodes), len(room)))
    for at, (tail, head) in enumerate(graph.edges):
        into[nodes[tail], at], into[nodes[head], at] = -1, 1
    sources = sorted({source for source, _ in flows})
    received = np.zeros((len(sources), len(nodes)))
    for (source, destination), number in flows.items():
        received[sources.index(source), nodes[destination]] += number
        received[sources.index(source), nodes[source]] -= number
    unit = max(received.max(), fixed.max()) or 1.0  # of bytes; times are in unit / GB/s
    load: Any = hstack([identity(len(room))] * len(sources) or [csr_array((1, 0))])
    found = linprog(
        np.append(np.zeros(len(sources) * len(room)), 1.0),
        A_ub=hstack([load, csr_array(-room[:, None] / 1e9)]),
        b_ub=-fixed / unit,
        A_eq=hstack([block_diag([into] * len(sources)), csr_array((received.size, 1))]),
        b_eq=received.ravel() / unit,
    )
    assert found.status == 0, found.message
    return float(found.fun) * unit / 1e9


def any_forwarding_s(network: Network, sent: Int64) -> float:
    """Compute the least time over all routes, also through hosts, seconds."""
    names = [network.nodes[node] for node in network.slot_nodes[network.slots]]
    flows = {
        (names[one], names[other]): float(sent[one, other])
        for one, other in np.argwhere(sent)
        if one != other
    }
    return least_s(network.to_graph(), flows, np.zeros(len(network.links)))


def same_nics_s(network: Network, sent: Int64) -> float:
    """Compute the least time over all routes between switches, seconds.

    Bytes leave by the NIC of the sending rank or, with rail forwarding, by that of the
    receiver's rail, and enter by that of the receiver.
    """
    hosts, graph = network.hosts, network.to_graph()
    switch_of = {a: b for a, b in graph.edges if "nic" in a and "gpu" not in b}
    fixed = dict.fromkeys(network.links, 0.0)
    flows: dict[tuple[str, str], float] = {}

    def ends(host: int, at: int) -> tuple[str, str, str]:
        nic = nic_name(host, at * hosts.nics // hosts.ranks)
        return f"host{host}.gpu{at}", nic, switch_of[nic]

    for one, other in np.argwhere(sent * ~np.eye(network.ranks, dtype=bool)):
        host, at = divmod(int(network.slots[one]), hosts.ranks)
        beyond, there = divmod(int(network.slots[other]), hosts.ranks)
        gpu, nic, entry = ends(host, at)
        target, last, leaving = ends(beyond, there)
        path = [gpu, f"host{host}.bus", target]
        if host != beyond:
            path = [gpu, nic, entry]
            fellow = ends(host, there)
            if network.forwarding == "rail" and fellow[1] != nic:
                path = [gpu, f"host{host}.bus", *fellow]
            pair = path[-1], leaving
            flows[pair] = flows.get(pair, 0.0) + float(sent[one, other])
            for link in ((leaving, last), (last, target)):
                fixed[" -> ".join(link)] += float(sent[one, other])
        for link in pairwise(path):
            fixed[" -> ".join(link)] += float(sent[one, other])
    longest = float((np.array([*fixed.values()]) / network.capacity).max())
    flows = {pair: number for pair, number in flows.items() if pair[0] != pair[1]}
    if not flows:
        return longest
    switches = graph.subgraph(
        [n for n, kind in graph.nodes("kind") if kind == "switch"]
    )
    within = least_s(switches, flows, np.zeros(switches.number_of_edges()))
    return max(within, longest)


def described(folder: Path, ranks: int, **said: Any) -> Network:
    path = folder / "network.json"
    path.write_text(json.dumps({"capacity": "100Gbps", **said}))
    return load_fabric(str(path), ranks)


def hosts(number: int, ranks: int = 1, nics: int = 0, inside: float = 450e9) -> Hosts:
    return Hosts(
        number=number,
        ranks=ranks,
        nics=nics,
        nic_bytes_s=100 * GBPS,
        inside_bytes_s=inside,
    )


NETWORKS = {
    "leaf-spine": lambda: leaf_spine(hosts(6), leaves=3, oversubscription=2),
    "leaf-spine of hosts": lambda: leaf_spine(hosts(4, 2), leaves=2, spines=2),
    "one NIC a host": lambda: leaf_spine(hosts(4, 2, 1), leaves=2, spines=1),
    "rails": lambda: rail_optimized(hosts(2, 4)),
    "rails, own NICs": lambda: rail_optimized(hosts(2, 4), forwarding="own"),
    "rails in pods": lambda: rail_optimized(hosts(4, 2), pods=2, oversubscription=2),
    "rails, slow inside": lambda: rail_optimized(hosts(2, 4, inside=20e9)),
    "torus": lambda: torus(hosts(6), shape=(3, 2)),
    "torus of hosts": lambda: torus(hosts(4, 2), shape=(2, 2)),
}
FILES: dict[str, dict[str, Any]] = {
    "slow NIC, single": {"topology": "single", **SLOW_NIC},
    "slow NIC, rails": {"topology": "rails", "ranks_per_host": 4, **SLOW_NIC},
    "slow NIC, hosts": {"topology": "leaf-spine", "ranks_per_host": 2, **SLOW_NIC},
    "slow links": {
        **{"topology": "leaf-spine", "leaves": 2, "spines": 2},
        "rates": {"leaf0 -> spine0": "10Gbps", "rank3": "25Gbps"},
    },
}


@pytest.fixture(params=[*NETWORKS, *FILES])
def placed(request: pytest.FixtureRequest, tmp_path: Path) -> Network:
    if request.param in FILES:
        return described(tmp_path, 8, **FILES[request.param])
    made = NETWORKS[request.param]()
    return made.placed(np.random.default_rng(1).permutation(made.hosts.slots))


@pytest.mark.parametrize("seed", range(3))
def test_no_routing_of_the_class_that_a_bound_names_is_faster(
    placed: Network, seed: int
) -> None:
    drawn = np.random.default_rng(seed)
    shape = placed.ranks, placed.ranks
    sent = drawn.integers(0, 10**6, shape) * (drawn.random(shape) < [1, 0.5, 0.1][seed])
    same, free = same_nics_s(placed, sent), any_forwarding_s(placed, sent)
    bound, forwarded = routing_bound(placed, sent), forwarding_bound(placed, sent)
    assert free <= same * (1 + 1e-6)
    assert float(bound) <= same * (1 + 1e-6)
    assert float(forwarded) <= free * (1 + 1e-6)
    for routing in ("ecmp", "ideal", "shortest"):
        taken = transfer_seconds(route(placed, routing=routing), sent)
        assert float(taken) >= same * (1 - 1e-6)
    if placed.hosts.ranks == 1:  # no other rank or NIC to send by
        assert float(bound) == pytest.approx(float(forwarded))


@pytest.mark.parametrize("seed", range(10))
def test_bounds_hold_on_drawn_networks(seed: int) -> None:
    """Random cables and rates, and a cut around a random half of the switches."""
    drawn = np.random.default_rng(seed)
    switches = int(drawn.integers(3, 6))
    graph = nx.Graph()
    for a, b in nx.gnm_random_graph(switches, 2 * switches, seed=seed).edges:
        graph.add_edge(f"s{a}", f"s{b}", capacity=float(drawn.uniform(1e9, 2e10)))
    for a in range(1, switches):  # connected
        graph.add_edge(f"s{a - 1}", f"s{a}", capacity=float(drawn.uniform(1e9, 2e10)))
    size = hosts(switches, int(drawn.integers(1, 3)))
    for host in range(size.number):
        for nic in range(size.nics):
            graph.add_edge(nic_name(host, nic), f"s{host}", capacity=12.5e9)
    inside = [n for n in range(switches) if drawn.random() < 0.5] or [0]
    cut = Cut(name="drawn", hosts=inside, switches=[f"s{n}" for n in inside])
    made = Network.from_graph(graph, hosts=size, cuts={"drawn": [cut]})
    sent = drawn.integers(0, 10**6, (made.ranks, made.ranks))
    same, free = same_nics_s(made, sent), any_forwarding_s(made, sent)
    found = bounds(made, sent)
    assert max(map(float, found.values())) <= same * (1 + 1e-6)
    assert max(float(t) for n, t in found.items() if n != "port") <= free * (1 + 1e-6)


def test_hosts_that_forward_are_faster_than_a_slow_nic(tmp_path: Path) -> None:
    """Both bounds are reached: rank 1's bytes over 25 Gbps, or all over 325 Gbps."""
    made = described(tmp_path, 8, topology="rails", ranks_per_host=4, **SLOW_NIC)
    sent = np.zeros((8, 8), np.int64)
    sent[:4, 4:] = sent[4:, :4] = 6250
    bound = float(routing_bound(made, sent))
    assert bound == pytest.approx(4 * 6250 / (25 * GBPS))
    assert bound == pytest.approx(same_nics_s(made, sent))
    free = any_forwarding_s(made, sent)
    assert free == pytest.approx(16 * 6250 / (325 * GBPS))
    assert float(forwarding_bound(made, sent)) == pytest.approx(free)


def test_bytes_inside_one_host_are_bounded_by_all_links_of_a_rank() -> None:
    """A rank has two links inside its host, of which one leads over its NIC."""
    made = rail_optimized(hosts(1, 4, inside=20e9))
    sent = np.zeros((4, 4), np.int64)
    sent[0, 1] = 10**6
    assert float(routing_bound(made, sent)) == same_nics_s(made, sent) == 10**6 / 20e9
    assert float(forwarding_bound(made, sent)) == 10**6 / 40e9
    assert any_forwarding_s(made, sent) == pytest.approx(10**6 / 32.5e9)


def test_rates_of_ranks_and_links_are_in_the_bounds(tmp_path: Path) -> None:
    rates = {"rank1": "800Mbps", "leaf0 -> spine0": "80Mbps"}
    options = {"topology": "leaf-spine", "leaves": 2, "spines": 1, "rates": rates}
    made = described(tmp_path, 4, **{**options, "capacity": "8Gbps"})
    wire = np.zeros((3, 4, 4), np.int64)
    wire[0, 0, 1] = wire[1, 2, 3] = wire[2, 0, 2] = 1_000_000
    # rank 1 receives at 100 MB/s, the others send at 1 GB/s
    assert port_bound(made, wire) == pytest.approx([0.01, 0.001, 0.001])
    assert cut_bounds(made, wire)["leaf"][2] == pytest.approx(0.1)
