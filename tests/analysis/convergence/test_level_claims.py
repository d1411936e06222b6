"""Claims about movement: known processes, agreement with each other, invariants."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.analysis.claim import Outcome, claim_of
from moetraffic.analysis.convergence.level_claims import level_claims
from moetraffic.analysis.rhythm.spectral_lines import phase, strongest_period
from moetraffic.errors import AnalysisError
from tests.analysis.known_processes.loads import PROCESSES

pytestmark = pytest.mark.filterwarnings("error")


def claims(process, seed, steps=1000, **options):
    run = PROCESSES[process](np.random.default_rng(seed), steps)
    found = level_claims(run.counts, tokens=run.tokens, about="expert load", **options)
    return {claim.name: claim for claim in found}, run


def contradictions(found):
    """Name pairs of claims of one run that cannot both hold."""
    stated = {name: claim for name, claim in found.items() if claim.stated}
    change = stated["level change"].figure if "level change" in stated else -1
    begin = stated["converged"].figure if "converged" in stated else np.inf
    fades = "converged" in stated and np.isfinite(stated["converged"].low)
    wrong = []
    if "converged" in stated and "trend" in stated:
        wrong.append("converged, with a trend")
    if change > begin:
        wrong.append("converged before a level change")
    if "mean-reverting" in stated and "converged" not in stated:
        wrong.append("returns to a level, but has not converged")
    if "trend" in stated and "level change" in stated:
        wrong.append("a line with a jump")
    if stated.keys() - {"skewed", "moves", "converged"} and "moves" not in stated:
        wrong.append("does not move, but changes")
    if "moves" not in stated and fades:
        wrong.append("does not move, but has a transient")
    return wrong


@pytest.mark.parametrize(
    ("changed", "first"),
    [(slice(0), np.nan), (slice(40), 40), (slice(5, 6), 6), (slice(70, 71), None)],
    ids=["constant", "jump", "one early", "one late"],
)
def test_constant_loads(changed, first):
    """Equal rows have no noise: no warning, and they are the stable part.

    Its beginning is at most that of the last half; what is odd in that is its noise.
    """
    counts = np.tile([96, 32, 64, 64], (120, 1))
    counts[changed] = 64
    found = level_claims(counts, tokens=counts.sum(axis=1), about="expert load")
    told = {claim.name: claim for claim in found}
    assert contradictions(told) == []
    assert {"periodic", "trend", "mean-reverting"}.isdisjoint(
        name for name, claim in told.items() if claim.stated
    )
    assert told["converged"].stated
    if first is None:
        assert 0 < told["converged"].figure < 60
    else:
        assert told["converged"].figure == pytest.approx(first, nan_ok=True)
    assert told["moves"].stated == told["level change"].stated == (first == 40)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [120, 300, 1000])
@pytest.mark.parametrize("process", PROCESSES)
def test_claims_of_many_runs_agree(process, steps):
    for seed in range(20):
        assert contradictions(claims(process, [12, seed], steps=steps)[0]) == []


def test_a_step_ends_in_convergence_at_its_place():
    found, run = claims("step", 3)
    assert found["level change"].figure == run.truth["change"]
    assert found["converged"].figure == run.truth["change"]
    assert (
        found["level change"].low <= run.truth["change"] <= found["level change"].high
    )


def test_loads_that_alternate_have_period_2():
    """As of two data sources in turn; a series that overshoots has no period."""
    rng = np.random.default_rng()
    stated = []
    for steps in (64, 101, 200, 201):
        for _ in range(3):
            shares = rng.dirichlet(np.full(16, 8.0), size=2)
            counts = rng.multinomial(8192, shares[np.arange(steps) % 2])
            (claim,) = (
                c
                for c in level_claims(counts, tokens=4096, k=2, about="load")
                if c.name == "periodic"
            )
            stated.append(claim.stated)
            if claim.stated:
                assert claim.figure == 2
                assert claim.low <= 2 <= claim.high < 2.1
                assert claim.statement.endswith("every 2 iterations, alternating")
    assert sum(stated) >= 8
    overshoots = 0
    for seed in range(40):
        levels = np.zeros((200, 4))
        for t in range(1, 200):
            levels[t] = -0.7 * levels[t - 1] + rng.normal(size=4)
        found = strongest_period(levels)
        if found is not None and found.p < 0.01:
            overshoots += phase(levels, found.period, seed=seed).p < 0.01
    assert overshoots <= 3


def test_a_random_walk_has_no_stable_part():
    for process in ("slow walk", "walk", "fast walk"):
        found, _ = claims(process, 6)
        assert [name for name, claim in found.items() if claim.stated] == ["moves"]


def test_steps_without_traffic_are_left_out():
    run = PROCESSES["skewed"](np.random.default_rng(8), 200)
    counts = run.counts.astype(np.float64)
    counts[[3, 70]], counts[100] = np.nan, 0
    found = level_claims(counts, tokens=run.tokens, about="load")
    assert {(claim.used, claim.left_out) for claim in found} == {(197, 3)}
    converged = claim_of(found, "converged")
    assert converged is not None
    assert converged.stated


@pytest.mark.parametrize("shape", [(0, 4), (20, 4), (20, 1)])
def test_too_little_to_decide(shape):
    for claim in level_claims(np.ones(shape), tokens=None, about="load"):
        assert claim.outcome is Outcome.NOT_ENOUGH_DATA
        assert np.isnan(claim.figure)


def test_what_does_not_fit():
    with pytest.raises(AnalysisError, match=r"counts \[T, C\]"):
        level_claims(np.ones(40), tokens=1, about="load")
    with pytest.raises(AnalysisError, match="increase"):
        level_claims(np.ones((3, 2)), tokens=1, at=[0, 2, 1], about="load")
