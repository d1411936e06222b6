"""Claims about bursts: known processes, exact patterns, and too little data."""

from __future__ import annotations

import csv
import secrets
from pathlib import Path

import numpy as np
import pytest
from scipy.special import betaincinv

from moetraffic.analysis.claim import Outcome, claim_of
from moetraffic.analysis.rhythm.burst_claims import burst_claims, repetition
from moetraffic.analysis.rhythm.burst_order import burst_order
from moetraffic.analysis.rhythm.hurst import hurst_exponent
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


def pattern(lengths: list[int], gaps: list[int], times: int):
    border = np.stack([lengths, gaps], axis=1).ravel()
    edges = np.concatenate(([0], np.tile(border, times).cumsum()))
    return edges[:-1:2], edges[1::2]


def test_the_whole_pattern_is_the_period_and_its_parts_are_not() -> None:
    # the second half differs from the first in one gap only
    first, last = pattern([5, 2, 5, 2], [10, 20, 10, 23], 100)
    assert burst_order(first, last).bursts == 4
    found = repetition(first, last)
    assert found.length_ns.tolist() == [77.0] * 99
    assert found.coherence == pytest.approx(1)
    (periodic,) = burst_claims(first, last, about="a rank")
    assert periodic.stated
    assert (periodic.low, periodic.figure, periodic.high) == (77e-9,) * 3
    assert periodic.statement == "they repeat every 7.7e-08 s, 4 bursts a cycle"


def test_a_square_wave_has_an_order_of_one_burst() -> None:
    first, last = pattern([25], [75], 64)
    found = burst_order(first, last)
    assert (found.bursts, found.p) == (1, 1.0)
    (periodic,) = burst_claims(first, last, about="a rank")
    assert periodic.figure == pytest.approx(1e-7)


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


def test_the_hurst_exponent_of_fractional_noise() -> None:
    # the spectrum of fractional noise is known: random phases and powers are drawn
    rng = np.random.default_rng(1)
    number = 4096
    f = np.arange(1, number // 2 + 1) / number
    for hurst in (0.6, 0.75, 0.9):
        amplitude = np.abs(2 * np.sin(np.pi * f)) ** (0.5 - hurst)
        waves = amplitude * (rng.normal(size=(60, len(f), 2)) @ [1, 1j])
        series = np.fft.irfft(np.pad(waves, ((0, 0), (1, 0))), number)
        found = [hurst_exponent(one) for one in series]
        # an asymptotic standard error of 1 / sqrt(4 m), m of 4096 / 16
        assert np.mean(found) == pytest.approx(hurst, abs=0.02)
        assert np.std(found) == pytest.approx(1 / 32, rel=0.35)


@pytest.mark.parametrize("series", [[], np.zeros(1000), np.arange(255.0)])
def test_short_and_constant_series_have_no_hurst_exponent(series) -> None:
    assert np.isnan(hurst_exponent(series))


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
