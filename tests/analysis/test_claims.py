"""A reduced form of benchmarks/claims.py: few runs of each known process."""

from __future__ import annotations

import zlib

import pytest

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


@pytest.fixture(scope="module")
def outcomes():
    found = {
        process: [
            judged(process, (zlib.crc32(process.encode()), seed), STEPS)
            for seed in range(SEEDS)
        ]
        for process in truth()
    }
    return tally(found)


def test_each_process_and_each_claim_of_it_has_a_truth(outcomes):
    assert outcomes.keys() == truth().keys()
    for process, of in outcomes.items():
        for name, one in of.items():
            stated = name in truth()[process] or name == "better than persistence"
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


@pytest.mark.parametrize("process", sorted(truth()))
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
