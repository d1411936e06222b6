from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from moetraffic.patterns import Workload
from moetraffic.trace import Trace

Run = Callable[..., list[Any]]
Small = Callable[..., Workload]
Sent = Callable[..., dict[Any, list[int]]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "gating"),
    [
        ({"tp": 2}, {"dispatch": "padded", "capacity_factor": 0.75}),
        ({"tp": 4}, {"dispatch": "dropless", "heads": 4}),
        ({"tp": 2, "dp": 2, "ep": 2}, {"dispatch": "dropped", "capacity_factor": 0.75}),
        ({"tp": 2, "dp": 4, "ep": 2}, {"dispatch": "dropless"}),
    ],
    ids=str,
)
def test_a_tensor_parallel_run_equals_one_process(
    layout: dict[str, Any], gating: dict[str, Any], run_as_one: Run, small: Small
) -> None:
    ranks = run_as_one(small(layout, **gating))
    # what no rank splits stays the same on all of them, bit for bit
    tp = layout["tp"]
    for a, b in zip(ranks[::tp], ranks[1::tp], strict=True):
        assert a["losses"] == b["losses"]
        for name, values in a["dense"].items():
            if values.shape == ranks[0]["dense"]["norm.weight"].shape or (
                "router" in name or name.startswith(("token", "position"))
            ):
                assert torch.equal(values, b["dense"][name]), name


def test_a_layer_has_two_all_reduces_each_way(
    tmp_path: Path, run_as_one: Run, small: Small, sent: Sent
) -> None:
    path = tmp_path / "run.h5"
    work = small({"tp": 2})
    run_as_one(work, capture=str(path))
    # micro-batches m, activations b s h e bytes (reference: 4 all-reduces a layer)
    m, bsh = 2, 2 * 12 * 16 * 8
    copies = work.gating.k * bsh  # dropless: an expert's rows are k b s in all
    with Trace.open(path) as trace:
        assert {(g.kind, g.ranks) for g in trace.groups} == {
            ("tp", (0, 1)),
            ("ep", (0,)),
            ("ep", (1,)),
        }
        for rank in range(2):
            found = sent(trace, rank)
            for layer in range(4):
                experts = copies if layer in (1, 3) else bsh
                for direction, expected in (
                    ("forward", [bsh, experts] * m),
                    ("backward", [experts, bsh] * m),
                ):
                    key = ("tp", "all_reduce", "tensor_parallel", layer, direction)
                    assert found.pop((*key, (-1, -1))) == expected
            norm = ("tp", "all_reduce", "gradient_norm", -1, "forward", (-1, -1))
            assert found == {norm: [8]}


@pytest.mark.slow
def test_experts_that_get_no_row(run_ranks: Run) -> None:
    for result in run_ranks("nothing_arrives", 2):
        assert result["y"].shape == (0, 4)
        assert result["x_grad"].shape == (0, 4)


@pytest.mark.slow
def test_biases_are_split_with_their_outputs(run_ranks: Run) -> None:
    for result in run_ranks("biased", 2):
        torch.testing.assert_close(result["y"], result["expected"])
        torch.testing.assert_close(result["x_grad"], result["expected_grad"])
        # two slices of up (its weight and bias), one of down (its bias is whole)
        assert result["slices"] == [(6,), (6, 4), (4, 6)]


@pytest.mark.slow
def test_what_a_decoder_asks_gets_its_whole_gradient(
    run_ranks: Run, small: Small
) -> None:
    changes = {"encoder_layers": 2, "positions": "sinusoidal", "experts": 0}
    losses = []
    for tp in (1, 2):
        work = small({"tp": tp}, **changes)
        ranks = run_ranks("training", tp, workload=work.to_json())
        losses += [result["losses"] for result in ranks]
    assert losses[1] == losses[2]
    assert losses[1] == pytest.approx(losses[0], rel=1e-9)
