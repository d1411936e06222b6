"""Claims: exact cases, runs that are too short, and known processes of ten seeds.

``benchmarks/claims.py`` has the rates of many runs.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2, chisquare

from moetraffic.analysis.claims import (
    LEAST,
    Claim,
    Outcome,
    change_over,
    differ,
    forecast_helps,
    movement,
    regular,
    steady,
    uneven,
)
from moetraffic.analysis.measures import entropy
from moetraffic.analysis.noise import draw
from tests.analysis.processes import BURSTS, LOADS

TOTAL, SEEDS = 300, 10
STEPS = np.arange(TOTAL)


def stated(process: str) -> dict[str, int]:
    """Count the runs of ten that state each claim."""
    counts: dict[str, int] = {}
    for seed in range(SEEDS):
        load = LOADS[process](np.random.default_rng([8, seed]), TOTAL)
        curve = entropy(load)
        for claim in (
            uneven(load),
            movement(curve, STEPS),
            steady(curve, STEPS),
            differ(curve[: TOTAL // 2], curve[TOTAL // 2 :]),
        ):
            counts.setdefault(claim.name, 0)
            counts[claim.name] += claim.outcome is Outcome.STATED
    return counts


@pytest.mark.parametrize("process", ["balanced", "skewed", "redrawn", "AR 8"])
def test_a_stationary_run_becomes_neither_more_nor_less_even(process: str) -> None:
    counts = stated(process)
    changes = ("more even", "less even", "runs differ")
    assert sum(counts.get(name, 0) for name in changes) <= 2
    if process == "balanced":
        assert counts["uneven"] <= 1
    else:
        assert counts["uneven"] == SEEDS
    if process in ("balanced", "skewed"):
        assert counts["steady"] == SEEDS


def test_loads_that_change_do() -> None:
    line, fading = stated("line to even"), stated("fading")
    assert line["more even"] == line["runs differ"] == SEEDS
    assert fading["more even"] >= 6
    assert fading["steady"] >= 9
    assert line["steady"] <= 1
    assert stated("walk")["steady"] == stated("collapse")["steady"] == 0


def test_steps_are_regular_and_exponential_bursts_are_not() -> None:
    for process, least, most in (
        ("jittered steps", 9, SEEDS),
        ("exponential bursts", 0, 1),
    ):
        runs = [BURSTS[process](np.random.default_rng(s), TOTAL) for s in range(SEEDS)]
        count = sum(regular(run).outcome is Outcome.STATED for run in runs)
        assert least <= count <= most, process


# ---- uneven --------------------------------------------------------------------------


def test_of_top_1_the_p_value_is_that_of_pearson_s_statistics() -> None:
    counts = np.random.default_rng(0).multinomial(100, [0.22, 0.28, 0.25, 0.25], 60)
    sums = sum(chisquare(row).statistic for row in counts)
    assert uneven(counts).p == pytest.approx(chi2.sf(sums, 180), rel=1e-9)


@pytest.mark.parametrize(("k", "tokens"), [(2, 500), (3, 20), (1, 2)])
def test_p_values_of_a_balanced_router_are_uniform(k: int, tokens: int) -> None:
    loads = draw(tokens, experts=8, k=k, sources=50, draws=200)
    p = np.array([uneven(load, k=k).p for load in loads])
    for level in (0.1, 0.5, 0.9):
        error = 3.5 * np.sqrt(level * (1 - level) / 200)
        assert (p <= level).mean() == pytest.approx(level, abs=error)


@pytest.mark.parametrize("k", [1, 2])
def test_the_interval_of_the_cv_holds_that_of_the_true_shares(k: int) -> None:
    """Of shares that are constant, and of shares that swing about them."""
    for swing in (0.0, 0.2):
        held = 0
        for seed in range(100):
            rng = np.random.default_rng([seed, k])
            logits = np.log([5.0, *[1.0] * 7]) + swing * rng.normal(size=(100, 8))
            # the chosen experts of each token: the k largest of perturbed logits
            chosen = (logits[:, None] + rng.gumbel(size=(100, 64, 8))).argsort()
            load = (chosen[..., -k:, None] == np.arange(8)).sum(axis=(1, 2))
            claim = uneven(load, k=k)
            assert claim.outcome is Outcome.STATED
            held += claim.low <= TRUE[k, swing] <= claim.high
        assert 88 <= held <= 99, (k, swing)


TRUE = {(1, 0.0): 0.8819, (2, 0.0): 0.6528, (1, 0.2): 0.8949, (2, 0.2): 0.6623}
"""CV of the probabilities that a token has each expert, by k and swing."""


def test_a_load_that_is_the_same_in_all_iterations_has_no_noise() -> None:
    claim = uneven(np.tile([40, 20, 20, 20], (50, 1)))
    assert claim.figure == pytest.approx(np.sqrt(3) / 5)
    assert claim.low == claim.high == claim.figure
    assert claim.outcome is Outcome.STATED
    assert uneven(np.full((50, 4), 25)).outcome is Outcome.NOT_SHOWN


def test_without_a_choice_nothing_is_tested() -> None:
    assert uneven(np.full((50, 1), 9)).outcome is Outcome.UNKNOWN
    assert uneven(np.full((50, 4), 9), k=4).outcome is Outcome.UNKNOWN
    idle = np.vstack([np.zeros((30, 4), int), np.full((39, 4), 9)])
    assert (uneven(idle).outcome, uneven(idle).needs) == (Outcome.TOO_SHORT, LEAST)
    rare = np.zeros((40, 256), int)
    rare[:, :2] = 1
    assert (uneven(rare).outcome, uneven(rare).needs) == (Outcome.TOO_SHORT, 128)


# ---- evenness over time --------------------------------------------------------------


def test_a_line_has_its_difference_of_thirds_and_a_constant_none() -> None:
    curve = np.linspace(0.6, 0.9, TOTAL)
    claim = movement(curve, STEPS)
    assert (claim.name, claim.outcome) == ("more even", Outcome.STATED)
    assert claim.figure == pytest.approx(0.2, abs=0.001)
    assert claim.low < claim.figure < claim.high
    assert claim.since == -1  # it was not over
    assert movement(curve[::-1], STEPS).name == "less even"
    still = np.full(TOTAL, 0.9)
    assert movement(still, STEPS).outcome is Outcome.NOT_SHOWN
    claim = steady(still, STEPS)
    assert (claim.outcome, claim.figure, claim.since) == (Outcome.STATED, 0.0, 200)


def test_most_of_a_change_is_over_where_means_stay_near_the_end() -> None:
    curve = np.full(TOTAL, 0.9)
    curve[:100] = 0.6
    assert change_over(curve, STEPS) == 100
    assert movement(curve + 1e-4 * STEPS, STEPS).since == 100
    curve[20:30] = np.nan
    assert change_over(curve, STEPS) == 100
    noise = np.random.default_rng(0).normal(0.9, 0.01, TOTAL)
    assert change_over(noise, STEPS) is None
    assert change_over(np.full(TOTAL, 0.9), STEPS) is None
    assert change_over(curve[:30], STEPS[:30]) is None


def test_gaps_count_as_time() -> None:
    """The last third of the steps begins after the gap."""
    steps = np.concatenate([np.arange(60), np.arange(160, 180)])
    curve = np.where(steps < 60, 0.5 + steps / 200, 0.9)
    curve += np.random.default_rng(0).normal(0, 1e-3, 80)
    claim = steady(curve, steps)
    assert (claim.outcome, claim.since) == (Outcome.STATED, 60)
    assert claim.placed(iterations=10 + steps, layer=3).since == 170
    short = np.concatenate([np.arange(60), [500]])
    claim = steady(np.full(61, 0.9), short)
    assert claim.outcome is Outcome.UNKNOWN
    assert np.isfinite(movement(np.linspace(0, 1, 61), short).figure)


# ---- forecasts, steps, runs ----------------------------------------------------------


def test_a_forecast_helps_where_its_errors_are_below_those_of_the_mean() -> None:
    rng = np.random.default_rng(0)
    of_mean, of_last = rng.gamma(8, 1, (2, 75))
    claim = forecast_helps(0.5 * of_mean, of_last, of_mean, horizon=5)
    assert (claim.outcome, claim.horizon) == (Outcome.STATED, 5)
    assert claim.figure == pytest.approx(0.5)
    assert 0 < claim.low < 0.5 < claim.high
    # the last values were better still
    claim = forecast_helps(0.5 * of_mean, 0.4 * of_mean, of_mean, horizon=5)
    assert claim.outcome is Outcome.NOT_SHOWN
    for errors in (of_mean, 1.5 * of_mean, of_last):
        claim = forecast_helps(errors, errors, of_mean, horizon=1)
        assert claim.outcome is Outcome.NOT_SHOWN
    nothing = np.zeros(75)
    assert forecast_helps(nothing, nothing, nothing, horizon=1).outcome is (
        Outcome.UNKNOWN
    )
    claim = forecast_helps(of_mean[:9], of_last[:9], of_mean[:9], horizon=1)
    assert (claim.outcome, claim.needs) == (Outcome.TOO_SHORT, LEAST)


def test_equal_steps_are_regular_and_silence_is_nothing() -> None:
    profile = np.zeros((50, 64))
    assert regular(profile).outcome is Outcome.UNKNOWN
    profile[:, :16] = 1
    claim = regular(profile)
    assert (claim.outcome, claim.figure) == (Outcome.STATED, pytest.approx(1.0))
    assert regular(profile[:20]).outcome is Outcome.TOO_SHORT
    assert regular(np.zeros((0, 64))).outcome is Outcome.TOO_SHORT


def test_runs_differ_by_the_difference_of_their_means() -> None:
    a, b = np.random.default_rng(0).normal(size=(2, 100))
    claim = differ(a, b + 3)
    assert claim.outcome is Outcome.STATED
    assert claim.figure == pytest.approx(3 + b.mean() - a.mean())
    assert claim.low < claim.figure < claim.high
    assert differ(a, a).outcome is Outcome.NOT_SHOWN
    assert differ(np.ones(50), np.ones(50)).outcome is Outcome.NOT_SHOWN


def test_short_runs_have_no_claims_but_their_needs() -> None:
    short = np.linspace(0.5, 0.9, LEAST - 1)
    for claim in (
        movement(short, np.arange(LEAST - 1)),
        steady(short, np.arange(LEAST - 1)),
        differ(short, np.ones(100)),
        movement(np.zeros(0), np.zeros(0, int)),
        steady(np.full(99, np.nan), np.arange(99)),
    ):
        assert (claim.outcome, claim.needs) == (Outcome.TOO_SHORT, LEAST)


def test_a_row_has_the_place_first_and_plain_values() -> None:
    claim = Claim(name="steady", outcome=Outcome.STATED, since=2)
    row = claim.placed(layer=3, group=0, iterations=np.array([5, 7, 9])).row()
    assert list(row)[:4] == ["layer", "group", "claim", "subject"]
    assert (row["layer"], row["claim"], row["outcome"]) == (3, "steady", "stated")
    assert row["since"] == 9
