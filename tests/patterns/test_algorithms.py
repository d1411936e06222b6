from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.errors import LayoutError
from moetraffic.patterns.algorithms import (
    ALGORITHMS,
    binomial_broadcast,
    chunks,
    collective_matrix,
    direct_all_reduce,
    ring_all_gather,
    ring_all_reduce,
)

SIZES = st.integers(0, 10_000)
RANKS = st.integers(1, 9)


@given(size=SIZES, ranks=RANKS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_all_reduce_sends_twice_all_but_an_nth_a_rank(
    algorithm: str, size: int, ranks: int
) -> None:
    matrix = collective_matrix("all_reduce", np.full(ranks, size), algorithm)
    # no algorithm without redundancy sends less, and these send no more
    assert matrix.sum() == 2 * (ranks - 1) * size
    assert np.trace(matrix) == 0
    if size % ranks == 0:
        each = 2 * (ranks - 1) * size // ranks
        assert (matrix.sum(0) == each).all()
        assert (matrix.sum(1) == each).all()


@given(size=SIZES, ranks=RANKS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(
    algorithm: str, size: int, ranks: int
) -> None:
    whole = collective_matrix("all_reduce", np.full(ranks, size), algorithm)
    scatter = collective_matrix("reduce_scatter", np.full(ranks, size), algorithm)
    gather = collective_matrix("all_gather", chunks(size, ranks), algorithm)
    assert (whole == scatter + gather).all()
    assert scatter.sum() == gather.sum() == (ranks - 1) * size


def test_a_ring_has_one_neighbour_and_direct_all() -> None:
    ring = ring_all_reduce(800, 4)
    assert ring.tolist() == np.roll(np.diag([1200] * 4), 1, axis=1).tolist()
    assert direct_all_reduce(800, 4).tolist() == (400 * (1 - np.eye(4))).tolist()


def test_uneven_parts_travel_whole() -> None:
    parts = np.array([5, 0, 7])
    assert ring_all_gather(parts).tolist() == [[0, 12, 0], [0, 0, 5], [7, 0, 0]]


@given(size=st.integers(1, 100), ranks=RANKS, root=st.integers(0, 8))
def test_a_broadcast_reaches_everyone_once(size: int, ranks: int, root: int) -> None:
    root %= ranks
    received = binomial_broadcast(size, ranks, root).sum(axis=0)
    expected = np.full(ranks, size)
    expected[root] = 0
    assert received.tolist() == expected.tolist()


def test_unknown() -> None:
    with pytest.raises(LayoutError, match="one of ring, direct, not 'star'"):
        collective_matrix("all_reduce", np.ones(2, np.int64), "star")
    with pytest.raises(LayoutError, match="how gossip travels is not known"):
        collective_matrix("gossip", np.ones(2, np.int64), "ring")
