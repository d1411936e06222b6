"""Counts, capacities and cuts of the networks, against what is published of them."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import networkx as nx
import numpy as np
import pytest

from moetraffic.errors import FabricError
from moetraffic.fabric import (
    Cut,
    Hosts,
    Network,
    dragonfly,
    explicit,
    fat_tree,
    leaf_spine,
    link_loads,
    placed,
    rail_optimized,
    route,
    torus,
    transfer_seconds,
)


def bisection_bytes_s(network: Network) -> float:
    return min(min(network.crossing(cut)) for cut in network.cuts["bisection"])


def hosts(number: int, ranks: int = 1, nics: int = 0) -> Hosts:
    return Hosts(number=number, ranks=ranks, nics=nics, nic_bytes_s=1.0)


@pytest.mark.parametrize("k", [2, 4, 6, 8])
def test_fat_tree_counts_of_al_fares(k: int) -> None:
    made = fat_tree(hosts(k**3 // 4), k=k)
    assert made.is_switch.sum() == 5 * k**2 // 4
    # two layers of cables, each as many as hosts, both ways
    assert made.between_switches.sum() == 2 * 2 * k**3 // 4
    degrees = np.bincount(made.tail)[made.is_switch]
    assert (degrees == k).all()
    assert bisection_bytes_s(made) == k**3 // 8  # full


@pytest.mark.parametrize(
    ("shape", "links", "bisection"),
    [
        ((4, 4), 64, 8),  # 2 k^(n-1) each way
        ((6, 4), 96, 8),  # across the long dimension
        ((4, 4, 4), 384, 32),
        ((8,), 16, 2),
        ((2, 2, 2), 24, 4),  # a hypercube: one cable between two
        ((1, 4), 8, 2),
    ],
)
def test_torus_counts(shape: tuple[int, ...], links: int, bisection: int) -> None:
    made = torus(hosts(prod(shape)), shape=shape)
    assert made.between_switches.sum() == links
    assert bisection_bytes_s(made) == bisection


def test_leaf_spine_is_oversubscribed_exactly() -> None:
    made = leaf_spine(hosts(8, 4), leaves=2, oversubscription=4)
    for leaf in made.cuts["leaf"]:
        assert made.crossing(leaf) == (4.0, 4.0)  # 16 NICs
    assert bisection_bytes_s(made) == 4.0
    assert sum(name.startswith("spine") for name in made.nodes) == 4


def test_dragonfly_groups_are_all_joined_once() -> None:
    # the largest of its kind: g = a h + 1
    made = dragonfly(hosts(2 * 4 * 9), hosts_a_router=2, routers=4, global_links=2)
    joined = [
        tuple(end.split(".")[0] for end in link.split(" -> "))
        for link, between in zip(made.links, made.between_switches, strict=True)
        if between
    ]
    assert len({pair for pair in joined if pair[0] != pair[1]}) == 9 * 8
    degrees = np.bincount(made.tail)[made.is_switch]
    assert (degrees == 2 + 3 + 2).all()  # p hosts, a - 1 fellows, h global links
    few = dragonfly(hosts(12), hosts_a_router=2, routers=2, global_links=2)
    for group in few.cuts["group"]:
        assert few.crossing(group) == (4.0, 4.0)  # all its global links


def test_rails_join_the_nics_of_one_number() -> None:
    made = rail_optimized(hosts(4, 8))
    for rail in range(8):
        below = {f"host{h}.nic{rail} -> rail{rail}" for h in range(4)}
        assert {n for n in made.links if n.endswith(f" -> rail{rail}")} >= below


def test_cuts_are_as_narrow_as_what_they_part(network: Network) -> None:
    """No cut's capacity is below the minimum cut of the ranks that it parts."""
    for cuts in network.cuts.values():
        for cut in cuts[:2]:
            graph = network.to_graph()
            for host in range(network.hosts.number):
                for at in range(network.hosts.ranks):
                    if host in cut.hosts:
                        graph.add_edge("from", f"host{host}.gpu{at}")
                    else:
                        graph.add_edge(f"host{host}.gpu{at}", "to")
            least, _ = nx.minimum_cut(graph, "from", "to")
            out, back = network.crossing(cut)
            assert out == back
            assert least <= out * (1 + 1e-9)


def test_graphs_go_in_and_out(network: Network) -> None:
    graph = network.to_graph()
    again = Network.from_graph(
        *(graph,), hosts=network.hosts, forwarding=network.forwarding
    )
    assert again.links == network.links
    assert (again.capacity == network.capacity).all()
    sent = np.random.default_rng(0).integers(0, 9, (network.ranks, network.ranks))
    for routing in ("ecmp", "ideal"):
        loads = [link_loads(route(n, routing=routing), sent) for n in (network, again)]
        np.testing.assert_allclose(*loads)
    lengths = dict(nx.all_pairs_shortest_path_length(graph))
    assert all(len(reached) == len(network.nodes) for reached in lengths.values())


def test_an_own_graph_is_routed_along_its_shortest_path() -> None:
    """A triangle of switches whose third side is slow, but direct."""
    graph = nx.Graph()
    for number in range(3):
        graph.add_edge(f"host{number}.nic0", f"s{number}", capacity=1e9)
    graph.add_edge("s0", "s1", capacity=1e9)
    graph.add_edge("s1", "s2", capacity=1e9)
    graph.add_edge("s0", "s2", capacity=1e8)
    inside = {"own": [Cut(name="s0", hosts=[0], switches=["s0"])]}
    made = Network.from_graph(graph, hosts=hosts(3), cuts=inside)
    sent = np.zeros((3, 3))
    sent[0, 2] = 1e9
    assert float(transfer_seconds(route(made), sent)) == 10.0
    around = Network.from_graph(
        nx.Graph([*graph.edges(data=True), ("s0", "s2", {"capacity": 1e8, "cost": 3})]),
        hosts=hosts(3),
    )
    assert float(transfer_seconds(route(around), sent)) == 1.0
    assert made.crossing(made.cuts["own"][0]) == (1.1e9, 1.1e9)
    graph.remove_node("host2.nic0")
    with pytest.raises(FabricError, match="each NIC is on one switch"):
        Network.from_graph(graph, hosts=hosts(3))
    graph.add_edge("host2.nic0", "s2")
    with pytest.raises(FabricError, match="set its attribute capacity"):
        Network.from_graph(graph, hosts=hosts(3))


def test_placements() -> None:
    two = hosts(2, 3)
    assert placed("strided", 4, two).tolist() == [0, 3, 1, 4]
    with pytest.raises(FabricError, match="room for 6, but there are 7 ranks"):
        placed("strided", 7, two)
    with pytest.raises(FabricError, match="name each at most once"):
        explicit([0, 0], two)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: fat_tree(hosts(4), k=3), "even number of ports"),
        (lambda: fat_tree(hosts(17), k=4), "takes 16 NICs"),
        (lambda: torus(hosts(6), shape=(2, 2)), "product is 6"),
        (lambda: leaf_spine(hosts(6), leaves=4), "choose a divisor of 6"),
        (lambda: leaf_spine(hosts(6), leaves=2, oversubscription=0), "positive"),
        (
            lambda: leaf_spine(hosts(1), leaves=2),
            "1 hosts for 2 leaves",
        ),
        (lambda: hosts(2, 4, 3), "choose a divisor of 4"),
        (lambda: hosts(0), "at least 1"),
        (lambda: Hosts(number=1, nic_bytes_s=float("nan")), "positive and finite"),
        (
            lambda: dragonfly(hosts(8), hosts_a_router=1, routers=2, global_links=1),
            "reach 2 other groups",
        ),
        (lambda: rail_optimized(hosts(2), forwarding="nearest"), "own, rail"),
        (lambda: leaf_spine(hosts(2), leaves=2).link("leaf0 -> leaf1"), "leaf0 -> sp"),
    ],
)
def test_impossible_networks(make: Callable[[], object], said: str) -> None:
    with pytest.raises(FabricError, match=said):
        make()
