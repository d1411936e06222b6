"""The harness and evaluate: no look-ahead, failures by name, known orders."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moetraffic import Trace, load_fabric
from moetraffic.analysis.intervals import Interval
from moetraffic.cli import main
from moetraffic.errors import AnalysisError
from moetraffic.policies.catalog import POLICIES
from moetraffic.policies.evaluation import OPTICAL, evaluate
from moetraffic.policies.exchange_series import (
    FORECASTERS,
    ExchangeSeries,
    MatrixWindow,
    forecast_points,
)
from moetraffic.policies.policy import View
from moetraffic.policies.scores import CURVES, PolicyScore, break_even_s
from moetraffic.policies.service.cluster import Cluster
from moetraffic.policies.service.optical import (
    Matchings,
    Service,
    max_weight_matchings,
)
from moetraffic.policies.service.packet_network import PacketNetwork
from moetraffic.policies.trace_series import byte_series
from moetraffic.report.policy_scores import chart

from .conftest import counts, series


def drawn(steps: int = 24, **more: Any) -> ExchangeSeries:
    rng = np.random.default_rng()
    asked = {"stay": 0.9, "spread": 1.0} | more
    return series({n: counts(rng, steps=steps, **asked) for n in (0, 1)})


@dataclass(kw_only=True)
class Probe:
    """A policy with one behavior; it plans the persistence forecast otherwise."""

    behavior: str = ""
    name: str = "probe"
    family: str = "circuits"
    forecasts: bool = False
    seen: list[Any] = field(default_factory=list)

    def plan(self, view: View) -> Any:
        guess = view.past[-1]
        if self.behavior == "frames":
            guess = _from_frames(view)
        elif self.behavior == "base":
            assert view.past.base is None
            assert view.forecast.base is None
        elif self.behavior == "random":
            guess = np.random.default_rng().random(guess.shape)
        elif self.behavior == "raises":
            raise ValueError("no such\nthing")
        elif self.behavior == "infeasible":
            return Matchings(receivers=np.zeros((1, 4), int), room=np.ones(1))
        elif self.behavior == "poisons":
            view.past[:] = 0
            view.forecast[:] = 0
        return max_weight_matchings(guess)


def _from_frames(view: View) -> np.ndarray:
    """Read the truth out of the harness's local variables."""
    frame: Any = sys._getframe()
    while frame is not None:
        found = frame.f_locals.get("series")
        if isinstance(found, ExchangeSeries):
            return found.layers[view.layer][view.iteration]
        frame = frame.f_back
    raise AssertionError("no frame has the series")


def failures(behavior: str, **more: Any) -> tuple[str, ...]:
    def maker() -> Probe:
        return Probe(behavior=behavior)

    found = evaluate(drawn(), [maker, "rotation"], **more)
    assert [s.policy for s in found.scores if s.policy != "probe"] == ["rotation"]
    assert (len(found.scores) == 2) == (not found.failures)
    return found.failures


def test_honest_policies_pass() -> None:
    assert failures("") == ()
    assert failures("base") == ()
    assert failures("poisons") == ()  # its own copies alone


def test_a_policy_that_reads_the_truth_is_caught() -> None:
    (sentence,) = failures("frames")
    assert sentence.startswith("probe uses traffic that is not known when it plans")


@pytest.mark.parametrize(
    ("behavior", "why"),
    [
        ("raises", "probe raised ValueError for layer 0"),
        ("infeasible", "probe made an impossible plan for layer 0"),
        ("random", "probe makes other plans when it is run again"),
    ],
)
def test_a_policy_that_fails_is_named_and_the_others_go_on(
    behavior: str, why: str
) -> None:
    (sentence,) = failures(behavior)
    assert sentence.startswith(why)
    assert "\n" not in sentence


def test_the_verb_names_the_policies_that_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, own = str(tmp_path / "run.h5"), tmp_path / "own.py"
    demand = np.random.default_rng().integers(1, 50, (20, 1, 1, 3, 3))
    Trace.from_arrays(demand, row_bytes=4096).save(run)
    own.write_text(OWN)
    assert main(["evaluate", run, "--policy", f"rotation,{own}:Failing"]) == 0
    summary, line, *_ = capsys.readouterr().out.splitlines()
    assert "rotation is the only one scored" in summary
    assert line.startswith("Failed: own (ValueError for layer 0, iteration ")
    assert line.endswith(": no plan).")


def test_options_of_the_verb_are_keywords(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run.h5")
    demand = np.random.default_rng().integers(1, 50, (20, 1, 1, 3, 3))
    Trace.from_arrays(demand, row_bytes=4096).save(run)
    slow = {"capacity": "1Gbps", "packets": "100Mbps", "reconfigure": "1us"}
    asked = [word for name, value in slow.items() for word in (f"--{name}", value)]
    names = "rotation,all-at-once,contiguous"
    assert main(["evaluate", run, "--json", "--policy", names, *asked]) == 0
    (told,) = json.loads(capsys.readouterr().out)["runs"]
    found = evaluate(run, names, **slow)
    for one, other in zip(found.scores, told["scores"], strict=True):
        assert one.policy == other["policy"]
        assert one.completion_mean_s == other["completion_mean_s"]
    with pytest.raises(AnalysisError, match="did you mean capacity"):
        evaluate(run, "rotation", capacty="1Gbps")
    for name, known in (("replicas", "replicas"), ("token_time", "token_s")):
        with pytest.raises(AnalysisError, match=rf"networks=.*Cluster\(.*{known}="):
            evaluate(run, "eplb", **{name: 3})
    for policy in ("rotation", "eplb"):
        with pytest.raises(AnalysisError, match=r"are \[0\], not \[9\]: choose"):
            evaluate(run, policy, layers=[0, 9])
    assert (
        main(["evaluate", run, "--policy", "contiguous,eplb", "--replicas", "1"]) == 2
    )
    why = "--replicas 1 makes 4 slots: give 0, 3 or 6"
    assert why in capsys.readouterr().err.replace("\n", " ")
    notes = {h: evaluate(run, "rotation", most=4, hold=h).notes for h in (3, 4)}
    assert notes[3] == ()
    assert "plans are made once" in notes[4][0]
    with pytest.raises(AnalysisError, match="give networks"):
        evaluate(run, "rotation", networks={"optical": OPTICAL}, capacity="1Gbps")


def test_a_trace_that_repeats_its_capture_says_why_its_first_part_is_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng()
    demand = rng.multinomial(64, np.full(4, 0.25), size=(40, 1, 2))
    run = Trace.from_arrays(demand, row_bytes=4096)
    meta = replace(run.meta, origin="generated", repeats_from=24)
    run.replaced(meta=meta).save(tmp_path / "long.h5")
    asked = ["evaluate", str(tmp_path / "long.h5"), "--policy", "rotation"]
    assert main(asked) == 0
    assert (
        "Served: iterations 12 to 23; synthetic: iterations 24 to 39 repeat captured "
        "ones, left out."
    ) in capsys.readouterr().out
    assert main([*asked, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["runs"]
    assert "repeat captured ones" in told["notes"][0]


def test_observations_come_when_they_are_known() -> None:
    told: list[tuple[int, int]] = []

    @dataclass(kw_only=True)
    class Learner(Probe):
        now: int = 0

        def plan(self, view: View) -> Any:
            self.now = view.iteration
            return super().plan(view)

        def observe(self, view: View, service: Service) -> None:
            assert service.demand_bytes > 0
            told.append((self.now, view.iteration))

    found = evaluate(drawn(), [Learner], age=3, forecasters=["persistence"])
    assert found.failures == ()
    # the iteration before the current plan's, at least the age before the next one
    assert told
    assert all(of <= now + 1 - 3 for now, of in told)


@pytest.mark.parametrize("forecaster", FORECASTERS[:-1])
@pytest.mark.parametrize("age", [1, 4])
def test_forecasts_use_what_is_known_only(forecaster: str, age: int) -> None:
    rng = np.random.default_rng()
    known = counts(rng, steps=40, stay=0.9, spread=1.0)
    point = int(rng.integers(22, 40))
    other = known.copy()
    other[point - age + 1 :] = rng.random(other[point - age + 1 :].shape) * 1e7
    one, two = (
        forecast_points(x, np.arange(20, 40), age=age, forecaster=forecaster)
        for x in (known, other)
    )
    assert np.array_equal(one[: point - 19], two[: point - 19])


def test_series_of_a_trace_are_its_matrices() -> None:
    rng = np.random.default_rng()
    demand = rng.integers(0, 50, (20, 2, 2, 3, 6))  # two micro-batches
    trace = Trace.from_arrays(demand, row_bytes=4)
    read = byte_series(trace, phase="combine", iterations=range(2, 20))
    assert read.iterations.tolist() == list(range(2, 20))
    for layer, sent in read.layers.items():
        expected = trace.matrix(7, layer, "combine", of="wire").values
        assert (sent[5] == expected).all()


def test_matrices_that_are_read_as_needed_give_the_same_scores() -> None:
    known = drawn(20)
    reads = []

    def window(matrices: Any) -> MatrixWindow:
        def read(at: int) -> np.ndarray:
            reads.append(at)
            return np.array(matrices[at])

        return MatrixWindow(read, matrices.shape)

    windows = {layer: window(x) for layer, x in known.layers.items()}
    asked: dict[str, Any] = {"forecasters": ["persistence", "shuffled"]}
    names = ["rotation", "max-weight", "regional"]
    one = evaluate(known, names, **asked)
    other = evaluate(replace(known, layers=windows), names, **asked)
    assert [s.by_iteration_s for s in one.scores] == [
        s.by_iteration_s for s in other.scores
    ]
    assert 0 < len(reads) < 10 * 20 * 2
    assert np.array_equal(windows[0][3:7], known.layers[0][3:7])
    with pytest.raises(AnalysisError, match="needs all matrices in memory"):
        evaluate(replace(known, layers=windows), names, forecasters=["chosen"])


def by_name(scores: tuple[PolicyScore, ...]) -> dict[tuple[str, str], PolicyScore]:
    return {(s.policy, s.forecaster): s for s in scores}


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
    found = forecast_points(x, points, age=1, forecaster="persistence")
    for plan, share in ((found, last), (mean, known)):
        served = np.minimum(plan, x[points]).sum() / x[points].sum()
        assert served == pytest.approx(share, abs=6e-3)


def test_break_even_is_where_the_times_cross() -> None:
    found = evaluate(
        drawn(32),
        ["rotation", "max-weight"],
        forecasters=["persistence"],
        delays_s=[1e-9],
    )
    score = by_name(found.scores)["max-weight", "persistence"]

    def at(policy: str, forecaster: str, delay: float, mean: float) -> PolicyScore:
        changed = {"policy": policy, "forecaster": forecaster, "delay_s": delay}
        return PolicyScore(**{**vars(score), **changed, "completion_mean_s": mean})

    made = type(found)(
        **{
            **vars(found),
            "scores": (at("a", "chosen", 1e-6, 1.0), at("b", "none", 1e-6, 2.0)),
            "by_delay": (at("a", "chosen", 1e-2, 2.0), at("b", "none", 1e-2, 1.0)),
        }
    )
    assert break_even_s(made, "a", "chosen") == pytest.approx(1e-4)
    assert np.isnan(break_even_s(made, "b", "chosen"))


def test_bad_input_is_one_sentence() -> None:
    with pytest.raises(AnalysisError, match="at least 16 iterations"):
        drawn(8)
    with pytest.raises(AnalysisError, match="or one of rotation"):
        evaluate(drawn(), ["nothing"])
    with pytest.raises(AnalysisError, match="forecaster is one of"):
        evaluate(drawn(), ["rotation"], forecasters=["magic"])
    with pytest.raises(AnalysisError, match="plan\\(view\\)"):
        evaluate(drawn(), [dict])
    with pytest.raises(AnalysisError, match="ranks 0 to 1, but layer 0 uses rank 3"):
        evaluate(drawn(), ["all-at-once"], networks={"small": ports(2)})
    with pytest.raises(AnalysisError, match="age must be at least 1"):
        evaluate(drawn(), ["rotation"], age=0)


def test_the_verb_prints_a_verdict_a_table_and_curves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng()
    demand = rng.multinomial(64, np.full(4, 0.25), size=(24, 1, 2))
    path = tmp_path / "run.h5"
    Trace.from_arrays(demand, row_bytes=4096).save(path)
    asked = ["evaluate", str(path), "--policy", "rotation,max-weight"]
    assert main(asked) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Circuits on optical: ")
    *told, last = shown.splitlines()
    assert len(told) <= 8
    assert "--tables" in last
    assert main([*asked, "--ages", "3", "--delays", "1us,1ms", "--tables"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Circuits on optical: ")
    assert "Age of the plan" in shown
    assert "Reconfiguration delay" in shown
    assert main([*asked, "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    usual = (
        "circuits of 400 Gbps, 10 us to reconfigure, packets of 50 Gbps beside "
        "(default of --packets)"
    )
    assert run["networks"] == {"optical": usual}
    assert f"Network optical: {usual}." in shown
    frame = evaluate(Trace.open(path), ["rotation", "max-weight"]).to_frame()
    assert len(frame) == len(run["scores"]) == 5
    assert {"regret", "regret_low", "regret_high"} <= set(frame.columns)
    assert main([*asked, "--ages", "0"]) == 2
    assert main([*asked, "--packets", "0", "--rest", "packets"]) == 2


OWN = """
from dataclasses import dataclass

from moetraffic.policies.circuits.max_weight import MaxWeight


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
    demand = np.random.default_rng().integers(1, 50, (20, 1, 1, 3, 3))
    run, own = str(tmp_path / "run.h5"), tmp_path / "own.py"
    Trace.from_arrays(demand, row_bytes=4096).save(run)
    own.write_text(OWN)
    asked = ["evaluate", run, "--json", "--policy"]
    assert main([*asked, f"rotation,{own}:Own,{own}:Failing"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["runs"]
    assert {s["policy"] for s in found["scores"]} == {"rotation", "own"}
    (failure,) = found["failures"]
    assert failure.startswith("own raised ValueError for layer 0")
    own.with_name("broken.py").write_text("import nothing_of_this_name")
    for name, why in (
        (f"{own}:Missing", "no attribute 'Missing'"),
        (f"{own}", f"give {own}:Own or {own}:Failing or {own}:Needy"),
        ("birkhof", "did you mean birkhoff"),
        (f"{own}:Needy", "cannot be made without arguments"),
        (f"{tmp_path}/broken.py:Own", "ModuleNotFoundError"),
        (f"{tmp_path}/absent.py:Own", "absent.py: correct the path"),
    ):
        assert main([*asked, name]) == 2
        told = capsys.readouterr().err
        assert why in told.replace("\n", " ")
        assert "Traceback" not in told
    assert main(["evaluate", run, "--policy", f"rotation,{own}:Own"]) == 0
    score = min(
        (s for s in found["scores"] if s["policy"] == "own"),
        key=lambda s: (s["forecaster"] == "oracle", s["completion_mean_s"]),
    )
    figure = f"own with the {score['forecaster']} forecast on optical: "
    figure += f"{score['over_bound']['value']:.3g} times the bound."
    assert figure in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_curves_change_one_quantity(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng()
    demand = rng.multinomial(256, np.full(4, 0.25), size=(32, 1, 4))
    trace = Trace.from_arrays(demand, row_bytes=4096)
    found = evaluate(
        trace,
        ["rotation", "max-weight", "all-at-once"],
        networks={"optical": OPTICAL, "single": ports(4)},
        forecasters=["persistence"],
        ages=(2,),
        delays_s=(1e-3,),
        circuits=(2,),
        most=4,
    )
    assert found.failures == ()
    assert {s.circuits for s in found.by_circuits} == {2}
    assert found.scores[0].tokens == 256
    # twice the circuits and the same packets: the bound falls, no plan is slower
    twice = by_name(found.by_circuits)["max-weight", "oracle"]
    once = by_name(found.scores)["max-weight", "oracle"]
    assert twice.completion_mean_s < once.completion_mean_s
    frame = found.to_frame()
    assert set(frame["curve"]) == {"", *CURVES}
    assert len(frame) == sum(len(getattr(found, f"by_{c}")) for c in CURVES) + len(
        found.scores
    )
    drawn_panels = chart(found).panels
    assert len(drawn_panels) == 1 + len(CURVES)
    trace.save(tmp_path / "run.h5")
    asked = ["evaluate", str(tmp_path / "run.h5"), "--policy", "rotation,max-weight"]
    asked += ["--ages", "4"]
    picture = tmp_path / "curves.pdf"
    assert main([*asked, "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"%PDF")
    said = " ".join(capsys.readouterr().out.split())
    assert "a plan 4 iterations old costs" in said


def ports(ranks: int) -> PacketNetwork:
    fabric = load_fabric("single", ranks, capacity="400Gbps")
    return PacketNetwork(topology=fabric.topology, slots=fabric.slots)


def test_every_built_in_policy_conforms() -> None:
    fabric = load_fabric("single", 5, capacity="400Gbps")
    packets = PacketNetwork(
        topology=fabric.topology, slots=fabric.slots, distinct=np.ones((5, 5))
    )
    found = evaluate(
        drawn(16, ranks=5),
        [*POLICIES],
        networks={
            "optical": OPTICAL,
            "single": packets,
            "cluster": Cluster(rate_bytes_s=1e9),
        },
        forecasters=["persistence"],
        most=2,
    )
    assert found.failures == ()
    assert {s.policy for s in found.scores} == set(POLICIES)
    assert all(isinstance(s.regret, Interval) for s in found.scores)
    assert OPTICAL.rest == "packets"
