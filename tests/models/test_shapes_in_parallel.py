"""Every kind of block under expert parallelism: the same losses, and what is sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from moetraffic.patterns import (
    Gating,
    Layout,
    ModelShape,
    Training,
    Workload,
)

pytestmark = pytest.mark.slow

Run = Callable[..., list[Any]]

SIZES = {"layers": 4, "hidden": 16, "heads": 2, "sequence": 12, "experts": 4}
SHAPES = {
    "latent": ModelShape(
        **SIZES,
        positions="rotary",
        kv_rank=6,
        rope_size=4,
        norm="rms",
        activation="silu",
        gated=True,
        shared_ffn=8,
        moe_every=1,
        moe_first=2,
        tied=False,
    ),
    "two stacks": ModelShape(
        **SIZES,
        encoder_layers=2,
        target_sequence=5,
        positions="relative",
        norm="rms",
        activation="relu",
    ),
}
PLAN = Training(iterations=2, micro_batch=2, warmup=1, dtype="float64", seed=3)


def trained(run_ranks: Run, shape: ModelShape, ep: int, **plan: Any) -> list[Any]:
    work = Workload(
        model=shape,
        gating=Gating(router="switch", k=1),
        layout=Layout(dp=2, ep=ep),
        training=replace(PLAN, **plan),
    )
    return run_ranks("training", 2, workload=work.to_json())


def sent(result: dict[str, Any]) -> Counter[tuple[int, str]]:
    return Counter((e["layer"], e["phase"]) for e in result["log"] if e.get("phase"))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_expert_parallelism_changes_no_loss(shape: ModelShape, run_ranks: Run) -> None:
    alone = trained(run_ranks, shape, 1)
    spread = trained(run_ranks, shape, 2, recompute=True)
    for a, b in zip(alone, spread, strict=True):
        assert b["losses"] == pytest.approx(a["losses"], rel=1e-9)
        assert sent(a) == {}
        # recomputing sends what goes to the experts and back again
        times = {"dispatch": 2, "combine": 2, "combine_grad": 1, "dispatch_grad": 1}
        assert sent(b) == {
            (layer, phase): 2 * n
            for layer in shape.moe_layers
            for phase, n in times.items()
        }


def test_rows_travel_in_the_precision_of_products(run_ranks: Run) -> None:
    plan = {"dtype": "float32", "precision": "bfloat16"}
    first, second = trained(run_ranks, SHAPES["latent"], 2, **plan)
    assert all(0 < loss < 7 for loss in first["losses"])
    for result in (first, second):
        rows = [e for e in result["log"] if e.get("phase")]
        assert {e["shape"][1:] for e in rows} == {(16,)}
        assert {e["dtype"] for e in rows} == {torch.bfloat16}
