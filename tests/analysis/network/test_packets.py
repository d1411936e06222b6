"""Packets: matrices are written out whole; windows are contiguous stretches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from moetraffic.analysis.network.packets import Packets, expand, packets
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")

counts_of = hnp.arrays(
    np.int64,
    st.tuples(st.integers(1, 6), st.integers(1, 5)),
    elements=st.integers(0, 4),
)


def drawn(matrices: np.ndarray, **options) -> Packets:
    return packets(lambda a, b: matrices[a:b], number=len(matrices), **options)


@given(counts_of)
def test_packets_are_shuffled_within_their_matrix_alone(counts):
    sequence = expand(counts)
    ends = np.cumsum(counts.sum(axis=1))[:-1]
    for part, wanted in zip(np.split(sequence, ends), counts, strict=True):
        assert np.bincount(part, minlength=counts.shape[1]).tolist() == wanted.tolist()


def test_the_seed_decides_the_order():
    counts = np.array([[4, 2, 1]])
    orders = [tuple(expand(counts, seed=s)) for s in range(4)]
    assert len(set(orders)) > 1
    assert orders[2] == tuple(expand(counts, seed=2))


@given(st.integers(2, 5), st.integers(1, 9), st.integers(1, 200), st.integers(1, 5))
def test_short_series_are_taken_whole(ranks, number, seed, windows):
    rng = np.random.default_rng(seed)
    matrices = rng.integers(0, 5, (number, ranks, ranks))
    found = drawn(matrices, packet_size=1, windows=windows)
    off = matrices[:, ~np.eye(ranks, dtype=bool)]
    assert found.whole
    assert found.pairs == ranks * (ranks - 1)
    assert found.matrices == number
    ends = np.cumsum(off.sum(axis=1))
    for part, sent in zip(np.split(found.pair, ends), off, strict=False):
        assert np.bincount(part, minlength=found.pairs).tolist() == sent.tolist()
    assert found.borders[-1] == len(found.pair) == off.sum()


def test_a_budget_takes_contiguous_windows_from_all_over():
    # matrix t sends one packet of pair t: the sequence tells where it was taken
    matrices = np.zeros((100, 11, 11), np.int64)
    off = np.flatnonzero(~np.eye(11, dtype=bool).ravel())
    matrices.reshape(100, -1)[np.arange(100), off[:100]] = 1
    found = drawn(matrices, packet_size=1, budget=20, windows=4)
    assert found.pair.tolist() == [t + n for t in (0, 25, 50, 75) for n in range(5)]
    assert found.borders.tolist() == [0, 5, 10, 15, 20]
    assert not found.whole
    assert found.matrices == 20


def test_a_reader_is_read_in_blocks_and_gives_the_same():
    matrices = np.random.default_rng(0).integers(0, 9, (300, 4, 4))
    asked = []

    def read(first, last):
        asked.append((first, last))
        return matrices[first:last]

    by_reader = packets(read, number=300, packet_size=1, budget=500, windows=3)
    assert (
        by_reader.pair.tolist()
        == drawn(matrices, packet_size=1, budget=500, windows=3).pair.tolist()
    )
    assert max(last - first for first, last in asked) <= 64
    assert sum(last - first for first, last in asked) < 300


def test_a_large_quantum_keeps_the_shares():
    matrices = np.zeros((400, 3, 3), np.int64)
    matrices[:, 0, 1], matrices[:, 0, 2], matrices[:, 1, 0] = 700, 200, 100
    found = drawn(matrices, packet_size=4096, windows=1)
    assert found.pair.size == pytest.approx(400 * 1000 / 4096, abs=3)
    share = np.bincount(found.pair, minlength=6) / found.pair.size
    assert share[:3] == pytest.approx([0.7, 0.2, 0.1], abs=0.02)


def test_unless_told_the_quantum_lets_windows_hold_many_matrices():
    matrices = np.random.default_rng(1).integers(0, 1 << 20, (2000, 8, 8))
    found = drawn(matrices, budget=1 << 16)
    assert found.packet_size > 1
    assert found.matrices >= 8 * 40
    assert found.pair.size <= 1 << 16
    assert drawn(matrices >> 18, budget=1 << 22).packet_size == 1


def test_demand_counts_every_expert_and_the_diagonal_where_asked():
    assert drawn(np.ones((2, 4, 8), np.int64)).pairs == 32
    assert drawn(np.ones((2, 4, 4), np.int64)).pairs == 12
    assert drawn(np.ones((2, 4, 4), np.int64), diagonal=True).pairs == 16


@pytest.mark.parametrize("shape", [(0, 4, 4), (1, 4, 4), (5, 1, 1), (5, 4, 4)])
def test_of_nothing_nothing_is_drawn(shape):
    found = drawn(np.zeros(shape, np.int64))
    assert found.pair.size == 0
    assert found.whole


def test_what_makes_no_packets_is_refused():
    with pytest.raises(AnalysisError, match="from 0 on"):
        drawn(np.full((1, 2, 2), -1))
    with pytest.raises(AnalysisError, match="are integers"):
        drawn(np.ones((1, 2, 2)))
    with pytest.raises(AnalysisError, match="at least 1"):
        drawn(np.ones((1, 2, 2), np.int64), budget=0)
