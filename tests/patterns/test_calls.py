"""Megatron's collectives against the published volumes, term by term."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from moetraffic.errors import LayoutError
from moetraffic.patterns import Gating, ModelShape
from moetraffic.patterns.calls import Pattern, megatron_pattern
from moetraffic.patterns.layout import Layout
from moetraffic.patterns.matrices import traffic_matrix
from moetraffic.workload.tensors import model_tensors, padded_vocabulary

GPT = ModelShape(
    name="gpt",
    layers=8,
    hidden=64,
    heads=8,
    sequence=32,
    vocabulary=1000,
    experts=0,
    norm_bias=True,
    bias=True,
)
MOE = ModelShape(name="moe", layers=8, hidden=64, heads=8, sequence=32, experts=8)
B, M, E, G = 2, 4, 2, 4  # micro-batch, micro-batches, bytes of elements and gradients
BSH = B * GPT.sequence * GPT.hidden * E


def made(
    grid: dict[str, Any],
    shape: ModelShape = GPT,
    gating: Gating | None = None,
    **plan: Any,
) -> Pattern:
    spread = Layout(**grid, **{"micro_batch": B, "accumulation": M, **plan})
    return megatron_pattern(shape, spread, gating)


def of_rank(pattern: Pattern, rank: int, traffic: str, **like: Any) -> list[int]:
    return [
        call.size
        for call, _ in pattern.program(rank)
        if call.traffic == traffic
        and all(getattr(call, name) == value for name, value in like.items())
    ]


@pytest.mark.parametrize(("recompute", "times"), [("none", 4), ("full", 6)])
def test_tensor_parallel_all_reduces(recompute: str, times: int) -> None:
    pattern = made({"tp": 4, "pp": 2}, recompute=recompute)
    for rank in (0, 4):  # of the first and the last stage
        sizes = of_rank(pattern, rank, "TP", operation="all_reduce")
        in_layers = [
            c.size for c, _ in pattern.program(rank) if c.group == "tp" and c.layer >= 0
        ]
        assert in_layers == [BSH] * (times * 4 * M)  # l/p = 4 layers
        beside = sorted(sizes)[: len(sizes) - len(in_layers)]
        if rank == 0:  # the vocabulary-parallel embedding, forward
            assert len(sizes) - len(in_layers) == M
        else:  # the head's backward, and 3 of the loss of b s x 4 bytes
            assert beside[: 3 * M] == [B * GPT.sequence * 4] * (3 * M)
            assert len(beside) == 4 * M
    t = 4
    wire = traffic_matrix(pattern, traffic=["TP"])
    layers = times * 4 * M * 2 * (t - 1) / t * BSH
    assert wire[0].sum() == layers + M * 2 * (t - 1) / t * BSH


def test_sequence_parallelism_sends_a_quarter_more() -> None:
    plain = made({"tp": 4, "pp": 4})
    spread = made({"tp": 4, "pp": 4}, sequence_parallel=True)
    middle = 4  # a stage without embedding and head
    gathers = of_rank(spread, middle, "TP", operation="all_gather")
    scatters = of_rank(spread, middle, "TP", operation="reduce_scatter")
    layers = 2 * M
    assert gathers == [BSH // 4] * (6 * layers)
    assert scatters == [BSH] * (4 * layers)
    (alike,) = of_rank(spread, middle, "TP", label="norm_gradient_sync")
    # two norms with biases, and the biases of out and down, of each of two layers
    assert alike == 2 * (4 + 2) * GPT.hidden * G
    before = traffic_matrix(plain, traffic=["TP"])[middle].sum()
    after = traffic_matrix(spread, traffic=["TP"])[middle].sum()
    after -= 2 * 3 / 4 * alike
    assert after == pytest.approx(1.25 * before)
    # and neighbors hand on a share
    assert set(of_rank(spread, middle, "PP")) == {BSH // 4}


@pytest.mark.parametrize("virtual", [1, 2])
def test_pipeline_messages_and_the_wrap_around(virtual: int) -> None:
    pattern = made({"pp": 4}, virtual=virtual)
    matrix = traffic_matrix(pattern, traffic=["PP"])
    expected = np.zeros((4, 4), np.int64)
    for stage in range(3):
        expected[stage, stage + 1] = expected[stage + 1, stage] = virtual * M * BSH
    expected[3, 0] = expected[0, 3] = (virtual - 1) * M * BSH
    assert matrix.tolist() == expected.tolist()


def test_gradients_and_the_tied_table() -> None:
    p, t, d = 2, 2, 4
    pattern = made({"pp": p, "tp": t, "dp": d})
    rows = padded_vocabulary(GPT.vocabulary, t) // t
    held = [
        sum(
            tensor.on_rank(tp=t).elements
            for tensor in model_tensors(GPT, layers=layers, vocabulary_split=t)
        )
        for layers in (range(4), range(4, 8))
    ]
    for stage, rank in enumerate((0, t * d)):
        assert of_rank(pattern, rank, "DP") == [G * held[stage]]
        assert of_rank(pattern, rank, "EmbTableSync") == [rows * GPT.hidden * G]
    wire = traffic_matrix(pattern, traffic=["DP"])
    assert wire[0].sum() == pytest.approx(2 * (d - 1) / d * G * held[0], abs=8)
    # only if the head is the embedding, and is elsewhere
    assert not of_rank(made({"pp": 2}, replace(GPT, tied=False)), 0, "EmbTableSync")
    assert not of_rank(made({"dp": 2}), 0, "EmbTableSync")


@pytest.mark.parametrize(
    ("zero", "more", "psi"),
    [
        (0, {}, 2),
        (1, {}, 2),
        (2, {}, 1 * M + 1),  # a reduce-scatter each micro-batch
        (2, {"accumulation": 1}, 2),
        (3, {"accumulation": 1}, 3),
        (3, {}, 3 * M),
    ],
)
def test_zeros_volumes(zero: int, more: dict[str, Any], psi: int) -> None:
    d = 4
    plan = {"zero": zero, "gradient_dtype": "bfloat16", **more}
    pattern = made({"dp": d}, **plan)
    tensors = model_tensors(GPT, vocabulary_split=1)
    whole = sum(tensor.elements for tensor in tensors) * E
    wire = traffic_matrix(pattern, traffic=["DP"])
    assert wire[0].sum() == pytest.approx(psi * whole * (d - 1) / d, rel=1e-3)


@pytest.mark.parametrize(("recompute", "times"), [("none", 4), ("full", 6)])
def test_expert_exchanges(recompute: str, times: int) -> None:
    gating = Gating(k=2, dispatch="dropless")
    pattern = made({"dp": 4, "ep": 4}, MOE, gating, recompute=recompute)
    sizes = of_rank(pattern, 0, "EP")
    buffer = 2 * B * MOE.sequence * MOE.hidden * E  # k b s h e
    assert sizes == [buffer] * (times * 4 * M)  # every second layer has experts
    matrix = traffic_matrix(pattern, traffic=["EP"])
    each = times * 4 * M * buffer / 4  # buffer/ep an ordered pair
    assert matrix.tolist() == (each * (1 - np.eye(4))).tolist()
    assert not any(c.exact for c, _ in pattern.program(0) if c.traffic == "EP")


def test_padded_experts_send_their_capacity() -> None:
    gating = Gating(k=2, dispatch="padded", capacity_factor=1.25)
    pattern = made({"dp": 2, "ep": 2}, MOE, gating)
    capacity = -(-5 * 2 * B * MOE.sequence // (4 * MOE.experts))
    row = MOE.hidden * E
    assert set(of_rank(pattern, 0, "EP")) == {MOE.experts * capacity * row}
    assert all(c.exact for c, _ in pattern.program(0))


def test_experts_split_otherwise_than_their_layers() -> None:
    whole = made({"tp": 2, "dp": 2, "ep": 4, "etp": 1}, MOE, sequence_parallel=True)
    split = made({"tp": 2, "dp": 2, "ep": 2}, MOE, sequence_parallel=True)
    copies = 2 * B * MOE.sequence // 2 * MOE.hidden * E if MOE.experts else 0
    assert set(of_rank(whole, 0, "TP", label="experts")) == set()
    gathered = of_rank(split, 0, "TP", label="experts", operation="all_gather")
    assert set(gathered) == {copies // 2}  # k is 1 here
    # each expert is held four times where it is whole, and no copy needs a sum
    assert of_rank(whole, 0, "DP", label="expert_gradient_sync") == []


@pytest.mark.parametrize(
    ("grid", "plan", "shape", "said"),
    [
        ({"tp": 3}, {}, GPT, "tp must divide the attention heads"),
        ({"pp": 4}, {"virtual": 4}, GPT, "every chunk of a pipeline holds a layer"),
        ({"pp": 2}, {"zero": 3}, GPT, "no parameters between its passes"),
        ({"pp": 2}, {"zero": 4}, GPT, "stage is one of 0, 1, 2, 3"),
        ({"dp": 2, "ep": 2}, {}, GPT, "a dense model has no experts"),
        ({"dp": 3, "ep": 3}, {}, MOE, "ep must divide the experts"),
        ({"tp": 2}, {}, MOE, "give --sequence-parallel"),
        ({"cp": 5}, {}, GPT, "must divide it, but it has 32 tokens"),
        ({"pp": 2}, {"virtual": 2, "accumulation": 3}, GPT, "multiple of them"),
        ({}, {"dtype": "int8"}, GPT, "an element type is one of"),
        ({}, {"bucket_mib": -1.0}, GPT, "a bucket has some MiB"),
        ({}, {"micro_batch": 0}, GPT, "micro-batch must be at least 1"),
        ({}, {"context": "star"}, GPT, "context is one of ring"),
        ({"cp": 16}, {"context": "all-to-all"}, GPT, "tp x cp = 1 x 16"),
    ],
)
def test_what_cannot_be_is_said(
    grid: dict[str, Any], plan: dict[str, Any], shape: ModelShape, said: str
) -> None:
    with pytest.raises(LayoutError, match=said):
        made(grid, shape, **plan)
