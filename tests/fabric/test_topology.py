"""Counts, capacities and cuts of the networks, against what is published of them."""

from __future__ import annotations

import networkx as nx
import pytest

from moetraffic.errors import FabricError
from moetraffic.fabric import (
    Hosts,
    Topology,
    bisection_bytes_s,
    dragonfly,
    explicit,
    fat_tree,
    leaf_spine,
    rail_optimized,
    strided,
    torus,
)


def hosts(number: int, ranks: int = 1, nics: int = 0) -> Hosts:
    return Hosts(number=number, ranks=ranks, nics=nics, nic_bytes_s=1.0)


def switch_links(topology: Topology) -> int:
    return int(topology.between_switches.sum())


@pytest.mark.parametrize("k", [2, 4, 6, 8])
def test_fat_tree_counts_of_al_fares(k: int) -> None:
    made = fat_tree(hosts(k**3 // 4), k=k)
    assert len(made.switches) == 5 * k**2 // 4
    # two layers of cables, each as many as hosts, both ways
    assert switch_links(made) == 2 * 2 * k**3 // 4
    assert all(made.graph.out_degree(s) == k for s in made.switches)
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
    number = 1
    for length in shape:
        number *= length
    made = torus(hosts(number), shape=shape)
    assert switch_links(made) == links
    assert bisection_bytes_s(made) == bisection


def test_leaf_spine_is_oversubscribed_exactly() -> None:
    made = leaf_spine(hosts(8, 4), leaves=2, oversubscription=4)
    for leaf in made.cuts["leaf"]:
        down = len(leaf.hosts) * 4 * 1.0
        assert made.crossing(leaf) == (down / 4, down / 4)
    assert bisection_bytes_s(made) == 4.0
    assert len([s for s in made.switches if s.startswith("spine")]) == 4


def test_dragonfly_groups_are_all_joined_once() -> None:
    # the largest of its kind: g = a h + 1
    made = dragonfly(hosts(2 * 4 * 9), hosts_a_router=2, routers=4, global_links=2)
    groups = {
        (a.split(".")[0], b.split(".")[0])
        for (a, b), between in zip(made.links, made.between_switches, strict=True)
        if between and a.split(".")[0] != b.split(".")[0]
    }
    assert len(groups) == 9 * 8
    for switch in made.switches:  # p hosts, a - 1 fellows, h global links
        assert made.graph.out_degree(switch) == 2 + 3 + 2


def test_dragonfly_with_few_groups_uses_all_its_global_links() -> None:
    made = dragonfly(hosts(12), hosts_a_router=2, routers=2, global_links=2)
    for group in made.cuts["group"]:
        assert made.crossing(group) == (4.0, 4.0)


def test_rails_join_the_nics_of_one_number() -> None:
    made = rail_optimized(hosts(4, 8))
    for rail in range(8):
        below = {a for a, b in made.links if b == f"rail{rail}" and "nic" in a}
        assert below == {f"host{h}.nic{rail}" for h in range(4)}


def test_cuts_are_as_narrow_as_what_they_part(network: Topology) -> None:
    """No cut's capacity is below the minimum cut of the ranks that it parts."""
    for cuts in network.cuts.values():
        for cut in cuts[:2]:
            graph = nx.DiGraph(network.graph)
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


def test_placements() -> None:
    two = hosts(2, 3)
    assert strided(4, two).tolist() == [0, 3, 1, 4]
    with pytest.raises(FabricError, match="room for 6, but there are 7 ranks"):
        strided(7, two)
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
            "there is 1 host for 2 leaves: choose 1,",
        ),
        (lambda: hosts(2, 4, 3), "choose a divisor of 4"),
        (lambda: hosts(0), "at least 1"),
        (lambda: Hosts(number=1, nic_bytes_s=float("nan")), "positive and finite"),
        (
            lambda: dragonfly(hosts(8), hosts_a_router=1, routers=2, global_links=1),
            "reach 2 other groups",
        ),
        (lambda: rail_optimized(hosts(2), forwarding="nearest"), "own, rail"),
    ],
)
def test_impossible_networks(make: object, said: str) -> None:
    with pytest.raises(FabricError, match=said):
        make()  # type: ignore[operator]
