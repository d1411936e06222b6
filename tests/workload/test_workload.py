"""What no run can have is refused by its range, before anything computes with it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from moetraffic.errors import LayoutError
from moetraffic.patterns import (
    Gating,
    Layout,
    ModelShape,
    Training,
    Workload,
    parameter_count,
)
from moetraffic.patterns.workload import least_bytes


def made(part: str, **fields: Any) -> Workload:
    base = Workload()
    return replace(base, **{part: replace(getattr(base, part), **fields)})


@pytest.mark.parametrize(
    ("part", "field", "value", "said"),
    [
        ("training", "seed", 99999999999999999999, "seed must be at most 92233720368"),
        ("training", "seed", -1, "seed must be at least 0"),
        ("training", "learning_rate", math.nan, "must be a finite number, but is nan"),
        ("training", "learning_rate", 1e30, "learning-rate must be at most 1000"),
        ("training", "learning_rate", -1.0, "learning-rate must be at least"),
        ("training", "learning_rate", 0.0, "learning-rate must be at least"),
        ("training", "warmup", -1, "warmup must be at least 0"),
        ("training", "clip", math.inf, "clip must be a finite number"),
        ("training", "device", "gpu", "the device is one of cpu, cuda, not 'gpu'"),
        ("training", "dtype", "int8", "the dtype is one of float32"),
        ("training", "micro_batch", 10**15, "micro-batch must be at most 1000000000"),
        ("training", "micro_batch", True, "micro-batch must be a whole number"),
        ("training", "iterations", 2.5, "iterations must be a whole number, but is 2"),
        ("gating", "balance", math.nan, "balance must be a finite number"),
        ("gating", "balance", -1.0, "balance must be at least 0"),
        ("gating", "z_loss", math.inf, "z-loss must be a finite number"),
        ("gating", "z_loss", -1.0, "z-loss must be at least 0"),
        ("gating", "capacity_factor", math.nan, "capacity-factor must be a finite"),
        ("gating", "capacity_factor", 1e30, "capacity-factor must be at most 1000000"),
        *(
            ("layout", axis, size, f"{axis} must be at most {most}, but is {size}")
            for axis, most in (
                *(("dp", 1_000_000), ("tp", 1_000_000), ("ep", 1_000_000)),
                *(("cp", 1_000_000), ("pp", 10_000), ("etp", 1_000_000)),
            )
            for size in (most + 1, 10**20)
        ),
        (
            "layout",
            "dp",
            -1_000_000,
            "dp must be at least 1, but is -1000000: give --dp",
        ),
        ("layout", "shard", -(10**20), "shard must be at least 0"),
        ("layout", "tp", -(10**20), "tp must be at least 1, but"),
        ("model", "layers", 100_000_000, "layers must be at most 10000"),
        ("model", "experts", 1_000_000_000, "experts must be at most 1000000"),
        ("model", "hidden", 0, "hidden must be at least 1, but is 0: give --hidden a"),
    ],
)
def test_a_value_out_of_range_is_named(
    part: str, field: str, value: Any, said: str
) -> None:
    with pytest.raises(LayoutError, match=said) as refused:
        made(part, **{field: value})
    assert "\n" not in str(refused.value)


def test_a_workload_of_the_wrong_types_is_refused() -> None:
    parts = json.loads(Workload().to_json())
    parts["training"]["seed"] = "seven"
    with pytest.raises(LayoutError, match="seed must be a whole number, but is 'seven"):
        Workload.from_json(json.dumps(parts))


@pytest.mark.parametrize("value", ["4", True, 2.0, None, [1]])
@pytest.mark.parametrize("name", ["dp", "zero", "etp"])
def test_sizes_of_a_layout_are_whole_numbers(name: str, value: object) -> None:
    parts = json.loads(Workload().to_json())
    parts["layout"][name] = value
    with pytest.raises(LayoutError, match=f"{name} must be a .*number.*, but is"):
        Workload.from_json(json.dumps(parts))


@pytest.mark.parametrize("name", ["shard", "dtype"])
def test_a_workload_has_the_fields_of_a_layout_that_training_reads(name: str) -> None:
    parts = json.loads(Workload().to_json())
    parts["layout"][name] = 0
    with pytest.raises(LayoutError, match=f"'layout' holds \\['{name}'\\]: remove"):
        Workload.from_json(json.dumps(parts))


@pytest.mark.parametrize("part", ['["hidden"]', "[]", "3", "null"])
def test_parts_of_a_workload_are_objects(part: str) -> None:
    with pytest.raises(LayoutError, match="a JSON object of objects"):
        Workload.from_json(f'{{"model": {part}}}')


def test_the_greatest_seed_is_allowed() -> None:
    assert Workload(training=Training(seed=2**63 - 1)).training.seed == 2**63 - 1


def test_the_least_memory_is_what_the_formula_says() -> None:
    shape = ModelShape(layers=2, hidden=8, heads=2, experts=4, sequence=16, moe_every=2)
    # attention 2 x 4 h^2, one feed-forward 8 h^2, 4 experts 8 h^2 and a router, tokens
    # and positions, 5 norms
    parameters = 2 * 4 * 64 + 512 + 4 * (512 + 8) + (256 + 16) * 8 + 5 * 8
    assert parameter_count(shape).total == parameters
    work = Workload(
        model=shape,
        gating=Gating(k=1),
        layout=Layout(dp=2, ep=2),
        training=Training(micro_batch=3),
    )
    activations = 3 * 16 * (2 * 8 + 256) * 4
    assert least_bytes(work) == 2 * 100_000_000 + 16 * parameters + 2 * activations
