"""Skew of the mean load: exact cases, intervals, and experts that expect the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import lfilter

from moetraffic.analysis.claim import Claim, Outcome
from moetraffic.analysis.convergence.level_claims import level_claims
from moetraffic.analysis.convergence.mean_load import SHORTEST, skewed
from tests.analysis.known_processes.loads import PROCESSES

EQUAL = ("redrawn", "documents", "short swings", "long swings", "even regimes")
MOVING = ("slow walk", "walk", "fast walk", "accumulation", "drifting hot set")
UNEQUAL = ("skewed", "autoregression", "step", "transient", "period")


def skew(counts, **options) -> Claim:
    found = skewed(counts, about="load", **options)
    assert (found.name, found.about) == ("skewed", "load")
    assert found.used + found.left_out == len(counts)
    return found


def of_process(process: str, seed: int, steps: int = 300) -> Claim:
    run = PROCESSES[process](np.random.default_rng([5, seed]), steps)
    found = level_claims(run.counts, tokens=run.tokens, k=1, about="load")
    assert found[0].name == "skewed"
    return found[0]


@pytest.mark.parametrize("process", [*EQUAL, *MOVING])
def test_experts_that_expect_the_same_are_not_skewed(process) -> None:
    """However their loads move; benchmarks/claims.py has the rates."""
    assert sum(of_process(process, seed).stated for seed in range(3)) == 0


@pytest.mark.parametrize(
    ("process", "known"), [("fast walk", True), ("balanced", False)]
)
def test_a_random_walk_is_named_as_the_reason_why_skew_is_not_tested(
    process: str, known: bool
) -> None:
    """However long the run is; of a balanced router it is tested."""
    claims = [of_process(process, seed) for seed in range(6)]
    unseen = [c for c in claims if c.outcome is Outcome.NO_EVIDENCE]
    assert len(unseen) >= 2
    assert all(("random walk" in c.untested) == known for c in unseen)
    assert {c.result for c in unseen} == {"not tested" if known else "no evidence"}


def test_a_mean_within_white_noise_is_no_evidence_even_if_a_walk_is_possible() -> None:
    """A balanced run whose 95% region of motions happens to have a random walk."""
    draw = np.random.default_rng(7).multinomial(1024, [1 / 8] * 8, (300, 2, 4))
    claim = skew(draw[:, 0].sum(axis=1))
    assert (claim.result, claim.figure) == ("no evidence", 0)


def test_no_number_of_iterations_is_promised_of_random_walks() -> None:
    for seed in range(20):
        rng = np.random.default_rng([seed, 300, 77])
        shares = np.exp(np.cumsum(rng.normal(0, 0.05, (300, 8)), axis=0))
        shares /= shares.sum(axis=1, keepdims=True)
        claim = skew(rng.multinomial(2048, shares))
        assert (claim.outcome, claim.needs) == (Outcome.NO_EVIDENCE, 0)
        assert "random walk" in claim.untested


@pytest.mark.parametrize("process", UNEQUAL)
def test_experts_that_expect_more_than_others_are_skewed(process) -> None:
    assert all(of_process(process, seed).stated for seed in range(3))


def test_the_interval_holds_the_probabilities_that_were_drawn() -> None:
    share = np.random.default_rng(5).dirichlet(np.full(16, 4.0))
    cv = float(share.std() / share.mean())
    within = 0
    for seed in range(60):
        claim = skew(np.random.default_rng(seed).multinomial(300, share, 40))
        within += claim.low <= cv <= claim.high
    assert 52 <= within <= 60


def test_the_interval_holds_for_loads_that_move() -> None:
    """The mean of an autoregression scatters more than sampling noise does."""
    within, level = 0, np.linspace(-0.4, 0.4, 8)
    drawn = np.exp(level + np.random.default_rng(1).normal(0, 0.25, (100_000, 8)))
    expected = (drawn / drawn.sum(axis=1, keepdims=True)).mean(axis=0)
    for seed in range(60):
        rng = np.random.default_rng(seed)
        states = lfilter([1], [1, -0.8], rng.normal(0, 0.15, (500, 8)), axis=0)[200:]
        shares = np.exp(level + states)
        shares /= shares.sum(axis=1, keepdims=True)
        claim = skew(rng.multinomial(2000, shares))
        assert claim.stated
        within += claim.low <= expected.std() / expected.mean() <= claim.high
    assert 52 <= within <= 60


def test_loads_that_are_uneven_in_turn_are_not_skewed() -> None:
    """What one expert has more in one iteration, another has in the next."""
    counts = np.full((128, 8), 100)
    counts[np.arange(128), np.arange(128) % 8] = 300
    assert not skew(counts).stated
    counts[:, 0] += 100
    assert skew(counts).stated
    assert "(expert 0)" in skew(counts).statement
    of_ranks = skewed(counts, about="bytes received", item="rank").statement
    assert "loads of ranks differ" in of_ranks
    assert "(rank 0)" in of_ranks


def test_loads_that_never_vary_are_skewed_unless_they_are_even() -> None:
    assert not skew(np.full((40, 4), 7)).stated
    claim = skew(np.tile([40, 20, 20, 20], (40, 1)))
    assert claim.stated
    assert claim.low == claim.figure == claim.high == pytest.approx(12**0.5 / 10)


def test_only_the_iterations_of_the_stable_level_are_used() -> None:
    shares = np.where(np.arange(300)[:, None] < 100, [0.7, 0.1, 0.1, 0.1], 0.25)
    counts = np.random.default_rng(4).multinomial(4000, shares)
    found = level_claims(counts, tokens=4000, about="load")[0]
    assert not found.stated
    assert 180 < found.used <= 200
    assert f"of iterations from {found.left_out} on" in found.flags[0]


def test_a_mean_that_motion_may_explain_has_this_reason() -> None:
    claims = [of_process("regime switch", seed) for seed in range(6)]
    few = [c for c in claims if c.outcome is Outcome.NOT_ENOUGH_DATA]
    assert few
    assert all(c.needs > c.used for c in few)
    assert all("motion may explain the uneven mean" in c.sentence for c in few)


def test_short_runs_and_choices_of_all_experts_are_not_tested() -> None:
    counts = np.tile([40, 20, 20, 20], (SHORTEST, 1)).astype(float)
    assert skew(counts).stated
    counts[3] = np.nan
    few = skew(counts)
    assert (few.outcome, few.needs) == (Outcome.NOT_ENOUGH_DATA, SHORTEST + 1)
    all_of_them = skew(np.ones((SHORTEST, 4)), k=4)
    assert all_of_them.untested == "every token goes to every expert"


@given(st.permutations(range(8)))
def test_skew_does_not_depend_on_the_order_of_experts_or_of_time(order) -> None:
    counts = np.random.default_rng(1).multinomial(200, np.arange(1, 9) / 36, 60)
    one = skew(counts)
    for other in (skew(counts[:, order]), skew(counts[::-1])):
        assert (one.p, one.figure) == pytest.approx((other.p, other.figure))
