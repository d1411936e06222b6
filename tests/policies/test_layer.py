"""Completion of a layer with compute, and of an iteration: exact cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moetraffic import Trace
from moetraffic.cli import main
from moetraffic.errors import AnalysisError
from moetraffic.policies.circuits import birkhoff
from moetraffic.policies.cluster import Cluster, ExpertPlacement
from moetraffic.policies.evaluate import evaluate
from moetraffic.policies.optical import OpticalSwitch
from moetraffic.policies.service import Scope, bound_layer, serve_layer

from .conftest import B, rows_of

SWITCH = OpticalSwitch(rate_bytes_s=1, delay_s=1)


def whole(matrix: Any, **asked: Any) -> tuple[float, float]:
    """Serve a layer by Birkhoff's plan, and bound it."""
    truth, plan, scope = (
        np.asarray(matrix, np.float64),
        birkhoff(matrix),
        Scope(**asked),
    )
    served = serve_layer(truth, plan, SWITCH, None, scope, 2)
    return served.completion_s, bound_layer(truth, SWITCH, scope, 2)


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
    assert forward.serve(tokens, plan, None).completion_s == 6 + 6
    assert both.serve(tokens, plan, None).completion_s == 12 + 3 * (6 + 1)
    assert both.bound(tokens) == 4 * 1.5 + 3 * (6 + 1)


def test_layers_and_iterations_are_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng()
    demand = rng.multinomial(64, np.full(4, 0.25), size=(20, 2, 4))
    trace = Trace.from_arrays(demand, row_bytes=4096)
    names = ["rotation", "max-weight", "eplb"]
    asked: dict[str, Any] = {"forecasters": ["persistence"]}
    scope = Scope(name="iteration", token_s=1e-6)
    exchange = rows_of(evaluate(trace, names, **asked))
    iteration = rows_of(evaluate(trace, names, scope=scope, **asked))
    for short, long in zip(exchange, iteration, strict=True):
        assert np.mean(long.by_iteration_s) == pytest.approx(long.completion_mean_s)
        assert (long.by_iteration_s > short.by_iteration_s).all()
    # compute that no plan changes makes the regret smaller
    assert iteration[1].policy == "max-weight"
    assert abs(iteration[1].regret) <= abs(exchange[1].regret) + 1e-9
    path = tmp_path / "run.h5"
    trace.save(path)
    verb = ["evaluate", str(path), "--policy", "rotation", "--json"]
    assert main([*verb, "--completion", "layer", "--token-time", "1us"]) == 0
    given = json.loads(capsys.readouterr().out)
    assert given["data"]["completion"] == "layer"
    assert main([*verb, "--completion", "layer", "--phase", "combine"]) == 2
    with pytest.raises(AnalysisError, match="an exchange has no compute"):
        Scope(token_s=1.0)
    with pytest.raises(AnalysisError, match="one of exchange, layer"):
        Scope(name="run")
