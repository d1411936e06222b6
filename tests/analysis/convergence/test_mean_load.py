"""Skew of the mean load: exact cases, intervals, and experts that expect the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
