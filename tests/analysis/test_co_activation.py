"""Co-activation: exact cases, invariants, and its claim on known processes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moetraffic.analysis.claim import Claim, Outcome
from moetraffic.analysis.co_activation import (
    CoActivation,
    PairCounts,
    co_activation_claim,
    pair_counts,
)
from moetraffic.analysis.noise.pair_probabilities import pair_probabilities
from tests.analysis.known_processes.routings import independent


@given(st.integers(3, 8), st.data())
@settings(max_examples=10)
def test_pair_probabilities_are_those_of_all_sets(experts: int, data) -> None:
    k = data.draw(st.integers(1, experts - 1))
    seed = data.draw(st.integers(0, 99))
    weights = np.exp(np.random.default_rng(seed).normal(0, 1, experts))
    both, total = np.zeros((experts, experts)), 0.0
    for chosen in itertools.combinations(range(experts), k):
        weight = float(np.prod(weights[list(chosen)]))
        both[np.ix_(chosen, chosen)] += weight
        total += weight
    both /= total
    loads = np.diag(both).copy()
    np.fill_diagonal(both, 0)
    found = pair_probabilities(loads, k)
    assert found == pytest.approx(both, abs=1e-6)
    assert found.sum(axis=1) == pytest.approx((k - 1) * loads, abs=1e-6)


def test_experts_that_all_or_no_tokens_have() -> None:
    found = pair_probabilities([1, 0.5, 0.5, 0], 2)
    assert found[0].tolist() == [0, 0.5, 0.5, 0]
    assert found[1, 2] == 0
    assert pair_probabilities([1, 1, 1], 3)[0].tolist() == [0, 1, 1]


@given(st.integers(2, 20), st.integers(1, 5), st.integers(0, 99))
@settings(max_examples=10)
def test_rows_add_up_to_the_load(experts: int, k: int, seed: int) -> None:
    k = min(k, experts)
    mask = independent(np.random.default_rng(seed), 30, np.zeros(experts), k)
    both = pair_counts(mask)
    load = mask.sum(axis=0)
    assert (both == both.T).all()
    assert np.diag(both).tolist() == load.tolist()
    assert (both.sum(axis=1) - load).tolist() == ((k - 1) * load).tolist()


def lifts(masks: list[np.ndarray]) -> CoActivation:
    pairs = PairCounts(masks[0].shape[1])
    for first in range(0, len(masks), max(1, len(masks) // 16)):
        pairs.add(masks[first : first + max(1, len(masks) // 16)])
    found = pairs.conclude()
    assert found is not None
    return found


def claim(masks: list[np.ndarray]) -> Claim:
    return co_activation_claim(lifts(masks), about="tokens")


def test_a_known_routing_has_known_lifts() -> None:
    # 0 with 1 and 2 with 3, never otherwise: 16 of 40 tokens, and 24
    mask = np.zeros((40, 4), bool)
    mask[:16, :2] = mask[16:, 2:] = True
    found = lifts([mask] * 12)
    assert found.tokens == 480
    assert {pair.experts: pair.tokens for pair in found.pairs[:2]} == {
        (0, 1): 12 * 16,
        (2, 3): 12 * 24,
    }
    # loads .4 .4 .6 .6: of two distinct experts with weights 1 1 w w, the load of the
    # first is (1 + 2w)/(1 + 4w + w^2)
    weight = 2.0
    for _ in range(99):
        weight *= (1 + 2 * weight) / (1 + 4 * weight + weight**2) / 0.4
    total = 1 + 4 * weight + weight**2
    for pair, probability in (((0, 1), 1 / total), ((2, 3), weight**2 / total)):
        load = mask[:, list(pair)].sum(axis=0)
        both = int((mask[:, pair[0]] & mask[:, pair[1]]).sum())
        share = load / 40
        expected = probability / share.prod() * (load.prod() - both) / 39
        (mine,) = [p for p in found.pairs if p.experts == pair]
        assert mine.expected == pytest.approx(12 * expected, rel=1e-5)
        assert mine.lift == pytest.approx(both / expected, rel=1e-5)
    assert found.coupled == 2
    stated = claim([mask] * 12)
    assert stated.stated
    assert "chosen together" in stated.sentence


def test_tokens_of_one_expert_have_no_pairs() -> None:
    pairs = PairCounts(4)
    pairs.add([np.eye(4, dtype=bool)])
    assert pairs.conclude() is None


def test_few_tokens_are_not_enough() -> None:
    rng = np.random.default_rng(1)
    short = claim([independent(rng, 8, np.zeros(32), 2) for _ in range(12)])
    assert short.outcome is Outcome.NOT_ENOUGH_DATA
    assert short.needs > short.used == 96
    brief = claim([independent(rng, 9000, np.zeros(8), 2) for _ in range(5)])
    assert brief.outcome is Outcome.NOT_ENOUGH_DATA
