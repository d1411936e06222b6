"""Completion of a layer with compute, and of an iteration: exact cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moetraffic import Trace, load_fabric
from moetraffic.cli import main
from moetraffic.errors import AnalysisError, FabricError
from moetraffic.policies.circuits.birkhoff import birkhoff
from moetraffic.policies.evaluation import evaluate
from moetraffic.policies.family import CIRCUITS, TRANSMISSION
from moetraffic.policies.service.cluster import (
    Cluster,
    ExpertPlacement,
    balanced_seconds,
    serve_placement,
)
from moetraffic.policies.service.layer import (
    Scope,
    bound_layer,
    serve_layer,
    transposed,
)
from moetraffic.policies.service.optical import OpticalSwitch, crossing
from moetraffic.policies.service.packet_network import (
    PacketNetwork,
    Rounds,
    rounds_violations,
    serve_rounds,
)
from moetraffic.policies.service.relays import hops_violations
from moetraffic.policies.trace_series import byte_series
from moetraffic.policies.transmission.two_level import TwoLevel

from .conftest import A, B, view_of

SWITCH = OpticalSwitch(rate_bytes_s=1, delay_s=1)


def whole(matrix: Any, **asked: Any) -> tuple[float, float]:
    """Serve a layer by Birkhoff's plan, and bound it."""
    truth, plan = np.asarray(matrix, np.float64), birkhoff(matrix)
    asked = {"scope": Scope(**asked), "row_bytes": 2}
    served = serve_layer(CIRCUITS.serve, truth, plan, SWITCH, last=None, **asked)
    bound = bound_layer(CIRCUITS.bound, truth, SWITCH, **asked)
    return served.completion_s, bound


def test_a_layer_and_an_iteration_by_hand() -> None:
    """Two configurations for 10 s each exchange; 5 copies of 1 s on each rank."""
    assert whole(B) == (12, 12)
    # combine's first delay is hidden behind the experts
    assert whole(B, name="layer", token_s=1) == (12 + 5 + 11,) * 2
    assert whole(B, name="layer") == (24, 24)
    assert whole(B, name="iteration", token_s=1) == (28 + 12 + 10 + 11,) * 2
    assert (
        whole(B, name="iteration", token_s=1, other_s=0.5) == (28 + 11 + 21 + 1.5,) * 2
    )


def test_a_placement_has_the_backward_pass_too() -> None:
    plan = ExpertPlacement(experts=np.arange(2), ranks=np.arange(2))
    tokens = [[1, 3], [2, 0]]  # ranks to experts: lines 3, loads 3
    forward = Cluster(rate_bytes_s=1, row_bytes=1, token_s=2)
    both = Cluster(rate_bytes_s=1, row_bytes=1, token_s=2, other_s=1, backward=True)
    assert serve_placement(tokens, plan, forward, None).completion_s == 6 + 6
    assert serve_placement(tokens, plan, both, None).completion_s == 12 + 3 * (6 + 1)
    assert balanced_seconds(tokens, both) == 4 * 1.5 + 3 * (6 + 1)


def test_paths_cannot_be_reversed_over_a_link_that_failed_one_way(
    tmp_path: Path,
) -> None:
    file = tmp_path / "network.json"
    said = {"topology": "leaf-spine", "leaves": 2, "spines": 2, "capacity": "8Gbps"}
    file.write_text(json.dumps({**said, "rates": {"leaf0 -> spine1": "0Gbps"}}))
    found = load_fabric(str(file), 4)
    network = PacketNetwork(topology=found.topology, slots=found.slots)
    plan = Rounds(shares=np.ones((1, 4, 4)), routing=network.shares("ideal"))
    with pytest.raises(FabricError, match="of spine1 -> leaf0 only this direction"):
        transposed(plan, network)
    by_name = Rounds(shares=plan.shares, routing="ecmp")
    assert transposed(by_name, network).routing == "ecmp"


@pytest.mark.parametrize("name", ["leaf-spine", "torus", "single"])
def test_the_transposed_plan_serves_the_transposed_matrix(name: str) -> None:
    rng = np.random.default_rng()
    found = load_fabric(name, 6, capacity="8Gbps")
    network = PacketNetwork(topology=found.topology, slots=found.slots)
    matrix = crossing(rng.integers(0, 9, (6, 6)) * 1e9)
    part = rng.random((6, 6))
    for routing in ("ideal", network.shares("ideal")):
        plan = Rounds(shares=np.stack((part, 1 - part)), routing=routing)
        back = transposed(plan, network)
        assert rounds_violations(back, 6, network) == ""
        there = serve_rounds(matrix, plan, network).completion_s
        assert serve_rounds(matrix.T, back, network).completion_s == pytest.approx(
            there
        )
    hops = TwoLevel().plan(view_of(matrix, network))
    assert hops_violations(transposed(hops, network), 6, network) == ""
    for serve, on, made in (
        (CIRCUITS, SWITCH, birkhoff(A)),
        (TRANSMISSION, network, plan),
    ):
        of = np.asarray(A, np.float64) if on is SWITCH else matrix
        again = transposed(transposed(made, on), on)
        first, second = (serve.serve(of, p, on, None) for p in (made, again))
        assert first.completion_s == pytest.approx(second.completion_s)


def test_layers_and_iterations_are_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng()
    demand = rng.multinomial(64, np.full(4, 0.25), size=(20, 2, 4))
    trace = Trace.from_arrays(demand, row_bytes=4096)
    assert byte_series(trace).row_bytes == 4096
    names = ["rotation", "max-weight", "eplb"]
    asked: dict[str, Any] = {"forecasters": ["persistence"]}
    one = evaluate(trace, names, **asked)
    all_of = evaluate(
        trace, names, scope=Scope(name="iteration", token_s=1e-6), **asked
    )
    for short, long in zip(one.scores, all_of.scores, strict=True):
        assert np.mean(long.by_iteration_s) == pytest.approx(long.completion_mean_s)
        assert (np.array(long.by_iteration_s) > short.by_iteration_s).all()
    # compute that no plan changes makes the regret smaller
    last = [e.scores[1].regret.value for e in (one, all_of)]
    assert all_of.scores[1].policy == "max-weight"
    assert abs(last[1]) <= abs(last[0]) + 1e-9
    path = tmp_path / "run.h5"
    trace.save(path)
    verb = ["evaluate", str(path), "--policy", "rotation", "--json"]
    assert main([*verb, "--completion", "layer", "--token-time", "1us"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["completion"] == "layer"
    assert main([*verb, "--completion", "layer", "--phase", "combine"]) == 2
    with pytest.raises(AnalysisError, match="an exchange has no compute"):
        Scope(token_s=1.0)
    with pytest.raises(AnalysisError, match="one of exchange, layer"):
        Scope(name="run")
