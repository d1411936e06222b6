"""Claims about skew: exact cases, what chance makes of them, and known processes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, chisquare

from moetraffic.analysis.claim import Claim, Outcome, claim_of
from moetraffic.analysis.noise.null_model import NullModel
from moetraffic.analysis.noise.skew_claims import skew_claims
from moetraffic.errors import AnalysisError
from tests.analysis.known_processes.loads import PROCESSES

NAMES = ("imbalanced", "hot set retained", "collapsed")


def claims_of(counts, *, tokens, k=1, seed=0) -> dict[str, Claim]:
    found = skew_claims(counts, tokens=tokens, k=k, about="load", seed=seed)
    assert tuple(each.name for each in found) == NAMES
    return {each.name: each for each in found}


def test_of_top_1_the_imbalance_of_iterations_is_pearson_s_statistic() -> None:
    counts = np.array([[30, 20, 25, 25], [33, 17, 20, 30]])
    found = claims_of(counts, tokens=100)["imbalanced"]
    sums = sum(chisquare(row).statistic for row in counts)
    assert found.p == pytest.approx(chi2.sf(sums, 6), rel=1e-12)


@pytest.mark.parametrize(("experts", "k", "tokens"), [(8, 2, 500), (8, 1, 2)])
def test_p_values_of_a_balanced_router_are_uniform(experts, k, tokens) -> None:
    """Of imbalance, with many tokens and with few."""
    drawn = NullModel(experts=experts, k=k).draw([tokens] * 5, draws=200, seed=9)
    p = [claims_of(each, tokens=tokens, k=k)["imbalanced"].p for each in drawn]
    # those of few tokens have few values, of which the lowest sums are all but 1
    for level in (0.1, 0.5, 0.9) if tokens > 100 else (0.01, 0.1, 0.5):
        assert np.mean(np.array(p) <= level) <= level + 3.3 * np.sqrt(
            level * (1 - level) / 200
        )
    if tokens > 100:
        assert np.mean(p) == pytest.approx(0.5, abs=0.07)


@pytest.mark.slow
def test_imbalance_needs_a_copy_for_each_expert() -> None:
    """With fewer, two tokens with the same expert would be significant too often."""
    one = np.zeros((1, 256), np.int64)
    one[0, :7] = [2, 1, 1, 1, 1, 1, 1]
    claim = claims_of(one, tokens=8)["imbalanced"]
    assert (claim.outcome, claim.needs) == (Outcome.NOT_ENOUGH_DATA, 32)
    assert claims_of(np.repeat(one, 32, axis=0), tokens=8)["imbalanced"].stated


def test_the_interval_of_the_imbalance_holds_the_true_probabilities() -> None:
    rng = np.random.default_rng(5)
    share = rng.dirichlet(np.full(16, 4.0))
    cv = float(share.std() / share.mean())
    within = 0
    for seed in range(60):
        counts = np.random.default_rng(seed).multinomial(300, share, 10)
        claim = claims_of(counts, tokens=300)["imbalanced"]
        within += claim.low <= cv <= claim.high
    assert 52 <= within <= 60


def test_a_hot_set_that_stays_and_one_that_moves() -> None:
    one = np.full((40, 16), 10)
    one[:, [3, 9]] = 20
    claim = claims_of(one, tokens=180)["hot set retained"]
    assert claim.stated
    assert claim.figure == claim.low == claim.high == 1.0
    moving = np.full((40, 16), 10)
    moving[np.arange(40), np.arange(40) % 16] = 30
    assert not claims_of(moving, tokens=180)["hot set retained"].stated


@pytest.mark.parametrize("k", [1, 2])
def test_collapse_onto_as_many_experts_as_a_token_has(k: int) -> None:
    counts = np.full((100, 16), 100)
    tokens = 1600 // k
    assert not claims_of(counts, tokens=tokens, k=k)["collapsed"].stated
    counts[40:] = 4
    counts[40:, 5 : 5 + k] = (1600 - 4 * (16 - k)) // k
    claim = claims_of(counts, tokens=tokens, k=k)["collapsed"]
    assert claim.stated
    assert claim.figure == pytest.approx(1 - 4 * (16 - k) / 1600, abs=1e-3)
    # one iteration is no state of the router
    counts[40:-1] = 100
    assert not claims_of(counts, tokens=tokens, k=k)["collapsed"].stated


@given(st.integers(1, 6), st.integers(0, 4), st.integers(0, 3), st.booleans())
def test_every_run_has_an_outcome_for_each_claim(experts, steps, most, known) -> None:
    counts = np.random.default_rng(most).integers(0, most + 1, (steps, experts))
    tokens = counts.sum(axis=1) if known else None
    for claim in claims_of(counts, tokens=tokens).values():
        assert claim.used + claim.left_out == steps
        assert claim.sentence.startswith("Load")
        if not known and claim.name in ("imbalanced", "collapsed"):
            assert not claim.stated


def test_iterations_without_counts_are_left_out() -> None:
    counts = np.full((30, 4), 25.0)
    counts[3] = np.nan
    counts[4] = 0
    found = claims_of(counts, tokens=np.where(np.arange(30) == 4, 0, 100))
    assert {(each.used, each.left_out) for each in found.values()} == {(28, 2)}


def test_known_processes() -> None:
    """A few runs each; benchmarks/claims.py has the rates."""
    for seed in range(3):
        for process in ("balanced", "skewed", "autoregression", "collapse"):
            run = PROCESSES[process](np.random.default_rng(100 + seed), 300)
            found = skew_claims(run.counts, tokens=run.tokens, k=1, about="load")
            stated = {each.name for each in found if each.stated}
            expected = {"imbalanced", "hot set retained"}
            if process == "collapse":
                expected |= {"collapsed"}
            assert stated == (set() if process == "balanced" else expected), process


def test_wrong_shapes_and_k_are_rejected() -> None:
    with pytest.raises(AnalysisError, match="one row per iteration"):
        skew_claims([1, 2], tokens=3, k=1, about="load")
    with pytest.raises(AnalysisError, match="k is 3"):
        skew_claims([[1, 2]], tokens=1, k=3, about="load")
    found = skew_claims([[5, 5]] * 4, tokens=5, k=2, about="load")
    assert claim_of(found, "imbalanced").flags == (
        "not tested: every token goes to every expert",
    )
