"""Claims about movement: known processes, agreement with each other, invariants."""

from __future__ import annotations

import secrets

import numpy as np
import pytest

from moetraffic.analysis.claim import LEVEL, Outcome, claim_of
from moetraffic.analysis.convergence.level_claims import NULLS, level_claims
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


@pytest.mark.parametrize("process", PROCESSES)
def test_claims_of_a_run_agree(process):
    for seed in range(2):
        found, _ = claims(process, [11, seed], steps=300)
        assert tuple(found) == ("skewed", *NULLS)
        assert contradictions(found) == []
        for claim in found.values():
            assert bool(claim.statement) == claim.stated
            assert claim.used + claim.left_out == 300
            assert claim.used == 300 or claim.name == "skewed"


@pytest.mark.slow
@pytest.mark.parametrize("steps", [120, 300, 1000])
@pytest.mark.parametrize("process", PROCESSES)
def test_claims_of_many_runs_agree(process, steps):
    for seed in range(20):
        assert contradictions(claims(process, [12, seed], steps=steps)[0]) == []


@pytest.mark.parametrize("seed", [14, 21, 37])
def test_a_collapse_may_leave_no_step_after_its_transient(seed):
    found, _ = claims("collapse", seed, steps=300)
    assert found["moves"].stated
    assert not found["converged"].stated


@pytest.mark.parametrize("seed", [37, 47, 72])
def test_a_run_with_a_transient_moves(seed):
    """It may be too short to be a motion of the whole run; the shares moved."""
    found, _ = claims("fading to a constant", [77, seed], steps=120)
    assert found["converged"].stated
    assert "a transient is seen that begins at iteration 0" in found["converged"].flags
    assert contradictions(found) == []
    assert found["moves"].p < 0.01


def test_motion_below_the_noise_of_one_router_has_no_ratio():
    """Ranks that route differently have less noise than one router of their mean."""
    rng = np.random.default_rng()
    shares = np.array([np.roll([0.65, *[0.05] * 7], rank) for rank in range(8)])
    swing = 0.04 * np.sin(2 * np.pi * np.arange(300) / 300)
    at = shares * np.exp(swing[:, None, None] * np.array([1, -1] * 4))
    at /= at.sum(axis=2, keepdims=True)
    counts = rng.multinomial(512, at).sum(axis=1)
    found = level_claims(counts, tokens=4096, about="load")
    (moves,) = (claim for claim in found if claim.name == "moves")
    assert moves.stated
    assert np.isnan(moves.figure)
    assert moves.statement == "its shares move over the run"


def test_a_step_ends_in_convergence_at_its_place():
    found, run = claims("step", 3)
    assert found["level change"].figure == run.truth["change"]
    assert found["converged"].figure == run.truth["change"]
    assert (
        found["level change"].low <= run.truth["change"] <= found["level change"].high
    )


@pytest.mark.parametrize("steps", [40, 100, 300])
def test_odd_rows_of_a_constant_load_are_no_change_of_level(steps):
    """One anywhere, or two; a load that stays different changes its level once.

    One is no motion, either, wherever it is and whether the others vary.
    """
    level, other = [40, 30, 20, 10], [10, 20, 30, 40]
    half, last = steps // 2, steps - 1
    odd = ([0], [1], [half], [last - 1], [last])
    two = ([half, half + 1], [9, last - 9], [0, 1], [last - 1, last])
    rng = np.random.default_rng(3)
    for rows in (*odd, *two):
        changed = np.isin(np.arange(steps), rows)[:, None]
        counts = np.where(changed, other, level)
        for drawn in (counts, rng.multinomial(1000, counts / 100)):
            found = level_claims(drawn, tokens=drawn[0].sum(), about="load")
            stated = {c.name for c in found if c.stated}
            assert "level change" not in stated, rows
            assert len(rows) > 1 or "moves" not in stated, rows
    counts = np.tile(level, (steps, 1))
    counts[half:] = other
    claim = claim_of(level_claims(counts, tokens=100, about="load"), "level change")
    assert claim is not None
    assert claim.statement == f"its level changes at iteration {half}"


@pytest.mark.parametrize("process", ["period", "jittered period"])
def test_the_period_in_iterations(process):
    found, run = claims(process, 4)
    assert found["periodic"].figure == pytest.approx(run.truth["period"], rel=0.05)
    tenth, run = claims(process, 4, at=10 * np.arange(1000))
    assert tenth["periodic"].figure == pytest.approx(10 * found["periodic"].figure)


def test_the_half_life_of_an_autoregression():
    found, run = claims("autoregression", 5)
    half_life = found["mean-reverting"]
    assert half_life.figure == pytest.approx(run.truth["half_life"], rel=0.5)
    assert half_life.low < half_life.figure < half_life.high
    assert found["converged"].stated
    assert np.isnan(found["converged"].low)
    assert found["converged"].flags == ("no transient is seen",)


def test_a_stationary_run_is_nowhere_called_unstable():
    """But for the level of significance; its level begins soon, at the latest."""
    made = [claims("autoregression", [25, seed], steps=300)[0] for seed in range(12)]
    found = [each["converged"] for each in made if each["converged"].stated]
    assert len(found) >= 10
    assert sum(np.isfinite(claim.low) for claim in found) <= 1
    assert np.median(np.nan_to_num([claim.figure for claim in found])) < 40


@pytest.mark.parametrize("process", ["fading to a motion", "fading to a constant"])
def test_a_level_begins_after_its_transient_is_small(process):
    """What is left of it is below one standard deviation; the test is at 1%."""
    base, early, stated = secrets.randbits(32), [], 0
    for seed in range(20):
        found, run = claims(process, [base, seed], steps=300)
        level = found["converged"]
        stated += level.stated
        if level.stated and np.nan_to_num(level.figure) < run.truth["settled"]:
            early.append(seed)
    assert stated >= 10, f"base of the seeds {base}"
    assert len(early) <= 2, f"base of the seeds {base}, runs {early}"


def test_a_transient_before_a_motion_that_persists_is_seen():
    """Half-lives of it are a part of the run: a fit to all of it would explain it."""
    rng = np.random.default_rng(23)
    states = 0.15 * rng.normal(size=(400, 8))
    for now, before in zip(states[1:], states, strict=False):
        now *= np.sqrt(1 - 0.9**2)
        now += 0.9 * before
    off = np.exp(-np.arange(400) / 25)[:, None] * np.linspace(-1.2, 1.2, 8)
    for moved, early in ((states + off, True), (states, False)):
        shares = np.exp(moved) / np.exp(moved).sum(axis=1, keepdims=True)
        counts = rng.multinomial(1024, shares)
        at = np.arange(100, 500)
        made = level_claims(counts, tokens=1024, at=at, about="load")
        found = claim_of(made, "converged")
        assert found is not None
        assert found.stated
        if early:
            # one standard deviation is left after 25 ln(.74 / .19) = 34 iterations
            assert 134 <= found.figure <= 260
            assert found.low == 100
            assert "a transient is seen that begins at iteration 100" in found.flags
        else:
            assert np.isnan(found.low)
            assert "no transient is seen" in found.flags


def test_a_return_with_few_half_lives_lacks_data_for_convergence_too():
    few = Outcome.NOT_ENOUGH_DATA
    seen = 0
    for seed in range(12):
        found, _ = claims("autoregression", [24, seed], steps=80)
        level, returns = found["converged"], found["mean-reverting"]
        if level.p < 0.01 and returns.outcome is few:
            seen += 1
            assert (level.outcome, level.needs) == (few, returns.needs)
    assert seen


def test_a_sine_is_not_mean_reverting():
    """Of any period and phase, and with few cycles in which no line can be seen."""
    time = np.arange(160)[:, None]
    for seed in range(3):
        rng = np.random.default_rng([16, seed])
        angle = time * rng.uniform(2.5, 40) / 160 + rng.uniform(0, 1, 16)
        shares = np.exp(0.3 * np.sin(2 * np.pi * angle))
        shares /= shares.sum(axis=1, keepdims=True)
        for counts in (np.rint(1e6 * shares), rng.multinomial(8192, shares)):
            found = level_claims(counts, tokens=counts.sum(axis=1), about="load")
            returns = claim_of(found, "mean-reverting")
            assert returns is not None
            assert not returns.stated


@pytest.mark.parametrize("seed", [3, 6, 7])
def test_a_cycle_of_data_domains_is_not_mean_reverting(seed):
    """Also where the router moves, so that no periodic function fits."""
    rng = np.random.default_rng([17, seed])
    domains = 0.3 * rng.normal(size=(5, 8))
    walk = rng.normal(0, 0.004, (240, 8)).cumsum(axis=0)
    shares = np.exp(domains[np.arange(240) // 6 % 5] + walk)
    shares /= shares.sum(axis=1, keepdims=True)
    counts = rng.multinomial(4096, shares)
    found = level_claims(counts, tokens=4096, about="load")
    period, returns = (claim_of(found, n) for n in ("periodic", "mean-reverting"))
    assert period.outcome is Outcome.NOT_ENOUGH_DATA
    assert period.figure == pytest.approx(30, rel=0.05)
    assert returns.untested == "a period may explain the return to the level"


def test_a_run_of_few_half_lives_names_the_iterations_that_it_needs():
    named = 0
    for seed in range(8):
        found, run = claims("autoregression", [14, seed], steps=60)
        returns = found["mean-reverting"]
        if returns.outcome is Outcome.NOT_ENOUGH_DATA:
            named += 1
            assert 60 < returns.needs < 20 * 4 * run.truth["half_life"]
            assert returns.needs == found["converged"].needs
        elif not returns.stated:
            assert "random walk" in returns.untested
    assert named


@pytest.mark.parametrize("process", ["slow walk", "walk", "fast walk"])
def test_no_number_of_iterations_is_promised_of_a_random_walk(process):
    for seed in range(6):
        found, _ = claims(process, [26, seed], steps=300)
        assert not found["mean-reverting"].needs
        assert not found["converged"].needs
        assert "random walk" in found["mean-reverting"].untested


def test_a_damped_oscillation_is_no_period():
    for seed in range(5):
        for steps in (80, 300):
            found, _ = claims("damped oscillation", [15, seed], steps=steps)
            assert not found["periodic"].stated


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


def test_a_period_of_few_cycles_needs_more_of_them():
    run = PROCESSES["period"](np.random.default_rng(16), 300)
    length = run.truth["period"]
    few, many = int(12 * length), int(60 * length)
    found, _ = claims("period", 16, steps=few)
    assert found["periodic"].outcome is Outcome.NOT_ENOUGH_DATA
    assert found["periodic"].needs == pytest.approx(22 * length, rel=0.05)
    found, _ = claims("period", 16, steps=many)
    assert found["periodic"].stated


@pytest.mark.parametrize("process", ["two in turn", "three in turn", "every nth"])
def test_the_period_of_data_sources_in_turn(process):
    for seed in range(3):
        found, run = claims(process, [17, seed], steps=600)
        assert not found["mean-reverting"].stated
        if process != "every nth" or found["periodic"].stated:
            figure = found["periodic"].figure
            assert figure == pytest.approx(run.truth["period"], rel=0.05)


@pytest.mark.parametrize("process", ["slipping turns", "random turns", "accumulation"])
def test_turns_that_slip_and_steps_of_a_walk_have_no_period(process):
    for seed in range(3):
        found, _ = claims(process, [18, seed], steps=600)
        assert not found["periodic"].stated


def test_the_period_of_a_pulse_and_of_a_missing_fundamental():
    """Lines at 1/4 and 1/6 share a period of 12, at which there is no line."""
    rng, time = np.random.default_rng(19), np.arange(600)[:, None]
    pulse = 1.0 * (time % 8 == 0) * rng.normal(size=6)
    phase = rng.uniform(0, 2 * np.pi, (2, 6))
    pair = np.sin(2 * np.pi * time / 4 + phase[0])
    pair = pair + np.sin(2 * np.pi * time / 6 + phase[1])
    for logits, period in ((pulse, 8), (0.3 * pair, 12)):
        p = np.exp(logits)
        counts = rng.multinomial(4000, p / p.sum(axis=1, keepdims=True))
        found = claim_of(level_claims(counts, tokens=4000, about="load"), "periodic")
        assert found.stated
        assert found.figure == pytest.approx(period, rel=0.01)


def test_a_random_walk_has_no_stable_part():
    for process in ("slow walk", "walk", "fast walk"):
        found, _ = claims(process, 6)
        assert [name for name, claim in found.items() if claim.stated] == ["moves"]


def test_units_and_the_order_of_experts_do_not_matter():
    run = PROCESSES["step"](np.random.default_rng(7), 300)
    one = level_claims(run.counts, tokens=None, about="load")
    two = level_claims(run.counts[:, ::-1], tokens=None, about="load")
    assert [claim.outcome for claim in one] == [claim.outcome for claim in two]
    assert [claim.p for claim in one] == pytest.approx(
        [claim.p for claim in two], nan_ok=True
    )


def test_steps_without_traffic_are_left_out():
    run = PROCESSES["skewed"](np.random.default_rng(8), 200)
    counts = run.counts.astype(np.float64)
    counts[[3, 70]], counts[100] = np.nan, 0
    found = level_claims(counts, tokens=run.tokens, about="load")
    assert {(claim.used, claim.left_out) for claim in found} == {(197, 3)}
    converged = claim_of(found, "converged")
    assert converged is not None
    assert converged.stated


def test_variance_over_that_of_sampling_noise():
    found, _ = claims("skewed", 9)
    assert found["moves"].figure == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("shape", [(0, 4), (20, 4), (20, 1)])
def test_too_little_to_decide(shape):
    for claim in level_claims(np.ones(shape), tokens=None, about="load"):
        assert claim.outcome is Outcome.NOT_ENOUGH_DATA
        assert np.isnan(claim.figure)


@pytest.mark.parametrize(
    "counts",
    [
        np.ones((100, 4)),
        np.outer(np.arange(1, 101), [3, 0, 1]),  # shares are what moves, or does not
        np.ones((100, 1)),
    ],
)
def test_shares_that_never_vary_have_converged(counts):
    at = np.arange(20, 120)
    found = level_claims(counts, tokens=None, at=at, about="load")
    uneven = ["skewed"] * bool(np.ptp(counts[0]) > 0)
    assert [claim.name for claim in found if claim.stated] == [*uneven, "converged"]
    converged = claim_of(found, "converged")
    assert converged is not None
    assert np.isnan(converged.figure)
    for claim in found:
        assert claim.outcome is not Outcome.NOT_ENOUGH_DATA
        assert "needs" not in claim.sentence


def test_what_does_not_fit():
    with pytest.raises(AnalysisError, match=r"counts \[T, C\]"):
        level_claims(np.ones(40), tokens=1, about="load")
    with pytest.raises(AnalysisError, match="increase"):
        level_claims(np.ones((3, 2)), tokens=1, at=[0, 2, 1], about="load")


def test_swings_that_fade_have_converged_once_they_have_one_size():
    for seed in range(4):
        found, run = claims("fading swings", [13, seed])
        converged = found["converged"]
        assert not converged.stated or converged.figure >= run.truth["faded"]


def test_swings_that_grow_to_the_end_have_not_converged():
    rng = np.random.default_rng(5)
    states = rng.normal(size=(600, 16))
    for t in range(1, 600):
        states[t] = 0.6 * states[t - 1] + 0.8 * states[t]
    shares = np.exp(np.linspace(0.1, 1.0, 600)[:, None] * states)
    shares /= shares.sum(axis=1, keepdims=True)
    counts = np.array([rng.multinomial(4096, row) for row in shares])
    of = {c.name: c for c in level_claims(counts, tokens=4096, about="expert load")}
    assert of["moves"].stated
    assert of["converged"].outcome is Outcome.NO_EVIDENCE
    assert "its swings become larger or smaller to the end" in of["converged"].flags


@pytest.mark.parametrize("process", PROCESSES)
def test_a_small_p_value_without_a_statement_has_its_reason(process):
    """Tests of parts, of a slope or of a return need more than the level."""
    for steps, seed in ((60, 0), (60, 1), (200, 0)):
        for claim in claims(process, seed, steps)[0].values():
            assert claim.stated or not claim.p < LEVEL or all(claim.flags or [""])
