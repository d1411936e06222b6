"""Link loads by hand, conservation, and what must hold for every network."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import FabricError
from moetraffic.fabric import (
    ROUTINGS,
    Hosts,
    Topology,
    block,
    cut_bounds,
    dragonfly,
    fat_tree,
    hottest,
    leaf_spine,
    link_loads,
    link_times,
    port_bound,
    rail_optimized,
    route,
    single_switch,
    torus,
)
from moetraffic.fabric.assessment import assess


def spreading(network: Topology, slots: Int64, sent: Int64) -> Float64:
    return np.squeeze(assess(network, slots, sent).ideal_s)


def hosts(number: int, ranks: int = 1, nics: int = 0) -> Hosts:
    return Hosts(number=number, ranks=ranks, nics=nics, nic_bytes_s=10.0)


def bytes_between(ranks: int, seed: int, matrices: int = 3) -> np.ndarray:
    generator = np.random.default_rng(seed)
    made = generator.integers(0, 1000, (matrices, ranks, ranks))
    return made * (generator.random(made.shape) < 0.7)


def load(topology: Topology, loads: np.ndarray, one: str, other: str) -> float:
    return loads[topology.number_of[one, other]]


def test_one_switch_carries_the_line_sums() -> None:
    made = single_switch(hosts(4))
    sent = bytes_between(4, 0)[0]
    off = sent - np.diag(np.diag(sent))
    loads = link_loads(route(made, block(4, made.hosts)), sent)
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
    loads = link_loads(route(made, block(4, made.hosts), routing="ideal"), sent)
    for spine in ("spine0", "spine1"):
        assert load(made, loads, "leaf0", spine) == 8
        assert load(made, loads, spine, "leaf1") == 8
        assert load(made, loads, "leaf1", spine) == 3
    assert load(made, loads, "host0.gpu0", "host0.nic0") == 24
    assert load(made, loads, "leaf0", "host1.nic0") == 8
    single = link_loads(route(made, block(4, made.hosts), routing="shortest"), sent)
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
        placed = block(ranks, made.hosts)
        took[ratio] = float(spreading(made, placed, sent))
        assert float(port_bound(made, placed, sent)) == 80.0  # 800 bytes at 10
        assert float(cut_bounds(made, placed, sent)["leaf"]) == pytest.approx(
            80.0 * ratio
        )
    assert took == {1: 80.0, 4: 320.0}


def test_ring_splits_what_goes_half_around() -> None:
    made = torus(hosts(4), shape=(4,))
    sent = np.zeros((4, 4), np.int64)
    sent[0, 2] = 12
    loads = link_loads(route(made, block(4, made.hosts), routing="ideal"), sent)
    for one, other in (("node0", "node1"), ("node1", "node2"), ("node3", "node2")):
        assert load(made, loads, one, other) == 6
    sent[:] = 0
    sent[0, 1] = 12
    loads = link_loads(route(made, block(4, made.hosts), routing="ideal"), sent)
    assert load(made, loads, "node0", "node1") == 12
    assert loads[made.between_switches].sum() == 12


def test_uniform_traffic_on_a_torus_loads_every_link_alike() -> None:
    """k-ary n-cube: mean distance k/4 a dimension (k even), over all pairs."""
    made = torus(hosts(64), shape=(4, 4, 4))
    sent = np.ones((64, 64))
    loads = link_loads(route(made, block(64, made.hosts), routing="ideal"), sent)
    inside = loads[made.between_switches]
    assert inside == pytest.approx(np.full(384, 64 * 64 * 3 / 384))


def test_rails_forward_inside_the_host_first() -> None:
    made = rail_optimized(hosts(2, 2))
    sent = np.zeros((4, 4), np.int64)
    sent[0, 3] = 7  # rank 1 of host 1: over rail 1, through rank 1 of host 0
    loads = link_loads(route(made, block(4, made.hosts)), sent)
    path = ["host0.gpu0", "host0.bus", "host0.gpu1", "host0.nic1", "rail1"]
    path += ["host1.nic1", "host1.gpu1"]
    taken = {made.links[e] for e in np.flatnonzero(loads)}
    assert taken == set(pairwise(path))
    own = rail_optimized(hosts(2, 2), forwarding="own")
    loads = link_loads(route(own, block(4, own.hosts)), sent)
    names = {n for e in np.flatnonzero(loads) for n in own.links[e]}
    assert "rail0" in names
    assert "rail1" in names
    assert any(n.startswith("spine") for n in names)


def test_dragonfly_takes_one_global_link() -> None:
    made = dragonfly(hosts(18), hosts_a_router=1, routers=2, global_links=4)
    steps = route(made, block(18, made.hosts), routing="ideal").matrix
    between = np.array(
        [
            b and one.split(".")[0] != other.split(".")[0]
            for (one, other), b in zip(made.links, made.between_switches, strict=True)
        ]
    )
    taken = steps[:, np.flatnonzero(between)].sum(axis=1)
    groups = np.arange(18) // 2
    assert np.allclose(taken.reshape(18, 18), groups[:, None] != groups)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_routing_conserves_bytes(network: Topology, routing: str) -> None:
    ranks = network.hosts.slots
    sent = bytes_between(ranks, 1)
    placed = np.random.default_rng(2).permutation(ranks)
    off = sent * ~np.eye(ranks, dtype=bool)
    loads = link_loads(route(network, placed, routing=routing), sent)
    for name, kind in network.graph.nodes(data="kind"):
        came = loads[:, [network.number_of[e] for e in network.graph.in_edges(name)]]
        went = loads[:, [network.number_of[e] for e in network.graph.out_edges(name)]]
        balance = went.sum(axis=1) - came.sum(axis=1)
        if kind == "slot":  # a rank sends more than it receives, or less
            slot = [
                h * network.hosts.ranks + i
                for h in range(network.hosts.number)
                for i in range(network.hosts.ranks)
                if name == f"host{h}.gpu{i}"
            ]
            (rank,) = np.flatnonzero(placed == slot[0])
            due = off[:, rank].sum(axis=1) - off[:, :, rank].sum(axis=1)
            assert balance == pytest.approx(due)
        else:
            assert balance == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_no_routing_beats_port_and_cut_bounds(network: Topology, routing: str) -> None:
    ranks = network.hosts.slots
    sent = bytes_between(ranks, 3)
    placed = block(ranks, network.hosts)
    loads = link_loads(route(network, placed, routing=routing, seed=5), sent)
    bottleneck = link_times(network, loads).max(axis=1) * (1 + 1e-9)
    assert (port_bound(network, placed, sent) <= bottleneck).all()
    for family, bound in cut_bounds(network, placed, sent).items():
        assert (bound <= bottleneck).all(), family


def test_ideal_spreading_is_the_mean_of_ecmp(network: Topology) -> None:
    ranks = network.hosts.slots
    placed = block(ranks, network.hosts)
    ideal = route(network, placed, routing="ideal").matrix.toarray()
    hashed = np.mean(
        [route(network, placed, seed=s).matrix.toarray() for s in range(60)], axis=0
    )
    spread = np.sqrt(ideal * (1 - ideal) / 60)
    assert (np.abs(hashed - ideal) <= 6 * spread + 1e-9).all()
    # so its bottleneck is not above the mean of theirs
    sent = bytes_between(ranks, 4)[0]
    worst = [
        link_times(network, link_loads(route(network, placed, seed=s), sent)).max()
        for s in range(20)
    ]
    assert float(spreading(network, placed, sent)) <= np.mean(worst) * (1 + 1e-9)


@given(seed=st.integers(0, 2**32), ratio=st.sampled_from([1, 2, 4]))
def test_no_hash_beats_ideal_spreading_between_leaves(seed: int, ratio: int) -> None:
    for made in (
        leaf_spine(hosts(8), leaves=2, oversubscription=ratio),
        fat_tree(hosts(16), k=4),
    ):
        ranks = made.hosts.slots
        sent = bytes_between(ranks, seed % 1000)
        placed = block(ranks, made.hosts)
        hashed = link_times(made, link_loads(route(made, placed, seed=seed), sent))
        ideal = spreading(made, placed, sent)
        assert (ideal <= hashed.max(axis=1) * (1 + 1e-9)).all()


def test_spreading_bounds_the_mean_of_ecmp_and_not_a_single_hash() -> None:
    """Bytes 0 to 3 have two ways on a 2x2 torus, one of them over the busy 0 to 1."""
    made = torus(hosts(4), shape=(2, 2))
    slots = block(4, made.hosts)
    sent = np.zeros((4, 4), np.int64)
    sent[0, 1] = sent[0, 3] = 8
    spread = spreading(made, slots, sent)
    times = [
        float(link_times(made, link_loads(route(made, slots, seed=seed), sent)).max())
        for seed in range(64)
    ]
    assert set(np.round(times / spread, 9)) == {round(8 / 12, 9), round(16 / 12, 9)}
    port = port_bound(made, slots, sent)
    cuts = np.max([*cut_bounds(made, slots, sent).values()], axis=0)
    assert min(times) >= max(port, cuts)


def test_hash_is_the_same_in_every_run_and_another_by_seed() -> None:
    made = leaf_spine(hosts(16), leaves=4)
    placed = block(16, made.hosts)
    one, again, other = (route(made, placed, seed=s).matrix for s in (1, 1, 2))
    assert (one != again).nnz == 0
    assert (one != other).nnz > 0


def test_more_flows_a_pair_come_closer_to_ideal() -> None:
    made = leaf_spine(hosts(16), leaves=2, oversubscription=4, spines=8)
    placed = block(16, made.hosts)
    sent = np.full((16, 16), 100)
    took = [
        np.mean(
            [
                link_times(
                    made, link_loads(route(made, placed, seed=s, flows=f), sent)
                ).max()
                for s in range(8)
            ]
        )
        for f in (1, 64)
    ]
    ideal = float(spreading(made, placed, sent))
    assert ideal <= took[1] < took[0]
    assert took[1] < 1.1 * ideal


def test_a_stack_is_its_matrices_and_hot_links_are_named() -> None:
    made = leaf_spine(hosts(8), leaves=2, oversubscription=2)
    sent = bytes_between(8, 6, matrices=5)
    routes = route(made, block(8, made.hosts))
    loads = link_loads(routes, sent)
    assert (loads == [link_loads(routes, one) for one in sent]).all()
    assert (loads == sent.reshape(5, -1) @ routes.matrix.toarray()).all()
    hot = hottest(made, loads, most=3)
    times = link_times(made, loads)
    assert hot[0].mean_busy_s == times.mean(axis=0).max()
    assert hot[0].link == made.link_name(int(times.mean(axis=0).argmax()))
    assert sum(h.iterations_as_bottleneck for h in hottest(made, loads, most=999)) >= 5
    assert hottest(made, np.zeros(len(made.links))) == []


def test_no_ranks_far_apart_need_no_network() -> None:
    made = single_switch(hosts(1, 4))
    for routing in ROUTINGS:
        loads = link_loads(
            route(made, block(4, made.hosts), routing=routing), np.ones((4, 4))
        )
        switched = [link for link, ends in enumerate(made.links) if "switch" in ends]
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
        link_loads(route(made, block(2, made.hosts), **asked), matrices)
