"""Plans in files are served as those of a policy."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from moetraffic import Trace, load_fabric
from moetraffic.cli import main
from moetraffic.errors import AnalysisError
from moetraffic.policies.cluster import Cluster
from moetraffic.policies.evaluate import evaluate
from moetraffic.policies.networks import OPTICAL
from moetraffic.policies.packets import PacketNetwork
from moetraffic.policies.plan_file import plan_file
from moetraffic.policies.scores import SERVED

from .conftest import rows_of


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rng = np.random.default_rng()
    demand = rng.multinomial(64, np.full(4, 0.25), size=(20, 1, 2))
    Trace.from_arrays(demand, row_bytes=4096).save(tmp_path / "run.h5")
    return tmp_path / "run.h5"


def served(trace: Path, plans: Path) -> list[SimpleNamespace]:
    return rows_of(evaluate(trace, ["rotation", plan_file(plans)]))


def test_a_schedule_is_evaluated_as_static_plans(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = trace.with_name("circuits.json")
    asked = ["schedule", str(trace), "--iterations", "0:10", "-o", str(made)]
    assert main(asked) == 0
    _, row = served(trace, made)
    assert (row.policy, row.forecaster) == ("circuits.json", "none")
    # two ranks have one matching; the mean matrix carries most bytes
    assert row.reconfigurations == 1
    assert row.served_share > 0.7
    capsys.readouterr()
    asked = ["evaluate", str(trace), "--policy", "rotation", "--plan", str(made)]
    assert main(asked) == 0
    assert "circuits.json" in capsys.readouterr().out


def test_a_plan_made_from_the_served_iterations_is_not_ranked(trace: Path) -> None:
    made = trace.with_name("circuits.json")
    assert main(["schedule", str(trace), "-o", str(made)]) == 0
    result = evaluate(trace, ["rotation", plan_file(made)])
    assert rows_of(result)[1].forecaster == SERVED
    expected = "Only ranked circuit policy on the network optical: rotation"
    assert expected in result.verdict[0]
    assert "circuits.json was planned from iterations that it serves" in " ".join(
        result.verdict
    )
    # a run is known by its content, not by its name
    moved = trace.rename(trace.with_name("moved.h5"))
    assert served(moved, made)[1].forecaster == SERVED
    other = np.random.default_rng().multinomial(64, np.full(4, 0.25), size=(20, 1, 2))
    Trace.from_arrays(other, row_bytes=4096).save(trace)
    assert served(trace, made)[1].forecaster == "none"


def test_a_placement_in_a_file(trace: Path) -> None:
    path = trace.with_name("experts.json")
    plan = {"experts": [0, 1, 2, 3], "ranks": [1, 0, 1, 0]}
    path.write_text(json.dumps({"family": "placement", "layers": {"*": plan}}))
    found = evaluate(Trace.open(trace), [plan_file(path), "contiguous"])
    assert [s.policy for s in rows_of(found)] == ["experts.json", "contiguous"]
    path.write_text(json.dumps({"family": "placement", "layers": {"7": plan}}))
    with pytest.raises(AnalysisError, match="none for this layer"):
        evaluate(Trace.open(trace), [plan_file(path), "contiguous"])


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
        "single": PacketNetwork(network=fabric),
    }
    found = evaluate(Trace.open(trace), made, networks=networks)
    assert found.data["failures"] == []
    assert [s.policy for s in rows_of(found)] == [f"{n}.json" for n in range(5)]
    assert all(s.completion_mean_s > 0 for s in rows_of(found))


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
