"""A collective that is added to a layer's formulas is in matrix, time and verbs."""

from __future__ import annotations

import json

import pytest

from moetraffic.cli import main
from moetraffic.patterns import Layout, megatron_pattern, preset, traffic_matrix
from moetraffic.patterns.layer import LayerCalls, Part
from moetraffic.timemodel import System, estimate


def test_a_part_of_a_layer_is_in_matrix_time_and_verbs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, layout = preset("gpt2-large").model, Layout(dp=2, cp=2, accumulation=3)
    system = System(peak_flops=1e14, bandwidth=1e9)
    asked = "estimate --model gpt2-large --dp 2 --cp 2 --micro-batch 1 "
    asked += "--global-batch 6 --platform dgx-h100 --json"

    def figures() -> tuple[int, float, float, float]:
        matrix = traffic_matrix(megatron_pattern(model, layout), traffic=["CP"])
        found = estimate(Layout.of(model, layout), system)
        assert main(asked.split()) == 0
        told = json.loads(capsys.readouterr().out)["data"]["sent_bytes"]
        sent = float(found.wire["cp"])
        return int(matrix[0].sum()), sent, float(found.cp), told["cp"]

    before, own = figures(), LayerCalls._context

    def more(self: LayerCalls, *, backward: bool) -> list[Part]:
        sums = Part("CP", "cp", "all_reduce", 1_000_000, 1.0, "context")
        return [*own(self, backward=backward), sums]

    monkeypatch.setattr(LayerCalls, "_context", more)
    after = figures()
    # forward and backward of 36 layers and 3 micro-batches, on a ring of two ranks
    added = 2 * 36 * 3 * 1_000_000
    assert after[0] - before[0] == added
    assert after[1] - before[1] == pytest.approx(added)
    assert after[2] - before[2] == pytest.approx(added / 1e9)
    assert after[3] - before[3] == pytest.approx(added)
