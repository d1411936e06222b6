from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from moetraffic.patterns import Gating, ModelShape, ParallelLayout, Training, Workload

Run = Callable[..., list[Any]]

SHAPE = ModelShape(layers=4, hidden=16, heads=2, sequence=12, experts=8)
TRAINING = Training(
    iterations=3,
    micro_batch=2,
    accumulation=2,
    warmup=2,
    learning_rate=0.01,
    clip=0.2,  # below every gradient norm here: clipping acts
    dtype="float64",
    seed=3,
)


@pytest.mark.parametrize(
    "layout",
    [
        {"tp": 2},
        {"pp": 2},
        {"dp": 2, "zero": 1},
        {"dp": 4, "ep": 2, "zero": 1},
        {"dp": 4, "ep": 2, "zero": 2},
        {"dp": 4, "ep": 2, "zero": 3},
        {"dp": 4, "ep": 4, "zero": 2},
        {"dp": 4, "ep": 4, "zero": 3},
        {"dp": 2, "ep": 2, "tp": 2},
        {"dp": 2, "ep": 2, "pp": 2},
        {"dp": 2, "ep": 2, "tp": 2, "pp": 2},
        {"dp": 2, "ep": 2, "tp": 2, "pp": 2, "order": "pp-tp-cp-ep-dp"},
        {"dp": 4, "ep": 2, "tp": 2, "zero": 3},
        {"dp": 4, "ep": 2, "tp": 2, "zero": 2},
        {"dp": 4, "ep": 2, "pp": 2, "zero": 1},
    ],
    ids=str,
)
def test_kinds(layout: dict[str, Any], run_as_one: Run) -> None:
    run_as_one(Workload(model=SHAPE, gating=Gating(), layout=ParallelLayout(**layout), training=TRAINING))
