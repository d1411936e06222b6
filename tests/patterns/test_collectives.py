"""Who sends whom how much, by algorithm: sums, exact cases, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.errors import LayoutError
from moetraffic.patterns import Layout, megatron_pattern, preset
from moetraffic.patterns.collectives import (
    ALGORITHMS,
    binomial_broadcast,
    chunks,
    collective_matrix,
    direct,
    gloo_parts,
    parents,
    ring,
)
from moetraffic.patterns.matrices import traffic_matrices, traffic_matrix

SIZES = st.integers(0, 10_000)
RANKS = st.integers(1, 9)


@given(size=SIZES, ranks=RANKS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_all_reduce_sends_twice_all_but_an_nth_a_rank(
    algorithm: str, size: int, ranks: int
) -> None:
    matrix = collective_matrix("all_reduce", np.full(ranks, size), algorithm)
    assert np.trace(matrix) == 0
    # no algorithm without redundancy sends less, and these send no more
    assert matrix.sum() == 2 * (ranks - 1) * size
    if size % ranks == 0 and algorithm not in ("double-tree", "gloo"):
        each = 2 * (ranks - 1) * size // ranks
        assert (matrix.sum(0) == each).all()
        assert (matrix.sum(1) == each).all()


@given(size=SIZES, ranks=RANKS)
@pytest.mark.parametrize("algorithm", ["ring", "direct", "hierarchical"])
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(
    algorithm: str, size: int, ranks: int
) -> None:
    whole = collective_matrix("all_reduce", np.full(ranks, size), algorithm)
    scatter = collective_matrix("reduce_scatter", np.full(ranks, size), algorithm)
    gather = collective_matrix("all_gather", chunks(size, ranks), algorithm)
    assert (whole == scatter + gather).all()
    assert scatter.sum() == gather.sum() == (ranks - 1) * size


@given(size=SIZES, ranks=RANKS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_rank_gets_what_it_has_not(algorithm: str, size: int, ranks: int) -> None:
    parts = chunks(size, ranks)
    gathered = collective_matrix("all_gather", parts, algorithm)
    assert (gathered.sum(0) >= size - parts).all()
    scattered = collective_matrix("reduce_scatter", np.full(ranks, size), algorithm)
    if algorithm == "gloo":  # an all-reduce of which most is thrown away
        whole = collective_matrix("all_reduce", np.full(ranks, size), algorithm)
        assert (scattered == whole).all()
    elif not ranks & (ranks - 1):
        assert gathered.sum() == scattered.sum() == (ranks - 1) * size


def test_exact_cases() -> None:
    four = np.full(4, 800)
    assert ring("all_reduce", four).tolist() == np.roll(1200 * np.eye(4), 1, 1).tolist()
    assert direct("all_reduce", four).tolist() == (400 * (1 - np.eye(4))).tolist()
    uneven = ring("all_gather", np.array([5, 0, 7]))
    assert uneven.tolist() == [[0, 12, 0], [0, 0, 5], [7, 0, 0]]
    # gloo goes the other way round, and a reduce's parts end at the root
    three = np.full(3, 1200)
    assert collective_matrix("all_reduce", three, "gloo")[0].tolist() == [0, 0, 1600]
    gathered = collective_matrix("all_gather", np.full(3, 400), "gloo")
    assert gathered[0].tolist() == [0, 800, 0]
    reduced = collective_matrix("reduce", three, "gloo", root=1)
    assert reduced.sum(0).tolist() == [800, 1600, 800]


def test_a_ring_of_many_ranks_needs_no_matrix() -> None:
    plan = Layout(dp=20_000, zero=1)
    cells = traffic_matrices(megatron_pattern(preset("gpt2-large").model, plan))["DP"]
    assert cells.nnz == 20_000
    few = megatron_pattern(preset("gpt2-large").model, replace(plan, dp=5))
    whole = traffic_matrix(few, traffic=["DP"])
    assert (whole == np.roll(np.diag(whole.sum(axis=1)), 1, axis=1)).all()


@given(size=st.integers(1, 100), ranks=RANKS, root=st.integers(0, 8))
def test_a_broadcast_reaches_everyone_once(size: int, ranks: int, root: int) -> None:
    root %= ranks
    expected = np.full(ranks, size)
    expected[root] = 0
    received = binomial_broadcast(size, ranks, root).sum(axis=0)
    assert received.tolist() == expected.tolist()


@given(ranks=st.integers(1, 70))
def test_of_two_trees_a_rank_is_inside_one(ranks: int) -> None:
    inside = []
    for tree in (0, 1):
        above = parents(ranks, tree)
        assert above.count(-1) == 1
        for rank in range(ranks):  # everyone hangs on the root
            path = set()
            while above[rank] >= 0:
                assert rank not in path
                path.add(rank)
                rank = above[rank]
        counts = [above.count(rank) for rank in range(ranks)]
        assert max(counts, default=0) <= 2
        inside.append({rank for rank in range(ranks) if counts[rank]})
    if ranks % 2 == 0 and ranks > 2:
        roots = {parents(ranks, tree).index(-1) for tree in (0, 1)}
        assert inside[0] & inside[1] <= roots


@pytest.mark.parametrize(("nodes", "each"), [(2, 4), (4, 2), (1, 8), (8, 1)])
def test_two_levels_cross_nodes_with_a_share(nodes: int, each: int) -> None:
    ranks, size = nodes * each, 960
    node = [rank // each for rank in range(ranks)]
    volumes = np.full(ranks, size)
    matrix = collective_matrix("all_reduce", volumes, "hierarchical", nodes=node)
    apart = np.not_equal.outer(node, node)
    between = matrix[apart].sum() / ranks
    assert between == pytest.approx(2 * (nodes - 1) / nodes * size / each)
    within = matrix[~apart].sum() / ranks
    assert within == pytest.approx(2 * (each - 1) / each * size)


@given(size=SIZES, ranks=RANKS, element=st.sampled_from([2, 4, 8]))
def test_parts_of_gloo_are_the_buffer(size: int, ranks: int, element: int) -> None:
    size -= size % element
    parts = gloo_parts(size, ranks, element)
    assert parts.sum() == size
    assert (parts % element == 0).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_root_has_what_it_gathers_and_scatters(algorithm: str) -> None:
    gathered = collective_matrix("gather", np.full(3, 10), algorithm, root=1)
    assert gathered.tolist() == [[0, 10, 0], [0, 0, 0], [0, 10, 0]]
    scattered = collective_matrix("scatter", np.array([0, 30, 0]), algorithm, root=1)
    assert scattered.tolist() == [[0, 0, 0], [10, 0, 10], [0, 0, 0]]
    assert not collective_matrix("barrier", np.full(4, 8), algorithm).any()


def test_what_is_refused() -> None:
    two = np.ones(2, np.int64)
    with pytest.raises(LayoutError, match=r"one of ring, direct, .*, not 'star'"):
        collective_matrix("all_reduce", two, "star")
    with pytest.raises(LayoutError, match="how gossip travels is not known"):
        collective_matrix("gossip", two, "ring")
    with pytest.raises(LayoutError, match="as many ranks on each"):
        collective_matrix("all_reduce", np.ones(3), "hierarchical", nodes=[0, 0, 1])
