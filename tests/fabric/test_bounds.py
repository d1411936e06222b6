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
from moetraffic.fabric import Hosts, Topology, leaf_spine, rail_optimized, torus
from moetraffic.fabric.assessment import assess
from moetraffic.report.results import fabric as report

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


def slot_of(network: Topology, slot: int) -> tuple[str, str, str, str]:
    """Name a slot, its bus, its NIC and the switch of the NIC."""
    host, at = divmod(slot, network.hosts.ranks)
    nic = f"host{host}.nic{at * network.hosts.nics // network.hosts.ranks}"
    (switch,) = {*network.graph.successors(nic)} & {*network.switches}
    return f"host{host}.gpu{at}", f"host{host}.bus", nic, switch


def any_forwarding_s(network: Topology, slots: Int64, sent: Int64) -> float:
    """Compute the least time over all routes, also through hosts, seconds."""
    names = [slot_of(network, slot)[0] for slot in slots.tolist()]
    flows = {
        (names[one], names[other]): float(sent[one, other])
        for one, other in np.argwhere(sent)
        if one != other
    }
    return least_s(network.graph, flows, np.zeros(len(network.links)))


def same_nics_s(network: Topology, slots: Int64, sent: Int64) -> float:
    """Compute the least time over all routes between switches, seconds.

    Bytes leave by the NIC of the sending rank or, with rail forwarding, by that of the
    receiver's rail, and enter by that of the receiver.
    """
    fixed = dict.fromkeys(network.links, 0.0)
    flows: dict[tuple[str, str], float] = {}
    for one, other in np.argwhere(sent):
        if one == other:
            continue
        first, last = int(slots[one]), int(slots[other])
        gpu, bus, nic, switch = slot_of(network, first)
        target, target_bus, target_nic, leaving = slot_of(network, last)
        path = [gpu, bus, target]
        if bus != target_bus:
            ranks = network.hosts.ranks
            path = [gpu, nic, switch]
            fellow = slot_of(network, first // ranks * ranks + last % ranks)
            if network.forwarding == "rail" and fellow[2] != nic:
                path = [gpu, bus, fellow[0], fellow[2], fellow[3]]
            pair = path[-1], leaving
            flows[pair] = flows.get(pair, 0.0) + float(sent[one, other])
            for link in ((leaving, target_nic), (target_nic, target)):
                fixed[link] += float(sent[one, other])
        for link in pairwise(path):
            fixed[link] += float(sent[one, other])
    flows = {pair: number for pair, number in flows.items() if pair[0] != pair[1]}
    at_hosts = np.array([*fixed.values()])
    ends = at_hosts / np.array(network.capacity)
    switches = network.graph.subgraph(network.switches)
    if not flows:
        return float(ends.max())
    within = least_s(switches, flows, np.zeros(switches.number_of_edges()))
    return max(within, float(ends.max()))


def described(folder: Path, ranks: int, **said: Any) -> tuple[Topology, Int64]:
    path = folder / "network.json"
    path.write_text(json.dumps({"capacity": "100Gbps", **said}))
    network = load_fabric(str(path), ranks)
    return network.topology, network.slots


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
def placed(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Topology, Int64]:
    if request.param in FILES:
        return described(tmp_path, 8, **FILES[request.param])
    made = NETWORKS[request.param]()
    return made, np.random.default_rng(1).permutation(made.hosts.slots)


@pytest.mark.parametrize("seed", range(3))
def test_no_routing_of_the_class_that_a_bound_names_is_faster(
    placed: tuple[Topology, Int64], seed: int
) -> None:
    network, slots = placed
    drawn = np.random.default_rng(seed)
    shape = len(slots), len(slots)
    sent = drawn.integers(0, 10**6, shape) * (drawn.random(shape) < [1, 0.5, 0.1][seed])
    found = assess(network, slots, sent)
    same, free = same_nics_s(network, slots, sent), any_forwarding_s(*placed, sent)
    assert free <= same * (1 + 1e-6)
    assert float(found.bound_s[0]) <= same * (1 + 1e-6)
    assert float(found.forwarding_bound_s[0]) <= free * (1 + 1e-6)
    assert found.bottleneck_s[0] >= same * (1 - 1e-6)
    if network.hosts.ranks == 1:  # no other rank or NIC to send by
        assert found.bound_s[0] == pytest.approx(found.forwarding_bound_s[0])


def test_hosts_that_forward_are_faster_than_a_slow_nic(tmp_path: Path) -> None:
    """Both bounds are reached: rank 1's bytes over 25 Gbps, or all over 325 Gbps."""
    network, slots = described(
        tmp_path, 8, topology="rails", ranks_per_host=4, **SLOW_NIC
    )
    sent = np.zeros((8, 8), np.int64)
    sent[:4, 4:] = sent[4:, :4] = 6250
    found = assess(network, slots, sent)
    assert found.bound_s[0] == pytest.approx(4 * 6250 / (25 * GBPS))
    assert found.bound_s[0] == pytest.approx(same_nics_s(network, slots, sent))
    free = any_forwarding_s(network, slots, sent)
    assert free == pytest.approx(16 * 6250 / (325 * GBPS))
    assert found.forwarding_bound_s[0] == pytest.approx(free)
    frame = found.to_frame()
    assert (frame["bound_s"] == found.bound_s[0]).all()
    assert (frame["forwarding_bound_s"] == found.forwarding_bound_s[0]).all()
    line = report.sentences(found)[1]
    assert (
        "1.00 times the lower bound of any routing between the same NICs (8 us, the "
        "largest bound: bottleneck port of a host), 3.25 times the lower bound of any "
        "routing and forwarding (2.46 us, the largest bound: cut around a host (host0)"
    ) in line
    data = report.as_dict(found, [0])
    assert data["same_nics_lower_bound_s"][0] == found.bound_s[0]
    assert data["any_forwarding_lower_bound_s"][0] == found.forwarding_bound_s[0]
    rows = dict(row[:2] for row in report.tables(found)[1].rows)
    of = "largest lower bound of each iteration, any routing"
    assert rows[f"{of} between the same NICs"] == found.bound_s[0]
    assert rows[f"{of} and forwarding"] == found.forwarding_bound_s[0]


def test_bytes_inside_one_host_are_bounded_by_all_links_of_a_rank() -> None:
    """A rank has two links inside its host, of which one leads over its NIC."""
    network = rail_optimized(hosts(1, 4, inside=20e9))
    sent = np.zeros((4, 4), np.int64)
    sent[0, 1] = 10**6
    slots = np.arange(4)
    found = assess(network, slots, sent)
    assert found.bound_s[0] == same_nics_s(network, slots, sent) == 10**6 / 20e9
    assert found.forwarding_bound_s[0] == 10**6 / 40e9
    assert any_forwarding_s(network, slots, sent) == pytest.approx(10**6 / 32.5e9)
    names = [name for name, _ in report.times_of(found)]
    assert "lower bound: all links of a rank" in names
