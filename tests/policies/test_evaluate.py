"""evaluate: copies of the past, failures by name, several traces, the verb."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moetraffic import Trace, load_fabric
from moetraffic.cli import main
from moetraffic.errors import AnalysisError
from moetraffic.policies.catalog import POLICIES
from moetraffic.policies.cluster import Cluster
from moetraffic.policies.evaluate import evaluate
from moetraffic.policies.networks import OPTICAL
from moetraffic.policies.optical import Matchings, max_weight_matchings
from moetraffic.policies.packets import PacketNetwork
from moetraffic.policies.policy import View
from moetraffic.policies.series import (
    FORECASTERS,
    ExchangeSeries,
    byte_series,
    forecast_points,
)
from moetraffic.report.views.evaluate import chart

from .conftest import by_name, counts, rows_of, series


def drawn(steps: int = 24, **more: Any) -> ExchangeSeries:
    rng = np.random.default_rng()
    asked = {"stay": 0.9, "spread": 1.0} | more
    return series({n: counts(rng, steps=steps, **asked) for n in (0, 1)})


def saved(path: Path, steps: int = 20, ranks: int = 3) -> str:
    demand = np.random.default_rng().integers(1, 50, (steps, 1, 1, ranks, ranks))
    Trace.from_arrays(demand, row_bytes=4096).save(path)
    return str(path)


@dataclass(kw_only=True)
class Probe:
    """A policy with one behavior; it plans the persistence forecast otherwise."""

    behavior: str = ""
    name: str = "probe"
    family: str = "circuits"
    forecasts: bool = True
    seen: list[Any] = field(default_factory=list)

    def plan(self, view: View) -> Any:
        plan = max_weight_matchings(view.past[-1])
        if self.behavior == "base":
            assert view.past.base is None
            assert view.forecast.base is None
        elif self.behavior == "raises":
            raise ValueError("no such\nthing")
        elif self.behavior == "infeasible":
            return Matchings(receivers=np.zeros((1, 4), int), room=np.ones(1))
        elif self.behavior == "overwrites":
            view.past[:] = view.earlier[:] = view.forecast[:] = 0
        return plan


def test_views_are_copies() -> None:
    traffic = drawn()
    scores = [
        rows_of(evaluate(traffic, [lambda b=b: Probe(behavior=b), "max-weight"]))
        for b in ("", "base", "overwrites")
    ]
    for others in scores[1:]:
        for row, other in zip(scores[0], others, strict=True):
            assert (row.by_iteration_s == other.by_iteration_s).all()


def test_views_end_before_what_is_served() -> None:
    seen: list[View] = []

    class Recording(Probe):
        def plan(self, view: View) -> Any:
            seen.append(view)
            return super().plan(view)

    traffic = drawn()
    for age in (1, 3):
        seen.clear()
        evaluate(traffic, [Recording], age=age, forecasters=["persistence"])
        for view in seen:
            truth = traffic.layers[view.layer]
            newest = view.iteration - age
            assert (view.past == truth[newest + 1 - len(view.past) : newest + 1]).all()
            earlier = [traffic.layers[0][view.iteration]] * (age == view.layer == 1)
            assert len(view.earlier) == len(earlier)
            assert (view.earlier == np.array(earlier).reshape(-1, 4, 4)).all()


@pytest.mark.parametrize(
    ("behavior", "why"),
    [
        ("raises", "probe raised ValueError for layer 0, iteration 12: no such."),
        ("infeasible", "probe made an impossible plan for layer 0, iteration 12: "),
    ],
)
def test_a_policy_that_fails_is_named_and_the_others_go_on(
    behavior: str, why: str
) -> None:
    result = evaluate(drawn(), [lambda: Probe(behavior=behavior), "rotation"])
    assert {row.policy for row in rows_of(result)} == {"rotation"}
    (sentence,) = result.data["failures"]
    assert sentence.startswith(why)
    assert result.notes[-1] == sentence


@pytest.mark.parametrize("forecaster", FORECASTERS[:-1])
@pytest.mark.parametrize("age", [1, 4])
def test_forecasts_use_what_is_known_only(forecaster: str, age: int) -> None:
    rng = np.random.default_rng()
    known = counts(rng, steps=40, stay=0.9, spread=1.0)
    point = int(rng.integers(22, 40))
    other = known.copy()
    other[point - age + 1 :] = rng.random(other[point - age + 1 :].shape) * 1e7
    first, second = (
        forecast_points(x, np.arange(20, 40), age=age, forecaster=forecaster)
        for x in (known, other)
    )
    assert np.array_equal(first[: point - 19], second[: point - 19])


def test_series_of_a_trace_are_its_matrices() -> None:
    rng = np.random.default_rng()
    demand = rng.integers(0, 50, (20, 2, 2, 3, 6))  # two micro-batches
    trace = Trace.from_arrays(demand, row_bytes=4)
    read = byte_series(trace, phase="combine", iterations=range(2, 20))
    assert read.iterations.tolist() == list(range(2, 20))
    for layer, sent in read.layers.items():
        expected = trace.matrix(7, layer, "combine", of="wire").values
        assert (sent[5] == expected).all()


@pytest.mark.parametrize(
    ("mean", "last", "known"),
    [(4, 0.722426, 0.804633), (25, 0.887445, 0.920477), (400, 0.971795, 0.980057)],
)
def test_counting_noise_limits_what_a_plan_carries(
    mean: float, last: float, known: float
) -> None:
    """Independent Poisson entries: the last iteration, and the true probabilities."""
    x = np.random.default_rng().poisson(mean, (1024, 20, 20)).astype(float)
    points = np.arange(512, 1024)
    forecast = forecast_points(x, points, age=1, forecaster="persistence")
    for plan, share in ((np.array(forecast), last), (mean, known)):
        served = np.minimum(plan, x[points]).sum() / x[points].sum()
        assert served == pytest.approx(share, abs=6e-3)


def test_bad_input_is_one_sentence() -> None:
    small = {"small": PacketNetwork(network=load_fabric("single", 2, capacity="1Gbps"))}
    with pytest.raises(AnalysisError, match="at least 16 iterations"):
        drawn(8)
    with pytest.raises(AnalysisError, match="or one of packets, rotation"):
        evaluate(drawn(), ["nothing"])
    with pytest.raises(AnalysisError, match="forecaster is one of"):
        evaluate(drawn(), ["rotation"], forecasters=["magic"])
    with pytest.raises(AnalysisError, match="plan\\(view\\)"):
        evaluate(drawn(), [dict])
    with pytest.raises(AnalysisError, match="ranks 0 to 1, but layer 0 uses rank 3"):
        evaluate(drawn(), ["all-at-once"], networks=small)
    with pytest.raises(AnalysisError, match="age must be at least 1"):
        evaluate(drawn(), ["rotation"], age=0)


def test_options_of_the_verb_are_keywords(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = saved(tmp_path / "run.h5")
    slow = {"capacity": "1Gbps", "packets": "100Mbps", "reconfigure": "1us,1ms"}
    asked = [word for name, value in slow.items() for word in (f"--{name}", value)]
    names = "rotation,all-at-once,contiguous"
    assert main(["evaluate", run, "--json", "--policy", names, *asked]) == 0
    given = json.loads(capsys.readouterr().out)
    result = evaluate(run, names, **{**slow, "reconfigure": ["1us", "1ms"]})
    rows = given["tables"]["scores"]
    for row, other in zip(rows_of(result), rows, strict=True):
        assert row.policy == other["policy"]
        assert row.completion_mean_s == other["completion_mean_s"]
    assert {row["delay_s"] for row in rows} == {1e-6, 1e-3, None}
    with pytest.raises(AnalysisError, match="did you mean capacity"):
        evaluate(run, "rotation", capacty="1Gbps")
    for policy in ("rotation", "eplb"):
        with pytest.raises(AnalysisError, match=r"are \[0\], not \[9\]: choose"):
            evaluate(run, policy, layers=[0, 9])
    asked = ["evaluate", run, "--policy", "contiguous,eplb", "--replicas", "1"]
    assert main(asked) == 2
    why = "--replicas 1 makes 4 slots: give 0, 3 or 6"
    assert why in capsys.readouterr().err.replace("\n", " ")
    assert main(["evaluate", run, "--age", "0"]) == 2
    assert main(["evaluate", run, "--packets", "0", "--rest", "packets"]) == 2
    notes = {h: evaluate(run, "rotation", most=4, hold=h).notes for h in (3, 4)}
    assert notes[3] == ()
    assert "plans are made once" in notes[4][0]
    with pytest.raises(AnalysisError, match="give networks"):
        evaluate(run, "rotation", networks={"optical": OPTICAL}, capacity="1Gbps")


def test_a_trace_that_repeats_its_capture_says_why_its_first_part_is_served() -> None:
    rng = np.random.default_rng()
    demand = rng.multinomial(64, np.full(4, 0.25), size=(40, 1, 2))
    run = Trace.from_arrays(demand, row_bytes=4096)
    meta = replace(run.meta, origin="generated", repeats_from=24)
    result = evaluate(run.replaced(meta=meta), "rotation")
    assert result.data["runs"][0]["iterations"] == (12, 23)
    assert "iterations 24 to 39 repeat captured ones" in result.notes[0]


def test_several_traces_are_one_table_with_intervals_over_traces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [saved(tmp_path / f"{n}.h5", ranks=4) for n in range(3)]
    result = evaluate(runs, "rotation,max-weight", forecasters=["persistence"])
    assert len(result.rows("scores")) == 3 * 3
    lines = {line["policy"]: line for line in result.rows("policies")}
    for (policy, forecaster), _ in by_name(result).items():
        if forecaster == "oracle":
            continue
        ratios = [
            row.over_bound
            for row in rows_of(result)
            if (row.policy, row.forecaster) == (policy, forecaster)
        ]
        mean = np.exp(np.mean(np.log(ratios)))
        assert lines[policy]["over_bound"] == pytest.approx(mean)
        low, high = lines[policy]["over_bound_interval"]
        assert low < mean < high
        # Student's 97.5% quantile for two degrees of freedom
        half = 4.302653 * np.std(np.log(ratios), ddof=1) / np.sqrt(3)
        assert np.log(high / mean) == pytest.approx(half, rel=1e-5)
    assert main(["evaluate", *runs, "--policy", "rotation"]) == 0
    assert capsys.readouterr().out.startswith("3 traces: dispatch")


OWN = """
from dataclasses import dataclass

from moetraffic.policies.circuits import MaxWeight


@dataclass(frozen=True)
class Own(MaxWeight):
    name: str = "own"


class Failing(Own):
    def plan(self, view):
        raise ValueError("no plan")


class Needy(Own):
    def __init__(self, size):
        pass
"""


def test_a_policy_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, own = saved(tmp_path / "run.h5"), tmp_path / "own.py"
    own.write_text(OWN)
    asked = ["evaluate", run, "--json", "--policy"]
    assert main([*asked, f"rotation,{own}:Own,{own}:Failing"]) == 0
    given = json.loads(capsys.readouterr().out)
    scores = given["tables"]["scores"]
    assert {row["policy"] for row in scores} == {"rotation", "own"}
    (failure,) = given["data"]["failures"]
    assert failure.startswith("own raised ValueError for layer 0")
    own.with_name("broken.py").write_text("import nothing_of_this_name")
    for name, why in (
        (f"{own}:Missing", "no class 'Missing'"),
        (f"{own}", f"give {own}:Own or {own}:Failing or {own}:Needy"),
        ("birkhof", "did you mean birkhoff"),
        (f"{own}:Needy", "cannot be made without arguments"),
        (f"{tmp_path}/broken.py:Own", "ModuleNotFoundError"),
        (f"{tmp_path}/absent.py:Own", "correct the file or its path"),
    ):
        assert main([*asked, name]) == 2
        said = capsys.readouterr().err
        assert why in said.replace("\n", " ")
        assert "Traceback" not in said


@pytest.mark.slow
def test_lists_of_ages_delays_and_circuits_are_drawn_as_lines(tmp_path: Path) -> None:
    rng = np.random.default_rng()
    demand = rng.multinomial(256, np.full(4, 0.25), size=(32, 1, 4))
    trace = Trace.from_arrays(demand, row_bytes=4096)
    result = evaluate(
        trace,
        ["rotation", "max-weight", "all-at-once"],
        forecasters=["persistence"],
        age=(1, 2),
        reconfigure=("10us", "1ms"),
        circuits=(1, 2),
        most=4,
    )
    rows = [row for row in rows_of(result) if row.forecaster == "oracle"]
    mean = {
        (row.age, row.delay_s, row.circuits_of_port): row.completion_mean_s
        for row in rows
    }
    assert len(mean) == 8
    assert mean[1, 1e-5, 2] < mean[1, 1e-5, 1] < mean[1, 1e-3, 1]
    assert len(chart(result).panels) == 4
    trace.save(tmp_path / "run.h5")
    asked = ["evaluate", str(tmp_path / "run.h5"), "--policy", "rotation,max-weight"]
    picture = tmp_path / "ages.pdf"
    assert main([*asked, "--age", "1,4", "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"%PDF")


def test_every_built_in_policy_conforms() -> None:
    fabric = load_fabric("single", 5, capacity="400Gbps")
    result = evaluate(
        drawn(16, ranks=5),
        [*POLICIES],
        networks={
            "optical": OPTICAL,
            "single": PacketNetwork(network=fabric, distinct=np.ones((5, 5))),
            "cluster": Cluster(rate_bytes_s=1e9),
        },
        forecasters=["persistence"],
        most=2,
    )
    assert result.data["failures"] == []
    assert {row.policy for row in rows_of(result)} == set(POLICIES)


@pytest.mark.slow
def test_a_dask_cluster_gives_the_same_scores(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    runs = [saved(tmp_path / f"{n}.h5") for n in range(2)]
    asked: dict[str, Any] = {"forecasters": ["persistence"], "capacity": "1Gbps"}
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        there = evaluate(runs, "rotation,max-weight", client=client, **asked)
    here = evaluate(runs, "rotation,max-weight", **asked)
    for row, other in zip(rows_of(here), rows_of(there), strict=True):
        assert (row.by_iteration_s == other.by_iteration_s).all()
