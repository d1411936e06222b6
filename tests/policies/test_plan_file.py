"""Plans in files are served as those of a policy."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from moetraffic import Trace, load_fabric
from moetraffic.cli import main
from moetraffic.errors import AnalysisError
from moetraffic.policies.evaluation import OPTICAL, evaluate
from moetraffic.policies.plan_file import plan_file
from moetraffic.policies.service.cluster import Cluster
from moetraffic.policies.service.packet_network import PacketNetwork
from tests.cli.printed import unwrapped


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rng = np.random.default_rng()
    demand = rng.multinomial(64, np.full(4, 0.25), size=(20, 1, 2))
    Trace.from_arrays(demand, row_bytes=4096).save(tmp_path / "run.h5")
    return tmp_path / "run.h5"


def test_a_schedule_is_evaluated_as_static_plans(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = trace.with_name("circuits.json")
    assert main(["schedule", str(trace), "-o", str(made)]) == 0
    capsys.readouterr()
    asked = ["evaluate", str(trace), "--policy", "rotation", "--plan", str(made)]
    assert main([*asked, "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert [s["policy"] for s in run["scores"]] == ["rotation", "circuits.json"]
    # two ranks have one matching; the mean matrix carries most bytes
    assert run["scores"][1]["reconfigurations"] == 1
    assert run["scores"][1]["served_share"] > 0.7
    assert main(asked) == 0
    bound = run["scores"][1]["over_bound"]["value"]
    shown = capsys.readouterr().out
    assert f"circuits.json on optical: {bound:.3g} times the bound." in shown


def test_a_plan_that_knows_the_served_iterations_is_not_ranked(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = trace.with_name("circuits.json")
    asked = ["evaluate", str(trace), "--policy", "rotation", "--plan", str(made)]
    known = "planned from iterations 0:20, of which 10:20 are served: not a forecast"
    for chosen, told in (([], True), (["--iterations", "0:10"], False)):
        ran = ["schedule", str(trace), "-o", str(made), "--force", *chosen]
        assert main(ran) == 0
        printed = unwrapped(capsys.readouterr().out)
        assert ("give --iterations 0:10." in printed) == told
        assert main(asked) == 0
        verdict = " ".join(capsys.readouterr().out.splitlines())
        assert (known in verdict) == told
        assert ("rotation is the only one scored" in verdict) == told
        ranked = re.search("(fastest|lowest mean completion time of those)", verdict)
        assert (ranked is None) == told
        assert "circuits.json on optical: " in verdict  # scored in both cases
    # a plan of another run, or of unknown iterations, is ranked
    plan = json.loads(made.read_text()) | {"file": "other.h5"}
    del plan["digest"]  # as in plans of earlier releases
    plan["exchanges"][0]["iterations"] = [0, 20]
    made.write_text(json.dumps(plan))
    assert not evaluate(Trace.open(trace), [plan_file(made)]).informed
    del plan["exchanges"][0]["iterations"]
    made.write_text(json.dumps(plan | {"file": str(trace)}))
    assert not evaluate(Trace.open(trace), [plan_file(made)]).informed


def test_a_plan_knows_its_run_by_content(trace: Path, tmp_path: Path) -> None:
    made = tmp_path / "circuits.json"
    assert main(["schedule", str(trace), "-o", str(made)]) == 0
    moved = trace.rename(tmp_path / "moved.h5")
    assert evaluate(Trace.open(moved), [plan_file(made)]).informed
    other = np.random.default_rng().multinomial(64, np.full(4, 0.25), size=(20, 1, 2))
    Trace.from_arrays(other, row_bytes=4096).save(trace)  # of the name of the first
    assert not evaluate(Trace.open(trace), [plan_file(made)]).informed


def test_a_placement_in_a_file(trace: Path) -> None:
    path = trace.with_name("experts.json")
    plan = {"experts": [0, 1, 2, 3], "ranks": [1, 0, 1, 0]}
    path.write_text(json.dumps({"family": "placement", "layers": {"*": plan}}))
    found = evaluate(Trace.open(trace), [plan_file(path), "contiguous"])
    assert [s.policy for s in found.scores] == ["experts.json", "contiguous"]
    path.write_text(json.dumps({"family": "placement", "layers": {"7": plan}}))
    found = evaluate(Trace.open(trace), [plan_file(path), "contiguous"])
    (sentence,) = found.failures
    assert "none for this layer" in sentence


def test_each_kind_of_plan_in_a_file(trace: Path) -> None:
    hops = {"round": [0, 0], "pair": [1, 2], "sender": [0, 1], "receiver": [1, 0]}
    plans: list[tuple[str, dict[str, object]]] = [
        ("circuits", {"receivers": [[1, 0]], "room": [65536]}),
        ("circuits", {"number": [[0, 1], [1, 0]]}),
        ("placement", {"experts": [0, 1, 2, 3], "ranks": [1, 0, 1, 0]}),
        ("transmission", {"shares": [[[1, 1], [1, 1]]], "routing": "ideal"}),
        ("transmission", {**hops, "share": [1, 1]}),
    ]
    made = []
    for number, (family, plan) in enumerate(plans):
        path = trace.with_name(f"{number}.json")
        path.write_text(json.dumps({"family": family, "layers": {"*": plan}}))
        made.append(plan_file(path))
    fabric = load_fabric("single", 2, capacity="400Gbps")
    networks = {
        "optical": OPTICAL,
        "cluster": Cluster(rate_bytes_s=1e9),
        "single": PacketNetwork(topology=fabric.topology, slots=fabric.slots),
    }
    found = evaluate(Trace.open(trace), made, networks=networks)
    assert found.failures == ()
    assert [s.policy for s in found.scores] == [f"{n}.json" for n in range(5)]
    assert all(s.completion_mean_s > 0 for s in found.scores)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"family": "x", "layers": {}}'])
def test_other_files_are_refused_in_one_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(AnalysisError, match="JSON with family and layers"):
        plan_file(path)
    with pytest.raises(AnalysisError, match="cannot be read"):
        plan_file(tmp_path / "missing.json")


def test_a_plan_that_does_not_fit_the_trace_ends_with_exit_code_2(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trace.with_name("bad.json")
    plan = {"receivers": [[1, 2, 0]], "room": [4096]}
    path.write_text(json.dumps({"family": "circuits", "layers": {"*": plan}}))
    asked = ["evaluate", str(trace), "--policy", "rotation", "--plan", str(path)]
    assert main(asked) == 2
    said = capsys.readouterr()
    assert not said.out
    assert "a file of plans fits the trace, but bad.json made an" in said.err
