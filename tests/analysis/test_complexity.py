"""Trace complexity of sources with known entropy rate, and packets of matrices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from moetraffic import Trace
from moetraffic.analysis.complexity import (
    Packets,
    complexity,
    complexity_tables,
    packets,
    shuffled,
)
from moetraffic.analysis.exchange import exchanges
from moetraffic.data import path

pytestmark = pytest.mark.filterwarnings("error")


def measured(pair: Any, pairs: int, windows: int = 8, seed: int = 0) -> dict[str, Any]:
    pair = np.asarray(pair, np.int64)
    borders = np.linspace(0, len(pair), windows + 1).astype(np.int64)
    return complexity(Packets(pair=pair, borders=borders, pairs=pairs), seed=seed)


def chain(number: int, pairs: int, stay: float, seed: int):
    """A fixed successor with probability ``stay``, else a Zipf draw; h, H in bits."""
    rng = np.random.default_rng(seed)
    p = rng.permutation(1 / np.arange(1, pairs + 1))
    p /= p.sum()
    after = rng.permutation(pairs)
    fresh, kept = rng.choice(pairs, number, p=p), rng.random(number) < stay
    out, state = np.empty(number, np.int64), 0
    for index in range(number):
        state = after[state] if kept[index] else fresh[index]
        out[index] = state
    matrix = np.tile((1 - stay) * p, (pairs, 1))
    matrix[np.arange(pairs), after] += stay
    still = np.full(pairs, 1 / pairs)
    for _ in range(200):
        still = still @ matrix
    rate = -(still[:, None] * matrix * np.log2(matrix)).sum()
    return out, rate, -(still * np.log2(still)).sum()


def test_independent_packets_have_no_structure_in_time():
    pair, _, entropy = chain(40_000, 56, 0.0, 0)
    row = measured(pair, 56)
    assert row["temporal"] == pytest.approx(1, abs=0.005)
    assert row["temporal_corrected"] == pytest.approx(1, abs=0.05)
    limit = entropy / np.log2(56)
    assert row["non_temporal"] == pytest.approx(limit, rel=0.02)
    assert row["non_temporal_limit"] == pytest.approx(limit, rel=0.01)
    assert row["trace_complexity"] == row["temporal"] * row["non_temporal"]


def test_the_uniform_trace_is_the_most_complex():
    row = measured(np.random.default_rng(0).integers(0, 56, 30_000), 56)
    for name in ("temporal", "non_temporal", "trace_complexity"):
        assert row[name] == pytest.approx(1, abs=0.01)
    assert row["uniform_bits"] == pytest.approx(np.log2(56), rel=0.05)


def test_a_permutation_sent_again_and_again():
    # 8 ranks, one destination each: NT -> log2 8 / log2 56 = .516586, T -> 0
    row = measured(np.tile(np.arange(8) * 7, 6000), 56)
    assert row["temporal"] < 0.01
    assert row["non_temporal"] == pytest.approx(0.516586, rel=0.04)
    assert row["non_temporal_limit"] == pytest.approx(0.516586, abs=1e-4)
    assert row["markov_bits"] == 0


@pytest.mark.parametrize(
    ("flips", "rate", "entropy"),
    [((0.1, 0.1), 0.468996, 1.0), ((0.1, 0.3), 0.572069, 0.811278)],
)
def test_two_pairs_that_alternate(flips, rate, entropy):
    state, pair = 0, []
    for u in np.random.default_rng(1).random(30_000).tolist():
        state ^= u < flips[state]
        pair.append(state)
    row, limit = measured(pair, 2), rate / entropy
    assert row["markov_bits"] == pytest.approx(rate, rel=0.03)
    assert row["temporal_corrected"] == pytest.approx(limit, rel=0.05)
    assert limit < row["temporal"] < 1.25 * limit


def test_a_chain_has_its_rate_over_its_entropy():
    pair, rate, entropy = chain(100_000, 56, 0.7, 2)
    limit = rate / entropy
    short, long = (measured(pair[:n], 56) for n in (8_000, 100_000))
    assert short["temporal"] > long["temporal"] > limit
    assert long["temporal"] == pytest.approx(1.22 * limit, rel=0.05)  # what LZMA lacks
    assert long["temporal_corrected"] == pytest.approx(limit, rel=0.05)
    assert long["non_temporal"] == pytest.approx(entropy / np.log2(56), rel=0.02)


def test_skewed_pairs_of_many_ranks_are_encoded_as_pairs():
    # two bytes a pair: read as source and destination, NT would be 10% too large
    p = np.random.default_rng(3).permutation(1 / np.arange(1, 4033))
    share = p / p.sum()
    pair = np.random.default_rng(4).choice(4032, 100_000, p=share)
    limit = -(share * np.log2(share)).sum() / np.log2(4032)
    row = measured(pair, 4032)
    assert row["non_temporal"] == pytest.approx(limit, rel=0.03)
    assert row["temporal"] == pytest.approx(1, abs=0.01)


def test_rare_transitions_correct_nothing():
    pair, rate, entropy = chain(10_000, 992, 0.5, 5)
    row = measured(pair, 992)
    assert np.isnan([row["temporal_corrected"], row["markov_bits"]]).all()
    assert rate / entropy < row["temporal"] < 1


def test_more_than_65536_pairs_are_distinguished():
    pair = np.random.default_rng(6).integers(0, 1024 * 1023, 20_000)
    row = measured(pair, 1024 * 1023)
    assert row["temporal"] == pytest.approx(1, abs=0.02)
    assert row["uniform_bits"] > 18
    assert measured(np.tile(pair[:100], 200), 1024 * 1023)["temporal"] < 0.1


def runs(rng: np.random.Generator) -> np.ndarray:
    """Runs of one pair of random length: T well below 1."""
    lengths = rng.geometric(0.1, 2500)
    return np.repeat(rng.integers(0, 12, 2500), lengths)[:16_000]


def test_intervals_hold_what_longer_runs_of_the_source_show():
    rng = np.random.default_rng(7)
    drawn = [measured(runs(rng), 12, seed=n) for n in range(16)]
    truth = np.mean([row["temporal"] for row in drawn])
    held = [row["temporal_low"] <= truth <= row["temporal_high"] for row in drawn]
    assert np.mean(held) >= 0.8
    assert all(row["temporal_high"] - row["temporal_low"] < truth for row in drawn)


def test_the_seed_decides_and_nothing_else():
    pair = runs(np.random.default_rng(9))
    row = measured(pair, 12, seed=3)
    np.testing.assert_equal(row, measured(pair, 12, seed=3))
    other = measured(pair, 12, seed=4)
    assert other["temporal"] == pytest.approx(row["temporal"], rel=0.02)


@pytest.mark.parametrize(("number", "pairs"), [(0, 0), (0, 12), (1, 12), (50, 1)])
def test_too_few_packets_or_pairs_are_nan(number, pairs):
    row = measured(np.zeros(number), pairs, windows=1)
    counts = ("packets", "pairs", "packet_size", "whole", "non_temporal_limit")
    assert np.isnan([v for name, v in row.items() if name not in counts]).all()


def test_one_pair_alone_has_no_entropy():
    row = measured(np.full(5000, 3), 12)
    assert row["non_temporal"] < 0.02
    assert row["entropy_bits"] == 0


def test_a_run_has_the_entropy_of_its_bytes() -> None:
    with Trace.open(path("run-top2-unbalanced.h5")) as trace:
        exchange = exchanges(trace, [], iterations=range(40))[0]
        (row,) = complexity_tables(trace, exchange, [])["complexity"]
        wire = trace.wire(exchange.sent).sum(axis=0)
    off = wire[~np.eye(len(wire), dtype=bool)]
    share = off / off.sum()
    limit = -(share * np.log2(share)).sum() / np.log2(len(off))
    assert (row["layer"], row["pairs"]) == (exchange.layer, len(off))
    assert row["non_temporal_limit"] == pytest.approx(limit, rel=0.02)
    assert row["non_temporal"] == pytest.approx(limit, rel=0.03)


# ---- packets -------------------------------------------------------------------------


def drawn(cells: np.ndarray, **options: Any) -> Packets:
    return packets(lambda a, b: cells[a:b], number=len(cells), **options)


@given(
    hnp.arrays(
        np.int64,
        st.tuples(st.integers(1, 6), st.integers(1, 5)),
        elements=st.integers(0, 4),
    )
)
def test_packets_are_shuffled_within_their_matrix_alone(counts):
    parts = np.split(shuffled(counts), np.cumsum(counts.sum(axis=1))[:-1])
    for part, wanted in zip(parts, counts, strict=True):
        assert np.bincount(part, minlength=counts.shape[1]).tolist() == wanted.tolist()


@given(st.integers(1, 20), st.integers(1, 9), st.integers(1, 200), st.integers(1, 5))
def test_short_series_are_taken_whole(pairs, number, seed, windows):
    cells = np.random.default_rng(seed).integers(0, 5, (number, pairs))
    sequence = drawn(cells, packet_size=1, windows=windows)
    assert (sequence.whole, sequence.pairs) == (True, pairs)
    parts = np.split(sequence.pair, np.cumsum(cells.sum(axis=1)))
    for part, sent in zip(parts, cells, strict=False):
        assert np.bincount(part, minlength=pairs).tolist() == sent.tolist()
    assert sequence.borders[-1] == len(sequence.pair) == cells.sum()


def test_a_budget_takes_contiguous_windows_of_the_whole_run():
    # matrix t sends one packet of pair t: the sequence shows where it was taken
    cells = np.eye(100, dtype=np.int64)
    sequence = drawn(cells, packet_size=1, budget=20, windows=4)
    wanted = [t + n for t in (0, 25, 50, 75) for n in range(5)]
    assert sequence.pair.tolist() == wanted
    assert sequence.borders.tolist() == [0, 5, 10, 15, 20]
    assert not sequence.whole


def test_a_reader_is_read_in_blocks():
    cells = np.random.default_rng(0).integers(0, 9, (300, 12))
    asked = []

    def read(first, last):
        asked.append(last - first)
        return cells[first:last]

    packets(read, number=300, packet_size=1, budget=500, windows=3)
    assert max(asked) <= 64
    assert sum(asked) < 300


def test_a_large_packet_size_keeps_the_shares():
    cells = np.tile([700, 200, 100], (400, 1))
    sequence = drawn(cells, packet_size=4096, windows=1)
    assert sequence.pair.size == pytest.approx(400 * 1000 / 4096, abs=3)
    share = np.bincount(sequence.pair) / sequence.pair.size
    assert share == pytest.approx([0.7, 0.2, 0.1], abs=0.02)


def test_the_packet_size_lets_windows_hold_many_matrices():
    cells = np.random.default_rng(1).integers(0, 1 << 20, (2000, 56))
    sequence = drawn(cells)
    assert sequence.packet_size > 1
    assert 1 << 15 < sequence.pair.size <= 1 << 16
    assert drawn(cells >> 18, budget=1 << 22).packet_size == 1


@pytest.mark.parametrize("shape", [(0, 12), (1, 12), (5, 0), (5, 12)])
def test_nothing_is_drawn_of_nothing(shape):
    sequence = drawn(np.zeros(shape, np.int64))
    assert (sequence.pair.size, sequence.whole) == (0, True)


def test_cells_are_pairs_of_ranks_or_of_rank_and_expert():
    with Trace.open(path("golden.h5")) as trace:
        exchange = exchanges(trace, [])[0]
        ranks = len(exchange.ranks)
        (row,) = complexity_tables(trace, exchange, [])["complexity"]
        assert row["pairs"] == ranks * (ranks - 1)
        routed = replace(exchange, sent=exchange.sent[:0])
        (row,) = complexity_tables(trace, routed, [])["complexity"]
        assert row["pairs"] == ranks * exchange.experts
