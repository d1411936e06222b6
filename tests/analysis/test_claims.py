"""A reduced form of benchmarks/claims.py: few runs of each known process."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from moetraffic import Trace, analyze
from moetraffic.analysis.convergence.mean_load import skewed
from moetraffic.analysis.noise.skew_claims import skew_claims
from tests.analysis.known_processes.tally import (
    TRUTH,
    Tally,
    claims,
    judged,
    tally,
    truth,
)

STEPS = 300
SEEDS = 2
SOME = {
    *("balanced", "skewed", "redrawn", "autoregression", "walk", "trend"),
    *("fading to a constant", "collapse", "period"),
    *("regular steps", "jittered steps", "exponential on-off"),
}
"""Processes that are tried always; the others run with the slow tests."""


@pytest.fixture(scope="module")
def outcomes():
    found = {
        process: [
            judged(process, (zlib.crc32(process.encode()), seed), STEPS)
            for seed in range(SEEDS)
        ]
        for process in sorted(SOME)
    }
    return tally(found)


def test_each_process_and_each_claim_of_it_has_a_truth(outcomes):
    assert outcomes.keys() == SOME
    for process, of in outcomes.items():
        for name, one in of.items():
            stated = name in truth()[process]
            assert stated, f"{name} is not in {TRUTH.name}"
            assert one.runs == SEEDS


def test_what_is_false_is_stated_in_few_runs(outcomes):
    wrong = {
        (process, name): one.wrong
        for process, of in outcomes.items()
        for name, one in of.items()
        if one.wrong
    }
    runs = SEEDS * sum(
        o.truth == "false" for of in outcomes.values() for o in of.values()
    )
    # a test at 1% is wrong in that share of runs; .05 is the limit of the long form
    assert sum(wrong.values()) <= 0.05 * runs, wrong


def test_most_of_what_is_true_is_found_in_300_iterations(outcomes):
    true = {
        (process, name): one.stated
        for process, of in outcomes.items()
        for name, one in of.items()
        if one.truth == "true"
    }
    assert sum(true.values()) >= 0.8 * SEEDS * len(true), true


@pytest.mark.parametrize(
    "process",
    [pytest.param(p, marks=() if p in SOME else pytest.mark.slow) for p in truth()],
)
def test_claims_about_a_run_agree(process):
    made, _ = claims(process, (7, zlib.crc32(process.encode())), STEPS)
    of = {claim.name: claim for claim in made}
    assert len(of) == len(made), "a claim is made once"
    if "converged" not in of:
        return
    since = of["converged"].figure
    if of["converged"].stated:
        assert not of["trend"].stated or of["trend"].figure != of["trend"].figure
        changed = of["level change"]
        assert not changed.stated or changed.figure <= since
    if of["mean-reverting"].stated:
        assert of["moves"].stated
        assert 0 < of["mean-reverting"].low <= of["mean-reverting"].figure


def test_a_share_of_false_claims_has_its_exact_limit():
    one = Tally(truth="false")
    one.outcomes.update({"stated": 7, "no evidence": 293})
    assert one.share_limit == pytest.approx(0.0475, abs=2e-4)
    one.outcomes["stated"] += 1
    assert one.share_limit > 0.05


def test_a_p_value_is_never_zero():
    even = np.tile([1000, 3000], (100, 1))
    imbalanced = skew_claims(even, tokens=np.full(100, 4000), k=1, about="load")[0]
    for claim in (skewed(even, about="load"), imbalanced):
        assert claim.stated
        assert 0 < claim.p < 1e-300


def test_claims_of_forecasts_join_the_rows_of_the_forecasts():
    """By layer, group, subject and horizon, in a data frame."""
    rng = np.random.default_rng()
    counts = rng.multinomial(512, np.full(8, 1 / 8), (120, 2, 4))
    parts = ["claims", "forecasts"]
    found = analyze(Trace.from_arrays(counts, k=1), parts=parts, horizons=[1, 5])
    rows = found.to_frame()
    keys = ["layer", "group", "phase", "subject", "horizon"]
    skill = rows[(rows.statistic == "skill") & rows.chosen].set_index(keys).value
    for name, of in (("predictable", "expert_load"), ("matrix predictable", "demand")):
        claims = rows[rows.statistic == f"claim.{name}"].set_index(keys).value
        assert set(claims.index.get_level_values("subject")) == {of}
        joined = skill[claims.index]
        assert len(joined) == (4 if of == "expert_load" else 2)
        assert claims.to_numpy() == pytest.approx(joined.to_numpy())
    errors = rows[rows.statistic == "mse"]
    copies = errors.subject.isin(["expert_load", "demand"])
    assert set(errors[copies].unit) == {"token copies²"}
    assert set(errors[~copies].unit) == {"bytes²"}


def test_of_levels_of_noise_only_the_last_is_judged():
    """Each forecast is better than the mean of another level: no news."""
    rng = np.random.default_rng(5)
    shares = rng.dirichlet(np.full(8, 20), 2)[(np.arange(240) >= 120).astype(int)]
    counts = np.stack([rng.multinomial(2048, row, (1, 4)) for row in shares])
    found = analyze(Trace.from_arrays(counts, k=1), parts=["claims"], horizons=[1])
    of = {claim.name: claim for claim in found.claims}
    assert of["level change"].stated
    since = int(of["level change"].high)
    for name in ("predictable", "better than persistence", "matrix predictable"):
        assert not of[name].stated
        assert (of[name].used, of[name].left_out) == (240 - since, since)
        assert f"from {since} on, as the level changes before" in of[name].flags[-1]
