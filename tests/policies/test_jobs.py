"""Jobs on shared links: CASSINI's scores, iteration times, order of policies."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moetraffic import Trace, load_fabric
from moetraffic.cli import main
from moetraffic.errors import AnalysisError, FabricError
from moetraffic.fabric import Job, compatibility
from moetraffic.fabric.compatibility import around, score
from moetraffic.policies.evaluation import evaluate
from moetraffic.policies.jobs.exchanges import job_series
from moetraffic.policies.jobs.shifts import Compatible, RandomShifts, profiles
from moetraffic.policies.policy import View
from moetraffic.policies.service.shared_links import (
    SharedLinks,
    Shifts,
    serve_shifts,
    shared_bound,
    shift_violations,
)

from .conftest import view_of


def job(period: float, on: float) -> Job:
    """A burst at the full rate at the beginning of each period."""
    rate = np.arange(int(period)) < on
    return Job(name="j", period_s=period, rate_bytes_s=rate.astype(float))


@pytest.mark.parametrize(
    ("shift", "expected"), [(0, 0.6), (2, 0.8), (4, 1), (6, 1), (8, 0.8)]
)
def test_scores_of_equal_periods(shift: int, expected: float) -> None:
    one = around(job(10, 4), repeats=1, angles=360)
    both = one + np.roll(one, shift * 36)
    assert score(both, capacity_bytes_s=1) == pytest.approx(expected)


def test_scores_of_periods_40_and_60() -> None:
    """Free of overlap only if both bursts fit into the greatest common divisor."""
    found = compatibility([job(40, 10), job(60, 10)], capacity_bytes_s=1, tolerance=0)
    assert found.score == pytest.approx(1)
    assert found.worst == pytest.approx(0.916667, abs=1e-6)
    assert found.shifts_s[1] % 20 == pytest.approx(10, abs=1)
    found = compatibility([job(40, 20), job(60, 20)], capacity_bytes_s=1, tolerance=0)
    assert found.score == found.worst == pytest.approx(0.833333, abs=1e-6)


def links(compute: float, jobs: int = 2, capacity: float = 1.0) -> SharedLinks:
    return SharedLinks(
        capacity=np.full(1, capacity), compute_s=np.full((jobs, 1), compute)
    )


@pytest.mark.parametrize(
    ("shift", "seconds"), [(0, 14), (2, 12), (4, 10), (6, 10), (8, 12)]
)
def test_two_bursts_of_4_in_periods_of_10(shift: float, seconds: float) -> None:
    """Overlap of o seconds delays both by o in the first iteration, and then again."""
    plan = Shifts(shifts_s=np.array([0.0, shift]))
    bursts = np.full((2, 1, 1), 4.0)
    # with shift 8 the first job's second burst meets the second job's first one
    found = serve_shifts(bursts, plan, links(6))
    assert shared_bound(bursts, links(6)) == 10
    if shift in (0, 4, 6):
        assert found.completion_s == pytest.approx(seconds)
    else:
        assert 10 < found.completion_s < 14


def test_jobs_with_room_for_all_never_wait() -> None:
    rng = np.random.default_rng()
    sent = rng.integers(0, 9, (3, 4, 2)).astype(float)
    wide = SharedLinks(capacity=np.full(2, 100.0), compute_s=rng.uniform(0, 1, (3, 4)))
    plan = Shifts(shifts_s=rng.uniform(0, 5, 3))
    alone = shared_bound(sent, wide)
    # three jobs on links together take between one's and three times one's transfers
    took = serve_shifts(sent, plan, wide).completion_s
    compute = wide.compute_s.sum(axis=1).mean()
    assert alone - 1e-9 <= took <= compute + 3 * (alone - compute) + 1e-9
    apart = np.zeros((2, 1, 2))
    apart[0, 0, 0] = apart[1, 0, 1] = 4  # different links
    both = SharedLinks(capacity=np.ones(2), compute_s=np.full((2, 1), 6.0))
    assert serve_shifts(apart, Shifts(shifts_s=np.zeros(2)), both).completion_s == 10


def test_a_profile_keeps_the_bytes_and_the_period() -> None:
    rng = np.random.default_rng()
    sent = rng.integers(1, 9, (2, 5, 3)).astype(float)
    on = SharedLinks(capacity=np.array([1.0, 2, 3]), compute_s=rng.random((2, 5)))
    for number, made in enumerate(profiles(sent, on, 1)):
        total = made.rate_bytes_s.mean() * made.period_s
        assert total == pytest.approx(sent[number, :, 1].sum())


def test_cassini_on_bursts_that_fit() -> None:
    sent = np.full((2, 1, 1), 4.0)
    plan = Compatible().plan(view_of(sent, links(6)))
    assert serve_shifts(sent, plan, links(6)).completion_s == pytest.approx(10)
    nothing = np.zeros((2, 1, 2))
    nothing[0, 0, 0] = nothing[1, 0, 1] = 1
    on = SharedLinks(capacity=np.ones(2), compute_s=np.ones((2, 1)))
    assert not Compatible().plan(view_of(nothing, on)).shifts_s.any()
    assert RandomShifts().plan(view_of(sent, links(6))).shifts_s.max() < 10


def runs(rng: np.random.Generator, count: int = 2, steps: int = 24) -> list[Trace]:
    made = []
    for _ in range(count):
        share = rng.dirichlet(np.full(4, 2.0), size=(1, 4))
        demand = rng.multinomial(500, share, size=(steps, 1, 4))
        made.append(Trace.from_arrays(demand, row_bytes=4096))
    return made


NAMES = ["unshifted", "random-shifts", "cassini"]


def test_shifts_of_jobs_on_one_port_and_on_a_network() -> None:
    rng = np.random.default_rng()
    share = float(rng.uniform(0.2, 0.4))
    same = runs(rng, 1) * 2  # every exchange of one job meets that of the other
    series, port = job_series(same, capacity_bytes_s=1e9, communication=share)
    found = evaluate(
        series, NAMES, networks={"port": port}, forecasters=["persistence"]
    )
    assert found.failures == ()
    score_of = {(s.policy, s.forecaster): s for s in found.scores}
    assert min(s.over_bound.value for s in found.scores) >= 1 - 1e-9
    shifted = score_of["cassini", "persistence"].over_bound.value
    together = score_of["unshifted", "none"].over_bound.value
    assert together == pytest.approx(1 + share, rel=0.03)
    assert shifted < 1 + share / 2
    fabric = load_fabric("leaf-spine", 8, capacity="8Gbps")
    series, on = job_series(
        runs(rng),
        capacity_bytes_s=1e9,
        topology=fabric.topology,
        slots=fabric.slots,
    )
    found = evaluate(series, NAMES, networks={"leaves": on}, most=4)
    assert found.failures == ()


def test_a_jobs_policy_that_reads_the_truth_is_caught() -> None:
    class Cheat:
        name, family, forecasts = "cheat", "jobs", False

        def plan(self, view: View) -> Shifts:
            frame: Any = sys._getframe()
            while "series" not in frame.f_locals:
                frame = frame.f_back
            truth = frame.f_locals["series"].layers[view.layer][view.iteration]
            return Shifts(shifts_s=truth.sum(axis=(1, 2)) * 1e-12)

    series, port = job_series(runs(np.random.default_rng()), capacity_bytes_s=1e9)
    found = evaluate(series, [Cheat, "unshifted"], networks={"port": port}, most=4)
    (sentence,) = found.failures
    assert sentence.startswith("cheat uses traffic that is not known")
    assert [s.policy for s in found.scores] == ["unshifted"]


def test_impossible_jobs() -> None:
    with pytest.raises(AnalysisError, match="one trace"):
        job_series(runs(np.random.default_rng(), 1), capacity_bytes_s=1)
    with pytest.raises(AnalysisError, match="at most 1"):
        job_series(runs(np.random.default_rng()), capacity_bytes_s=1, communication=2)
    with pytest.raises(FabricError, match="positive"):
        links(1, capacity=0)
    for shifts, why in ((np.ones(3), "2 times"), (np.full(2, 99.0), "at most 4 s")):
        plan = Shifts(shifts_s=shifts)
        assert why in shift_violations(plan, np.ones((2, 1, 1)), links(1))
    assert "Shifts" in shift_violations("x", np.ones((2, 1, 1)), links(1))


def test_the_verb_evaluates_traces_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for number, run in enumerate(runs(np.random.default_rng(), steps=16)):
        paths.append(str(tmp_path / f"{number}.h5"))
        run.save(paths[-1])
    asked = ["evaluate", *paths, "--policy", "unshifted,cassini", "--most", "4"]
    assert main([*asked, "--json"]) == 0
    (together,) = json.loads(capsys.readouterr().out)["runs"]
    assert {s["family"] for s in together["scores"]} == {"jobs"}
    assert main([*asked[:2], *asked[3:]]) == 2
    assert "two or more" in capsys.readouterr().err
