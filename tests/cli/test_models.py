"""Models by name on the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moetraffic.cli import main
from moetraffic.cli.workload import describe
from moetraffic.errors import LayoutError
from moetraffic.patterns import PRESETS, Workload, preset


def test_the_presets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith(f"{len(PRESETS)} models of ")
    for found in PRESETS.values():
        (row,) = [line for line in shown if line.split()[:1] == [found.name]]
        assert f"{found.model.hidden:,}" in row
    assert main(["models", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    rows = {row["model"]: row for row in told["tables"]["models"]}
    assert list(rows) == list(PRESETS)
    assert rows["deepseek-v3"]["parameters"] == 671_026_404_352
    assert main(["models", "deepseek-v3"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "left out of the count: multi-token prediction, 14,000,000,000" in out


def test_no_option_is_the_default_workload() -> None:
    work = describe(1, {})
    assert work == Workload()


def test_a_preset_is_what_options_change() -> None:
    whole = describe(4, {"model": "qwen1.5-moe-a2.7b", "iterations": 3})
    assert whole.model == preset("qwen1.5-moe-a2.7b").model
    assert whole.gating == preset("qwen1.5-moe-a2.7b").gating
    assert (whole.training.micro_batch, whole.training.iterations) == (1, 3)
    assert (whole.layout.dp, whole.layout.ep) == (4, 4)

    chosen = {"hidden": 64, "heads": 4, "layers": 2, "experts": 8, "k": 2}
    less = describe(2, {"model": "qwen1.5-moe-a2.7b", "micro_batch": 7, **chosen})
    assert (less.model.head_size, less.model.expert_ffn) == (16, 44)
    assert (less.model.experts, less.gating.k) == (8, 2)
    assert less.gating.options == {"renormalize": False}
    assert less.training.micro_batch == 7


def test_another_router_has_options_of_its_own() -> None:
    chosen: dict[str, Any] = {"model": "mixtral-8x7b", "experts": 8, "layers": 2}
    assert describe(1, {**chosen, "router": "switch"}).gating.options == {}
    assert describe(1, {**chosen, "router": "switch"}).gating.k == 1
    assert describe(1, {**chosen, "router": "topk"}).gating.options


def test_a_dense_preset_has_no_expert_parallelism() -> None:
    dense = describe(4, {"model": "gpt2-medium"})
    assert (dense.layout.dp, dense.layout.ep) == (4, 1)
    assert describe(4, {"model": "gpt2-medium", "experts": 8}).layout.ep == 4
    with pytest.raises(LayoutError, match="dense model has no experts to spread"):
        describe(4, {"model": "gpt2-medium", "ep": 2})


def test_a_preset_is_shown_with_other_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "mixtral-8x7b", "--layers", "16", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    counts = {r["parameters_of"]: r["parameters"] for r in told["tables"]["parameters"]}
    assert counts["experts"] == preset("mixtral-8x7b").parameters.experts / 2
    assert "no number is published" in told["verdict"][0]
