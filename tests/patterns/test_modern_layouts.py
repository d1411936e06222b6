"""Layouts of recent trainings: bytes derived by hand, and the same in both verbs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from moetraffic.errors import LayoutError
from moetraffic.patterns import (
    Gating,
    Layout,
    ModelShape,
    Workload,
    megatron_pattern,
    parameter_count,
    preset,
)
from moetraffic.patterns.calls import Pattern
from moetraffic.patterns.matrices import traffic_matrix
from moetraffic.patterns.schedules import handed_on, passes
from moetraffic.timemodel import (
    H100,
    System,
    estimate,
    memory,
    operations,
    traffic,
)
from moetraffic.workload.tensors import model_tensors

SHAPE = ModelShape(
    layers=2, hidden=256, heads=8, kv_heads=2, sequence=64, vocabulary=512, experts=0
)
MOE = ModelShape(
    layers=2, hidden=256, heads=8, sequence=64, vocabulary=512, experts=8, moe_every=1
)


def listed(plan: Layout, shape: ModelShape = SHAPE, **call: Any) -> list[int]:
    """Sizes of the calls that a rank makes, of those that are like this."""
    return [
        event.call.size
        for event in made(plan, shape).programs[0]
        if all(getattr(event.call, name) == value for name, value in call.items())
    ]


def made(plan: Layout, shape: ModelShape = SHAPE) -> Pattern:
    return megatron_pattern(shape, plan, Gating(k=2, dispatch="dropless"))


def summed(plan: Layout, kind: str, shape: ModelShape = SHAPE) -> float:
    config = Layout.of(shape, plan, Gating(k=2, dispatch="dropless"))
    return sum(
        float(np.where(t.calls > 0, t.wire, 0))
        for t in traffic(config)
        if t.kind == kind
    )


# ---- hybrid sharding ----------------------------------------------------------------


def test_hybrid_shards_are_of_neighbors_and_replicated_across() -> None:
    plan = Layout(dp=8, shard=4, zero=1)
    assert plan.groups("dp_shard") == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert plan.groups("dp_replicate") == ((0, 4), (1, 5), (2, 6), (3, 7))
    experts = Layout(dp=16, ep=4, shard=8, zero=1)
    # four copies of each expert, two in each block of eight ranks
    assert experts.expert_shards == 2
    assert experts.groups("edp_shard")[:2] == ((0, 4), (1, 5))
    assert experts.groups("edp_replicate")[:2] == ((0, 8), (1, 9))
    assert Layout(dp=16, ep=8, shard=8, zero=1).expert_shards == 1


def test_a_hybrid_optimizer_reduces_a_shard_across() -> None:
    plan = Layout(dp=8, shard=4, zero=1)
    (whole,) = listed(plan, operation="reduce_scatter", group="dp_shard")
    (across,) = listed(plan, operation="all_reduce", group="dp_replicate")
    (gathered,) = listed(plan, operation="all_gather", group="dp_shard")
    assert (across, gathered) == (whole / 4, whole / 4 / 2)  # float32, bfloat16
    # (3/4)(g + e) N within a block, and 2 (1/2) g N/4 across
    n = whole / 4
    expected = 3 / 4 * (4 + 2) * n + 2 * 1 / 2 * 4 * n / 4
    assert summed(plan, "dp") == pytest.approx(expected)
    matrix = traffic_matrix(made(plan), traffic=["DP"])
    assert matrix[0, 4] == pytest.approx(across, rel=1e-3)  # two halves of a ring
    assert matrix[0, 1] == pytest.approx(3 / 4 * 6 * n, rel=1e-3)
    assert not matrix[0, 5]


def test_hybrid_fsdp_of_experts_that_fill_a_block() -> None:
    # experts of a block are all different: their gradients go across alone
    plan = Layout(dp=16, ep=8, shard=8, zero=3, accumulation=2)
    expert = 2 * 256 * 1024  # elements, up and down
    across = listed(plan, MOE, group="edp_replicate")
    assert across == [expert * 4] * (2 * 2)
    assert not listed(plan, MOE, group="edp_shard")
    assert summed(plan, "edp", MOE) == 2 * 2 * expert * 4
    held = memory(Layout.of(MOE, plan, Gating(k=2)))
    assert float(held.optimizer) == pytest.approx(
        12 * (2 * expert + float(Layout.of(MOE, plan, Gating(k=2)).held) / 8)
    )


def test_shards_are_those_of_zero() -> None:
    with pytest.raises(LayoutError, match="give --zero 1, 2 or 3"):
        made(Layout(dp=8, shard=4))
    with pytest.raises(LayoutError, match="shard must divide dp x cp"):
        made(Layout(dp=8, shard=3, zero=1))


# ---- context parallelism -------------------------------------------------------------


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_context_parallelism_sends_keys_and_values_or_heads(recompute: str) -> None:
    c, tokens = 4, 2 * 64 // 4  # a rank's, of two sequences
    keys = tokens * 2 * 32 * 2  # two of 32 in bfloat16
    heads = tokens * 8 * 32 * 2
    again = recompute == "full"
    # a layer's forward and backward pass, as a ring sends them
    expected = {
        "ring": (c - 1) * 2 * keys * (3 + again),
        "all-gather": (c - 1) * 2 * keys * (3 + again),  # two gathers, one scatter
        # two key heads for four ranks: each has a copy of one
        "all-to-all": (c - 1) / c * 2 * (heads + 2 * keys) * (2 + again),
    }
    for context, of_layer in expected.items():
        plan = Layout(
            cp=c,
            micro_batch=2,
            accumulation=3,
            context=context,
            recompute=recompute,
        )
        assert summed(plan, "cp") == 3 * 2 * of_layer
        matrix = traffic_matrix(made(plan), traffic=["CP"])
        assert matrix.sum() == c * 3 * 2 * of_layer


# ---- element types -------------------------------------------------------------------


def test_tokens_in_eight_bits_come_back_in_sixteen() -> None:
    plan = Layout(dp=4, ep=4, dispatch_dtype="float8")
    copies = 2 * 64
    short, row = 256 + 2 * 4, 2 * 256  # two tiles of 128, each with a scale
    sizes = {
        phase: listed(plan, MOE, phase=phase, traffic="EP")
        for phase in ("dispatch", "combine", "combine_grad", "dispatch_grad")
    }
    assert sizes == {
        **dict.fromkeys(("dispatch", "combine_grad"), [copies * short] * 2),
        **dict.fromkeys(("combine", "dispatch_grad"), [copies * row] * 2),
    }
    assert summed(plan, "ep", MOE) == 3 / 4 * 2 * 2 * copies * (short + row)


# ---- schedules -----------------------------------------------------------------------


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 14), (6, 20), (8, 16)])
@pytest.mark.parametrize("schedule", ["zb-h1", "dualpipe"])
def test_schedules_run_to_their_end(schedule: str, p: int, m: int) -> None:
    left = {s: passes(s, p, m, 1, schedule) for s in range(p)}
    for order in left.values():
        whole = {(one.backward, one.micro_batch) for one in order}
        assert len(whole) == len(order) == 2 * m
    done: set[tuple[int, bool, int]] = set()  # (stage, backward, micro-batch)
    while any(left.values()):
        before = len(done)
        for stage, order in left.items():
            while order:
                one = order[0]
                waits, _ = handed_on(one, stage, p, 1, schedule)
                needs = {(waits[0], one.backward, one.micro_batch)} if waits else set()
                if one.backward:
                    needs.add((stage, False, one.micro_batch))
                if not needs <= done:
                    break
                done.add((stage, one.backward, one.micro_batch))
                order.pop(0)
        assert len(done) > before, "stages wait for each other"


def test_dualpipe_sends_as_1f1b_and_sums_over_mirrored_stages() -> None:
    p, m, d = 4, 8, 2
    shape = replace(SHAPE, layers=4)
    plain, both = (
        Layout(pp=p, dp=d, accumulation=m, schedule=name)
        for name in ("1f1b", "dualpipe")
    )
    messages = [
        traffic_matrix(made(one, shape), traffic=["PP"]) for one in (plain, both)
    ]
    assert (messages[0] == messages[1]).all()
    assert both.groups("dp_pair") == ((0, 1, 6, 7), (2, 3, 4, 5))
    # layers 0 and 3, 1 and 2; the tied table once, and no exchange of it
    h, kv = 256, 2 * 32
    layer = 2 * h * h + 2 * h * kv + 2 * 4 * h * h + 2 * h
    ends = 512 * h + 64 * h + h  # table, positions, last norm
    for rank, elements in ((0, 2 * layer + ends), (2, 2 * layer)):
        calls = [e.call for e in made(both, shape).program(rank)]
        (sync,) = [c for c in calls if c.traffic == "DP"]
        assert (sync.group, sync.size) == ("dp_pair", 4 * elements)
        assert not [c for c in calls if c.traffic == "EmbTableSync"]
    assert summed(both, "dp", shape) == 2 * 3 / 4 * 4 * (2 * layer + ends)


@pytest.mark.parametrize("p", [4, 8])
def test_bubbles_are_those_of_their_papers(p: int) -> None:
    shape = replace(SHAPE, layers=8)
    system = System(peak_flops=1e12, utilization=0.5)
    forward = 1 / 3  # of F + B
    flop = operations(Layout.of(shape, Layout(pp=p, accumulation=32)))
    weights = float(flop.weights / flop.all)
    assert (
        0.3 < weights < forward
    )  # gradients of inputs, and of attention, are the rest
    # in times of a micro-batch's F + B
    expected = {
        "1f1b": p - 1,
        "zb-h1": (p - 1) * (1 - 2 * weights),
        "dualpipe": (p / 2 - 1) * (1 + 2 / 3 - 3 * weights),
    }
    for schedule, bubble in expected.items():
        plan = Layout(pp=p, accumulation=32, schedule=schedule)
        found = estimate(Layout.of(shape, plan), system)
        one = float(found.compute) / 32
        assert float(found.bubble) == pytest.approx(bubble * one)
        assert float(found.bubble_of_ideal) == pytest.approx(bubble / 32)
    kept = {
        name: memory(
            Layout.of(shape, Layout(pp=p, accumulation=32, schedule=name, tp=2))
        )
        for name in expected
    }
    flight = {name: float(m.activations) for name, m in kept.items()}
    assert flight["zb-h1"] == flight["1f1b"]
    assert flight["dualpipe"] > (p + 1) / p * flight["1f1b"]  # and the logits
    held = [float(kept[name].weights) for name in ("zb-h1", "dualpipe")]
    assert 1 < held[1] / held[0] <= 2  # a second stage, the same table


def test_schedules_need_stages_and_micro_batches() -> None:
    for wrong, said in (
        ({"pp": 1, "schedule": "zb-h1"}, "several stages"),
        ({"pp": 4, "accumulation": 6, "schedule": "dualpipe"}, "two for each stage"),
        ({"pp": 2, "accumulation": 4, "schedule": "gpipe"}, "schedule is one of 1f1b"),
    ):
        with pytest.raises(LayoutError, match=said):
            made(Layout(**wrong), replace(SHAPE, layers=8))


# ---- further predictions -------------------------------------------------------------


def test_a_module_that_predicts_a_further_token_is_a_layer_a_head_and_a_matrix() -> (
    None
):
    plain, further = replace(MOE, tied=False), replace(MOE, tied=False, mtp=1)
    h = 256
    layer = 4 * h * h + 8 * h + 8 * 2 * h * 4 * h + 2 * h  # attention, gate, experts
    more = layer + 2 * h * h + 3 * h  # the matrix, and norms of both sides and behind
    counts = [parameter_count(shape).total for shape in (plain, further)]
    assert counts[1] - counts[0] == more
    held = [sum(t.elements for t in model_tensors(s)) for s in (plain, further)]
    assert held == counts
    plan = Layout(pp=2, dp=2, ep=2, tp=2, sequence_parallel=True, accumulation=2)
    row = 64 * h * 2  # a micro-batch, bfloat16
    programs = [made(plan, shape).programs for shape in (plain, further)]

    def of(program: Any, label: str) -> list[tuple[str, int]]:
        return [(c.operation, c.size) for c, _ in program if c.label == label]

    # the matrix gathers both inputs (twice) and its output, and reduces both gradients
    gather, scatter = ("all_gather", row), ("reduce_scatter", 2 * row)
    half = ("all_gather", row // 2)
    once = [gather, half, half, gather, scatter]
    assert sorted(of(programs[1][1], "join")) == sorted(2 * once)
    assert not of(programs[1][0], "join")
    # the last stage looks up tokens too, and shares the table with the first
    for stage in (0, 1):
        assert not of(programs[0][stage], "embedding_sync")
        assert of(programs[1][stage], "embedding_sync") == [
            ("all_reduce", 512 // 2 * h * 4)
        ]
    exchanges = [sum(c.traffic == "EP" for c, _ in program) for program in programs[1]]
    assert exchanges == [4 * 2, 2 * 4 * 2]
    losses = [of(p[1], "cross_entropy") for p in programs]
    assert losses[1] == 2 * losses[0]
    with pytest.raises(LayoutError, match="training predicts one token"):
        Workload(model=further)


def test_time_of_further_predictions_is_that_of_a_layer_and_a_head() -> None:
    system = System(peak_flops=1e12, utilization=0.5)
    plan = Layout(accumulation=4)
    found = [
        float(estimate(Layout.of(replace(SHAPE, **more), plan), system).compute)
        for more in ({}, {"mtp": 1}, {"layers": 3}, {"vocabulary": 1024})
    ]
    layer, head = found[2] - found[0], found[3] - found[0]
    assert found[1] - found[0] == pytest.approx(layer + head)


def test_kept_activations_of_llama_and_deepseek_are_those_by_hand() -> None:
    def kept(model: str, **named: Any) -> float:
        """Bytes of a token in a layer, of two stages with two micro-batches."""
        found = preset(model)
        shape = replace(found.model, mtp=0)
        config = Layout(
            model=shape,
            **{"k": found.gating.k, "pp": 2, "global_batch": 2},
            fused_attention=True,
            **named,
        )
        whole = float(memory(config).activations)
        return whole / shape.layers / shape.sequence

    # inputs of two norms and of the products behind them, queries and output: 12 h;
    # keys and values of 8 of 128 heads; gate, up and their product of 53,248
    h = 16_384
    llama = 12 * h + 2 * 2 * h * 8 / 128 + 3 * 2 * 53_248
    assert kept("llama-3-405b") == pytest.approx(llama)
    assert llama == 31.75 * h
    # without what is computed again: inputs of norms, those that latent attention
    # projects up from, its output; copies for 8 experts of 58 layers of 61, gate and
    # up of 9 x 2,048 in 8 bits
    h = 7168
    deepseek = 2 * 2 * h + 2 * (1536 + 512 + 64) + 2 * 128 * 128
    deepseek += 58 / 61 * 8 * h + 2 * 9 * 2048
    again = kept("deepseek-v3", fp8=True, recompute="modules")
    assert again == pytest.approx(deepseek)
    assert again < kept("deepseek-v3", fp8=True) < kept("deepseek-v3")


def test_modules_that_are_computed_again_cost_a_little_time() -> None:
    system = System.of_gpu(H100, 1e12)
    times = {
        way: float(
            estimate(
                Layout(
                    model=preset("deepseek-v3").model,
                    **{"k": 8, "ep": 64, "dp": 64, "global_batch": 64},
                    fused_attention=True,
                    recompute=way,
                ),
                system,
            ).compute
        )
        for way in ("none", "modules", "full")
    }
    assert 1.01 < times["modules"] / times["none"] < 1.15
    assert times["modules"] < times["full"]
