"""ZeRO 3 with lists of tensors: exact times, and nothing where buffers are flat."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from moetraffic.patterns import preset
from moetraffic.patterns.time_model import (
    A100,
    Configuration,
    Conventions,
    System,
    estimate,
)
from moetraffic.patterns.time_model.tensor_lists import COPY_START_S, ENTRY_S

GPT = replace(
    preset("gpt-1.3b").model,
    layers=10,
    hidden=4096,
    heads=32,
    sequence=2048,
    vocabulary=1024,
)
LISTS = Conventions(zero3="lists")
SYSTEM = System(peak_flops=A100.peak_flops, bandwidth=1e10, memory_bytes_s=1e12)


def told(**named: Any) -> Configuration:
    given = {"zero": 3, "recompute": "full", "gathers": 4, "gradient_dtype": 2, **named}
    return Configuration(model=GPT, dp=16, global_batch=32, **given)


def test_lists_add_a_gather_and_the_copies() -> None:
    flat = estimate(told(), SYSTEM)
    lists = estimate(told(), SYSTEM, conventions=LISTS)
    # two micro-batches, 10 layers of 4 calls: gathered forward, in recomputation and
    # backward, reduced once
    held = 2.0 * float(told().held)
    assert float(flat.wire["dp"]) == pytest.approx(2 * 3 * held * 15 / 16)
    assert float(lists.wire["dp"]) == pytest.approx(2 * 4 * held * 15 / 16)
    entries = 2 * 4 * 40 * 16 * (ENTRY_S + COPY_START_S)
    memory = 2 * 4 * 4 * held / 1e12
    sent = float(lists.wire["dp"]) / 1e10
    assert float(lists.communication["dp"]) == pytest.approx(sent + entries + memory)


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_other_stages_have_no_lists(zero: int) -> None:
    times = [
        float(estimate(told(zero=zero), SYSTEM, conventions=how).iteration)
        for how in (LISTS, Conventions())
    ]
    assert times[0] == times[1]


def test_without_recomputation_a_layer_is_gathered_twice() -> None:
    config = told(recompute="none")
    lists = estimate(config, SYSTEM, conventions=LISTS)
    assert float(lists.wire["dp"]) == float(estimate(config, SYSTEM).wire["dp"])
