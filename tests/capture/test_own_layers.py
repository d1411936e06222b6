"""Layers of a model whose MoE layers are plain attributes, on two gloo ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moetraffic.analysis import analyze
from moetraffic.trace import PHASES, ROUTING, Trace

from .conftest import HOOKS, prepared, run

pytestmark = pytest.mark.slow

Once = Callable[[str, Callable[[Path], None]], Path]
STEPS = 4


@pytest.fixture(scope="module", params=HOOKS)
def captured(once: Once, request: pytest.FixtureRequest) -> Path:
    hook = prepared(request.param, request)
    return once(f"own_layers-{hook}", lambda f: run("own_layers.py", f, hook))


@pytest.mark.parametrize(("case", "layers"), [("plain", (0, 1)), ("annotated", (0, 2))])
def test_every_call_is_recorded_and_has_its_layer_and_phase(
    captured: Path, case: str, layers: tuple[int, ...]
) -> None:
    with Trace.open(captured / f"{case}.h5") as trace:
        assert trace.meta.complete, trace.meta.missing
        assert trace.layers == layers
        for layer in layers:
            for phase in PHASES:
                found = trace.find(layer=layer, phase=phase, operation="all_to_all")
                assert len(found) == STEPS, (layer, phase)


def test_a_router_has_the_layer_that_its_exchanges_are_annotated_with(
    captured: Path,
) -> None:
    logs = [json.loads((captured / f"{r}.json").read_text()) for r in (0, 1)]
    with Trace.open(captured / "annotated.h5") as trace:
        for number, layer in enumerate((0, 2)):
            demand = trace.demand(trace.find(operation=ROUTING, layer=layer))
            routed = np.array([log["annotated"][number] for log in logs])
            assert np.array_equal(demand, routed.transpose(1, 0, 2))
            sent = trace.matrix(iteration=1, layer=layer, phase="dispatch", of="wire")
            asked = trace.matrix(iteration=1, layer=layer, phase="dispatch")
            assert np.array_equal(sent.values, asked.values)
        result = analyze(trace)
        assert result.data["layers"] == [0, 2]
        assert not any("register" in note for note in result.notes)


def test_exchanges_without_a_name_are_not_said_to_be_absent(captured: Path) -> None:
    with Trace.open(captured / "plain.h5") as trace:
        bare = {"phase": "", "label": "", "layer": -1}
        sites = tuple(replace(s, slot=n, **bare) for n, s in enumerate(trace.sites))
        result = analyze(trace.replaced(sites=sites))
    calls = STEPS * 2 * (1 + len(PHASES))
    unnamed = f"{calls} all-to-alls of unknown layer and phase"
    assert any(unnamed in note for note in result.notes)
