"""Trace complexity: sources of known entropy and entropy rate, and a real run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from moetraffic.analysis.network.complexity import complexity
from moetraffic.analysis.network.packets import Packets, packets
from moetraffic.errors import AnalysisError
from moetraffic.trace import ALL_TO_ALL, Trace

pytestmark = pytest.mark.filterwarnings("error")


def sequence(pair: np.ndarray, pairs: int, windows: int = 8) -> Packets:
    return Packets(
        pair=pair,
        borders=np.linspace(0, len(pair), windows + 1).astype(np.int64),
        pairs=pairs,
        order="random",
        packet_size=1,
        matrices=len(pair),
        whole=True,
    )


def chain(number: int, pairs: int, stay: float, seed: int):
    """A fixed successor with probability ``stay``, else a Zipf draw; h, H in bits."""
    rng = np.random.default_rng(seed)
    p = rng.permutation(1 / np.arange(1, pairs + 1))
    p /= p.sum()
    after = rng.permutation(pairs)
    fresh, kept = rng.choice(pairs, number, p=p), rng.random(number) < stay
    out, state = np.empty(number, np.int64), 0
    for at in range(number):
        state = after[state] if kept[at] else fresh[at]
        out[at] = state
    matrix = np.tile((1 - stay) * p, (pairs, 1))
    matrix[np.arange(pairs), after] += stay
    still = np.full(pairs, 1 / pairs)
    for _ in range(200):
        still = still @ matrix
    rate = -(still[:, None] * matrix * np.log2(matrix)).sum()
    return out, rate, -(still * np.log2(still)).sum()


def test_independent_packets_have_no_structure_in_time():
    pair, _, entropy = chain(40_000, 56, 0.0, 0)
    found = complexity(sequence(pair, 56))
    assert found.temporal == pytest.approx(1, abs=0.005)
    assert found.temporal_corrected == pytest.approx(1, abs=0.05)
    limit = entropy / np.log2(56)
    assert found.non_temporal == pytest.approx(limit, rel=0.02)
    assert found.non_temporal_limit == pytest.approx(limit, rel=0.01)
    assert found.trace_complexity == pytest.approx(found.temporal * found.non_temporal)


def test_the_uniform_trace_is_the_most_complex():
    pair = np.random.default_rng(0).integers(0, 56, 30_000)
    found = complexity(sequence(pair, 56))
    for value in (found.temporal, found.non_temporal, found.trace_complexity):
        assert value == pytest.approx(1, abs=0.01)
    assert found.uniform_bits == pytest.approx(np.log2(56), rel=0.05)


def test_a_permutation_sent_again_and_again():
    # 8 ranks, one destination each: NT -> log2 8 / log2 56 = .516586, T -> 0
    pair = np.tile(np.arange(8) * 7, 6000)
    found = complexity(sequence(pair, 56))
    assert found.temporal < 0.01
    assert found.non_temporal == pytest.approx(0.516586, rel=0.04)
    assert found.non_temporal_limit == pytest.approx(0.516586, abs=1e-4)
    assert found.markov_bits == 0


@pytest.mark.parametrize(
    ("flips", "rate"), [((0.1, 0.1), 0.468996), ((0.1, 0.3), None)]
)
def test_two_pairs_that_take_turns(flips, rate):
    rng = np.random.default_rng(1)
    state, pair = 0, []
    for u in rng.random(30_000).tolist():
        state ^= u < flips[state]
        pair.append(state)
    found = complexity(sequence(np.array(pair), 2))
    entropy = 1.0 if rate else 0.811278
    limit = (rate or 0.572069) / entropy
    assert found.markov_bits == pytest.approx(limit * entropy, rel=0.03)
    assert found.temporal_corrected == pytest.approx(limit, rel=0.05)
    assert limit < found.temporal < 1.25 * limit


def test_a_chains_temporal_complexity_comes_near_its_rate_over_its_entropy():
    pair, rate, entropy = chain(100_000, 56, 0.7, 2)
    limit = rate / entropy
    short, long = (complexity(sequence(pair[:n], 56)) for n in (8_000, 100_000))
    assert short.temporal > long.temporal > limit
    assert long.temporal == pytest.approx(1.22 * limit, rel=0.05)  # what LZMA lacks
    assert long.temporal_corrected == pytest.approx(limit, rel=0.05)
    assert long.non_temporal == pytest.approx(entropy / np.log2(56), rel=0.02)


def test_skewed_pairs_of_many_ranks_are_seen_as_pairs():
    # two bytes a pair: read as source and destination, NT would be 10 % too large
    p = np.random.default_rng(3).permutation(1 / np.arange(1, 4033))
    pair = np.random.default_rng(4).choice(4032, 100_000, p=p / p.sum())
    share = np.sort(p / p.sum())
    limit = -(share * np.log2(share)).sum() / np.log2(4032)
    found = complexity(sequence(pair, 4032))
    assert found.non_temporal == pytest.approx(limit, rel=0.03)
    assert found.temporal == pytest.approx(1, abs=0.01)


def test_transitions_too_rare_to_count_correct_nothing():
    pair, rate, entropy = chain(10_000, 992, 0.5, 5)
    found = complexity(sequence(pair, 992))
    assert np.isnan(found.temporal_corrected)
    assert np.isnan(found.markov_bits)
    assert rate / entropy < found.temporal < 1


def test_more_than_65536_pairs_are_told_apart():
    pair = np.random.default_rng(6).integers(0, 1024 * 1023, 20_000)
    found = complexity(sequence(pair, 1024 * 1023))
    assert found.temporal == pytest.approx(1, abs=0.02)
    assert found.uniform_bits > 18
    again = complexity(sequence(np.tile(pair[:100], 200), 1024 * 1023))
    assert again.temporal < 0.1


def test_intervals_hold_what_longer_runs_of_the_source_show():
    rng = np.random.default_rng(7)
    many = [complexity(sequence(_runs(rng), 12), seed=n) for n in range(24)]
    truth = np.mean([c.temporal for c in many])
    held = [c.temporal_interval[0] <= truth <= c.temporal_interval[1] for c in many]
    assert np.mean(held) >= 0.8
    assert all(c.temporal_interval[1] - c.temporal_interval[0] < truth for c in many)


@pytest.mark.slow
def test_the_intervals_coverage():
    rng = np.random.default_rng(8)
    many = [complexity(sequence(_runs(rng), 12), seed=n) for n in range(200)]
    for name in ("temporal", "non_temporal", "trace_complexity"):
        truth = np.mean([getattr(c, name) for c in many])
        ends = np.array([getattr(c, f"{name}_interval") for c in many])
        held = (ends[:, 0] <= truth) & (truth <= ends[:, 1])
        assert held.mean() >= 0.92  # conservative where NT is near 1


@pytest.mark.slow
@pytest.mark.parametrize("stay", [0.0, 0.5, 0.9])
def test_the_distance_from_the_limits_by_length(stay):
    pair, rate, entropy = chain(400_000, 56, stay, 9)
    limit = rate / entropy
    found = [complexity(sequence(pair[:n], 56)) for n in (25_000, 100_000, 400_000)]
    off = [abs(c.temporal_corrected / limit - 1) for c in found]
    assert max(off[1:]) < 0.05
    assert all(c.temporal >= limit * 0.99 for c in found)
    assert found[0].temporal - found[-1].temporal > -0.005


def _runs(rng: np.random.Generator) -> np.ndarray:
    """Runs of one pair of random length: T well below 1."""
    lengths = rng.geometric(0.1, 2500)
    return np.repeat(rng.integers(0, 12, 2500), lengths)[:16_000]


def test_the_seed_decides_and_nothing_else():
    pair = _runs(np.random.default_rng(9))
    one, same = (asdict(complexity(sequence(pair, 12), seed=3)) for _ in range(2))
    np.testing.assert_equal(one, same)
    other = complexity(sequence(pair, 12), seed=4)
    assert other.temporal == pytest.approx(one["temporal"], rel=0.02)
    assert 0 <= one["shuffle_spread"] < 0.02


@pytest.mark.parametrize(("number", "pairs"), [(0, 0), (0, 12), (1, 12), (50, 1)])
def test_what_cannot_be_told_is_nan(number, pairs):
    found = complexity(sequence(np.zeros(number, np.int64), pairs, windows=1))
    assert np.isnan([found.temporal, found.non_temporal, found.trace_complexity]).all()
    assert np.isnan(found.temporal_interval).all()
    assert np.isnan([found.temporal_corrected, found.entropy_bits]).all()


def test_one_pair_alone_has_no_complexity_in_pairs():
    found = complexity(sequence(np.full(5000, 3), 12))
    assert found.non_temporal < 0.02
    assert found.entropy_bits == 0
    assert np.isnan(found.temporal_corrected) or found.temporal_corrected <= 1.5


def test_what_is_asked_wrongly_is_refused():
    pair = np.arange(4)
    with pytest.raises(AnalysisError, match="numbered from 0"):
        complexity(sequence(pair, 3))


def test_a_real_run_has_the_entropy_of_its_bytes(captured: Path) -> None:
    with Trace.open(captured) as trace:
        found = trace.find(operation=ALL_TO_ALL, phase="dispatch", layer=1)
        found = found[np.argsort(trace.occurrences.sequence[found])]
        one = complexity(
            packets(
                lambda a, b: trace.wire(found[a:b]), number=len(found), budget=10_000
            )
        )
        wire = trace.wire(found).sum(axis=0)[~np.eye(4, dtype=bool)]
    share = wire / wire.sum()
    limit = -(share * np.log2(share)).sum() / np.log2(12)
    assert 0.9 < one.temporal < 1.05
    assert one.pairs == 12
    assert one.whole
    assert one.non_temporal_limit == pytest.approx(limit, rel=0.01)
    assert one.non_temporal == pytest.approx(limit, rel=0.02)
