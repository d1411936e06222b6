"""Link loads by hand, conservation, and what must hold for every network."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import FabricError
from moetraffic.fabric import (
    ROUTINGS,
    Hosts,
    Network,
    cut_bounds,
    dragonfly,
    leaf_spine,
    link_loads,
    link_times,
    port_bound,
    rail_optimized,
    route,
    single_switch,
    torus,
    transfer_seconds,
)


def spreading(network: Network, sent: Int64) -> Float64:
    return transfer_seconds(route(network, routing="ideal"), sent)


def hosts(number: int, ranks: int = 1, nics: int = 0) -> Hosts:
    return Hosts(number=number, ranks=ranks, nics=nics, nic_bytes_s=10.0)


def bytes_between(ranks: int, seed: int, matrices: int = 3) -> np.ndarray:
    generator = np.random.default_rng(seed)
    made = generator.integers(0, 1000, (matrices, ranks, ranks))
    return made * (generator.random(made.shape) < 0.7)


def load(network: Network, loads: np.ndarray, one: str, other: str) -> float:
    return loads[network.link(f"{one} -> {other}")]


def test_one_switch_carries_the_line_sums() -> None:
    made = single_switch(hosts(4))
    sent = bytes_between(4, 0)[0]
    off = sent - np.diag(np.diag(sent))
    loads = link_loads(route(made), sent)
    assert loads.dtype == np.int64
    for host in range(4):
        assert load(made, loads, f"host{host}.nic0", "switch") == off[host].sum()
        assert load(made, loads, "switch", f"host{host}.nic0") == off[:, host].sum()


def test_leaf_spine_by_hand() -> None:
    """Two leaves of two hosts: host 0 sends 8 to each other, host 3 sends 6 to it."""
    made = leaf_spine(hosts(4), leaves=2)
    sent = np.zeros((4, 4), np.int64)
    sent[0] = [5, 8, 8, 8]
    sent[3, 0] = 6
    loads = link_loads(route(made, routing="ideal"), sent)
    for spine in ("spine0", "spine1"):
        assert load(made, loads, "leaf0", spine) == 8
        assert load(made, loads, spine, "leaf1") == 8
        assert load(made, loads, "leaf1", spine) == 3
    assert load(made, loads, "host0.gpu0", "host0.nic0") == 24
    assert load(made, loads, "leaf0", "host1.nic0") == 8
    single = link_loads(route(made, routing="shortest"), sent)
    assert load(made, single, "leaf0", "spine0") == 16
    assert load(made, single, "leaf0", "spine1") == 0


def test_oversubscription_of_four_makes_uniform_traffic_four_times_slower() -> None:
    """All-to-all between two leaves: the uplinks take 4 times as long as at 1:1."""
    ranks = 16
    sent = np.full((ranks, ranks), 100)
    sent[:8, :8] = sent[8:, 8:] = 0  # all of it between the leaves
    took = {}
    for ratio in (1, 4):
        made = leaf_spine(hosts(ranks), leaves=2, oversubscription=ratio)
        took[ratio] = float(spreading(made, sent))
        assert float(port_bound(made, sent)) == 80.0  # 800 bytes at 10
        assert float(cut_bounds(made, sent)["leaf"]) == pytest.approx(80.0 * ratio)
    assert took == {1: 80.0, 4: 320.0}


def test_ring_splits_what_goes_half_around() -> None:
    made = torus(hosts(4), shape=(4,))
    sent = np.zeros((4, 4), np.int64)
    sent[0, 2] = 12
    loads = link_loads(route(made, routing="ideal"), sent)
    for one, other in (("node0", "node1"), ("node1", "node2"), ("node3", "node2")):
        assert load(made, loads, one, other) == 6
    sent[:] = 0
    sent[0, 1] = 12
    loads = link_loads(route(made, routing="ideal"), sent)
    assert load(made, loads, "node0", "node1") == 12
    assert loads[made.between_switches].sum() == 12


def test_uniform_traffic_on_a_torus_loads_every_link_alike() -> None:
    """k-ary n-cube: mean distance k/4 a dimension (k even), over all pairs."""
    made = torus(hosts(64), shape=(4, 4, 4))
    sent = np.ones((64, 64))
    loads = link_loads(route(made, routing="ideal"), sent)
    inside = loads[made.between_switches]
    assert inside == pytest.approx(np.full(384, 64 * 64 * 3 / 384))


def test_rails_forward_inside_the_host_first() -> None:
    made = rail_optimized(hosts(2, 2))
    sent = np.zeros((4, 4), np.int64)
    sent[0, 3] = 7  # rank 1 of host 1: over rail 1, through rank 1 of host 0
    loads = link_loads(route(made), sent)
    path = ["host0.gpu0", "host0.bus", "host0.gpu1", "host0.nic1", "rail1"]
    path += ["host1.nic1", "host1.gpu1"]
    taken = {made.links[e] for e in np.flatnonzero(loads)}
    assert taken == {f"{a} -> {b}" for a, b in pairwise(path)}
    own = rail_optimized(hosts(2, 2), forwarding="own")
    loads = link_loads(route(own), sent)
    names = " ".join(own.links[link] for link in np.flatnonzero(loads))
    assert all(name in names for name in ("rail0", "rail1", "spine"))


def test_dragonfly_takes_one_global_link() -> None:
    made = dragonfly(hosts(18), hosts_a_router=1, routers=2, global_links=4)
    steps = route(made, routing="ideal").shares
    groups_of = [[end[:6] for end in link.split(" -> ")] for link in made.links]
    apart = np.array([one != other for one, other in groups_of])
    between = made.between_switches & apart
    taken = steps[:, np.flatnonzero(between)].sum(axis=1)
    groups = np.arange(18) // 2
    assert np.allclose(taken.reshape(18, 18), groups[:, None] != groups)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_routing_conserves_bytes(network: Network, routing: str) -> None:
    ranks = network.hosts.slots
    sent = bytes_between(ranks, 1)
    placed = network.placed(np.random.default_rng(2).permutation(ranks))
    off = sent * ~np.eye(ranks, dtype=bool)
    loads = link_loads(route(placed, routing=routing), sent)
    balance = np.zeros((len(sent), len(network.nodes)))
    for links, sign in ((network.tail, 1), (network.head, -1)):
        np.add.at(balance, (slice(None), links), sign * loads)
    due = np.zeros_like(balance)  # a rank sends more than it receives, or less
    due[:, network.slot_nodes[placed.slots]] = off.sum(axis=2) - off.sum(axis=1)
    np.testing.assert_allclose(balance, due, atol=1e-6)


def test_loads_are_those_of_an_independent_even_split(network: Network) -> None:
    """Bytes walk node by node over networkx's shortest paths between switches."""
    sent = bytes_between(network.ranks, 7)[0]
    loads = link_loads(route(network, routing="ideal"), sent)
    graph = network.to_graph()
    switches = nx.subgraph_view(
        graph, filter_node=lambda node: graph.nodes[node]["kind"] == "switch"
    )
    _, crosses, entry, leaving = network.ends
    expected = dict.fromkeys(network.links, 0.0)
    for pair, one, other in zip(crosses, entry, leaving, strict=True):
        source, target = (network.nodes[network.first_switch + n] for n in (one, other))
        paths = nx.all_shortest_paths(switches, source, target, weight="cost")
        following = nx.DiGraph([step for path in paths for step in pairwise(path)])
        held = {source: float(sent.ravel()[pair])}
        for node in nx.topological_sort(following):
            for after in following.successors(node):
                share = held[node] / following.out_degree(node)
                expected[f"{node} -> {after}"] += share
                held[after] = held.get(after, 0.0) + share
    between = np.flatnonzero(network.between_switches)
    want = [expected[network.links[link]] for link in between]
    np.testing.assert_allclose(loads[between], want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_no_routing_beats_port_and_cut_bounds(network: Network, routing: str) -> None:
    ranks = network.hosts.slots
    sent = bytes_between(ranks, 3)
    loads = link_loads(route(network, routing=routing, seed=5), sent)
    bottleneck = link_times(network, loads).max(axis=1) * (1 + 1e-9)
    assert (port_bound(network, sent) <= bottleneck).all()
    for family, bound in cut_bounds(network, sent).items():
        assert (bound <= bottleneck).all(), family


def test_ideal_spreading_is_the_mean_of_ecmp(network: Network) -> None:
    ranks = network.hosts.slots
    ideal = route(network, routing="ideal").shares.toarray()
    hashed = np.mean(
        [route(network, seed=s).shares.toarray() for s in range(60)], axis=0
    )
    spread = np.sqrt(ideal * (1 - ideal) / 60)
    assert (np.abs(hashed - ideal) <= 6 * spread + 1e-9).all()
    # so its bottleneck is not above the mean of theirs
    sent = bytes_between(ranks, 4)[0]
    worst = [
        link_times(network, link_loads(route(network, seed=s), sent)).max()
        for s in range(20)
    ]
    assert float(spreading(network, sent)) <= np.mean(worst) * (1 + 1e-9)


def test_hash_is_the_same_in_every_run_and_another_by_seed() -> None:
    made = leaf_spine(hosts(16), leaves=4)
    one, again, other = (route(made, seed=s).shares for s in (1, 1, 2))
    assert (one != again).nnz == 0
    assert (one != other).nnz > 0


def test_more_flows_a_pair_come_closer_to_ideal() -> None:
    made = leaf_spine(hosts(16), leaves=2, oversubscription=4, spines=8)
    sent = np.full((16, 16), 100)
    took = [
        np.mean(
            [
                link_times(made, link_loads(route(made, seed=s, flows=f), sent)).max()
                for s in range(8)
            ]
        )
        for f in (1, 64)
    ]
    ideal = float(spreading(made, sent))
    assert ideal <= took[1] < took[0]
    assert took[1] < 1.1 * ideal


def test_a_stack_is_its_matrices() -> None:
    made = leaf_spine(hosts(8), leaves=2, oversubscription=2)
    sent = bytes_between(8, 6, matrices=5)
    routes = route(made)
    loads = link_loads(routes, sent)
    assert (loads == [link_loads(routes, one) for one in sent]).all()
    assert (loads == sent.reshape(5, -1) @ routes.shares.toarray()).all()
    longest = link_times(made, loads).max(axis=1)
    assert (transfer_seconds(routes, sent) == longest).all()


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_network_with_a_failed_spine_is_one_without_it(routing: str) -> None:
    two = leaf_spine(hosts(8), leaves=2, spines=2)
    links = [link for link in two.links if "spine1" in link]
    sent = bytes_between(8, 8)
    failed = two.failed(links)
    loads = link_loads(route(failed, routing=routing), sent)
    assert not loads[:, [two.link(link) for link in links]].any()
    one = leaf_spine(hosts(8), leaves=2, spines=1, oversubscription=2)
    for link in one.links:
        same = link_loads(route(one, routing=routing), sent)[:, one.link(link)]
        np.testing.assert_allclose(loads[:, two.link(link)], same)
    for family, bound in cut_bounds(one, sent).items():
        np.testing.assert_allclose(cut_bounds(failed, sent)[family], bound)


def test_a_torus_goes_around_a_failed_link_in_its_direction() -> None:
    made = torus(hosts(4), shape=(4,)).failed(["node0 -> node1"])
    shares = route(made, routing="shortest").shares.toarray()
    taken = {
        pair: {
            made.links[link]
            for link in np.flatnonzero(shares[pair[0] * 4 + pair[1]])
            if made.between_switches[link]
        }
        for pair in ((0, 1), (1, 0))
    }
    around = {"node0 -> node3", "node3 -> node2", "node2 -> node1"}
    assert taken == {(0, 1): around, (1, 0): {"node1 -> node0"}}


def test_ranks_without_a_path_are_refused() -> None:
    made = leaf_spine(hosts(4), leaves=2, spines=1)
    with pytest.raises(FabricError, match="from leaf0 to leaf1: give a rate above 0"):
        route(made.failed(["leaf0 -> spine0"]))
    with pytest.raises(FabricError, match="from rank 0 to rank 1"):
        route(made.failed(["leaf0 -> host1.nic0"]))
    idle = made.placed([0, 2]).failed(["leaf0 -> host1.nic0"])
    assert float(port_bound(idle, [[0, 10], [0, 0]])) == 1.0


def test_no_ranks_far_apart_need_no_network() -> None:
    made = single_switch(hosts(1, 4))
    for routing in ROUTINGS:
        loads = link_loads(route(made, routing=routing), np.ones((4, 4)))
        switched = ["switch" in link for link in made.links]
        assert loads[switched].sum() == 0
        assert loads.sum() == 2 * 12  # over the bus


@pytest.mark.parametrize(
    ("asked", "matrices", "said"),
    [
        ({"routing": "valiant"}, np.ones((2, 2)), "ecmp, ideal, shortest"),
        ({"routing": "ideal", "flows": 2}, np.ones((2, 2)), "with ecmp alone"),
        ({}, np.ones((3, 3)), "between 2 ranks"),
        ({}, -np.ones((2, 2)), "0 or more"),
        ({}, np.full((2, 2), np.nan), "0 or more"),
    ],
)
def test_impossible_routes(
    asked: dict[str, object], matrices: np.ndarray, said: str
) -> None:
    made = single_switch(hosts(2))
    with pytest.raises(FabricError, match=said):
        link_loads(route(made, **asked), matrices)
