"""Claims about bursts: known processes, exact patterns, and too little data."""

from __future__ import annotations

import csv
import secrets
from pathlib import Path

import numpy as np
import pytest
from scipy.special import betaincinv

from moetraffic.analysis.claim import Outcome, claim_of
from moetraffic.analysis.rhythm.burst_claims import burst_claims
from tests.analysis.known_processes.bursts import PROCESSES

pytestmark = pytest.mark.filterwarnings("error")

KNOWN = Path(__file__).parents[1] / "known_processes"
NAMES = ("periodic",)


def truths() -> dict[str, dict[str, str]]:
    lines = (KNOWN / "truth.csv").read_text().splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return {row["process"]: row for row in rows}


def judged(process: str, seeds: range, steps: int) -> dict[str, tuple[int, int]]:
    """Count runs that state each claim, and those with a wrong figure."""
    stated, wrong = dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, 0)
    for seed in seeds:
        run = PROCESSES[process](np.random.default_rng(seed), steps)
        claims = burst_claims(run.start, run.end, marks=run.marks, about="a rank")
        for name in NAMES:
            claim = claim_of(claims, name)
            assert claim is not None
            stated[name] += claim.stated
            if name == "periodic":
                assert claim.stated == np.isfinite(claim.figure)
            if claim.stated and name == "periodic":
                true = run.truth.get("period_s", np.nan)
                wrong[name] += not abs(claim.figure / true - 1) < 0.05
    return {name: (stated[name], wrong[name]) for name in NAMES}


@pytest.mark.parametrize("process", PROCESSES)
def test_known_processes(process: str) -> None:
    found, truth = judged(process, range(8), 1000), truths()[process]
    for name in NAMES:
        stated, wrong = found[name]
        if truth[name] == "true":
            assert stated >= 7
        if truth[name] == "false":
            wrong = stated
        assert wrong <= 1


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("process", PROCESSES)
def test_drawn_runs_of_known_processes(process: str) -> None:
    first = secrets.randbelow(1 << 30)
    found, truth = judged(process, range(first, first + 300), 1000), truths()[process]
    for name in NAMES:
        stated, wrong = found[name]
        where = f"{name}, seeds from {first} on: {stated} stated, {wrong} wrong"
        if truth[name] == "true":
            assert stated - wrong >= 270, where
        if truth[name] == "false":
            wrong = stated
        # upper 95% limit of the share, Clopper and Pearson
        assert betaincinv(wrong + 1, 300 - wrong, 0.975) <= 0.05, where


def test_the_period_of_a_square_wave() -> None:
    first = np.arange(64) * 100
    (periodic,) = burst_claims(first, first + 25, about="a rank")
    assert periodic.stated
    assert (periodic.low, periodic.figure, periodic.high) == (1e-7,) * 3
    assert periodic.statement == "they repeat every 1e-07 s"


def test_the_interval_of_the_period_covers_it() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        lengths = rng.normal(1e6, 5e4, 200)
        at = np.concatenate(([0], lengths.cumsum())).astype(np.int64)
        (periodic,) = burst_claims(at, at + 300_000, about="a rank")
        assert periodic.stated
        covered += periodic.low <= 1e-3 <= periodic.high
    assert covered >= 185  # of 190 expected, three standard deviations less


def test_marks_that_the_bursts_do_not_follow_give_no_period() -> None:
    stated = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        run = PROCESSES["gamma on-off"](rng, 300)
        marks = np.arange(300) * int(rng.uniform(0.7e7, 1.4e7))
        stated += burst_claims(run.start, run.end, marks=marks, about="x")[0].stated
    assert stated <= 2


def test_bursts_that_differ_from_step_to_step_are_not_called_the_same() -> None:
    """What the test rejects is a random place; how much the steps differ is stated."""
    rng = np.random.default_rng(2)
    lengths = rng.gamma(5, 2e7, 400)
    marks = np.concatenate(([0], lengths.cumsum())).astype(np.int64)
    first = marks[:-1] + (rng.uniform(0.2, 0.6, 400) * lengths).astype(np.int64)
    (periodic,) = burst_claims(first, first + 1000, marks=marks, about="a rank")
    assert periodic.stated
    assert "not at random times within a step" in periodic.statement
    cv = np.diff(marks)[1:-1].std() / np.diff(marks)[1:-1].mean()
    assert f"jitter {cv:.0%}" in periodic.statement


@pytest.mark.parametrize("bursts", [0, 1, 2, 31])
def test_few_bursts_are_not_judged(bursts: int) -> None:
    start = np.arange(bursts) * 100
    for marks in (None, start):
        for claim in burst_claims(start, start + 10, marks=marks, about="x"):
            if marks is not None and bursts == 31 and claim.name == "periodic":
                assert claim.stated
                continue
            assert claim.outcome is Outcome.NOT_ENOUGH_DATA
            assert claim.needs > claim.used


def test_a_step_time_is_said_to_be_without_the_steps_before_an_evaluation() -> None:
    """The time from a step to the next one is unknown where an evaluation follows."""
    marks = np.cumsum(np.where(np.arange(61) % 5, 10, 40))  # every fifth is before one
    starts = marks[:-1]
    observed = marks[:-1:5], marks[4::5] + 10
    (whole,) = burst_claims(starts, starts + 4, marks=marks, about="a rank")
    assert (whole.used, whole.left_out) == (60, 0)
    assert "without" not in whole.statement
    (cut,) = burst_claims(
        starts, starts + 4, marks=marks, observed=observed, about="a rank"
    )
    assert (cut.used, cut.left_out) == (48, 12)
    assert "; without the 12 before an evaluation or a gap)" in cut.statement
