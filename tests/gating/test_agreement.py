"""Our routers decide as the implementations that they are named after."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moetraffic.gating import (
    DeepSeekRouter,
    FairscaleTop2Router,
    GShardRouter,
    SinkhornRouter,
    SwitchRouter,
    TopKRouter,
)
from moetraffic.gating.sinkhorn import sinkhorn_plan

HIDDEN, EXPERTS, TOKENS = 16, 8, 48


def tokens(seed: int, count: int = TOKENS) -> torch.Tensor:
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed))


def weight(seed: int, experts: int = EXPERTS) -> torch.Tensor:
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(experts, HIDDEN, generator=draws) / HIDDEN**0.5


def with_weight(router: Any, values: torch.Tensor) -> Any:
    with torch.no_grad():
        router.weight.copy_(values)
    return router


def by_token(expert: torch.Tensor, weight: torch.Tensor, experts: int) -> torch.Tensor:
    """``[T, K]`` choices, in any order, as ``[T, E]`` weights."""
    dense = weight.new_zeros(len(expert), experts)
    return dense.scatter(1, expert, weight.detach())


@given(seed=st.integers(0, 10_000), experts=st.integers(2, 8), times=st.integers(1, 8))
def test_gshard_is_fairscales_gate_on_equal_logits_and_noise(
    seed: int, experts: int, times: int
) -> None:
    x = tokens(seed, experts * times)
    ours = with_weight(
        GShardRouter(
            HIDDEN, experts, capacity_factor=1.0, second="gumbel", weights="kept"
        ),
        4 * weight(seed, experts),
    )
    theirs = FairscaleTop2Router(HIDDEN, experts)
    theirs.gate.wg.weight.data.copy_(ours.weight)
    torch.manual_seed(seed)
    mine = ours(x)
    torch.manual_seed(seed)
    # the gate as fairscale's own users call it
    auxiliary, combine, dispatch = theirs.gate(x)
    assert mine.capacity == combine.shape[2] == dispatch.shape[2]
    kept = torch.zeros(len(x), experts, dtype=torch.bool)
    kept[mine.token[mine.kept], mine.expert[mine.kept]] = True
    assert torch.equal(kept, dispatch.any(2))
    dense = torch.zeros(len(x), experts)
    dense[mine.token, mine.expert] = mine.weight.detach()
    torch.testing.assert_close(dense, combine.sum(2).detach())
    torch.testing.assert_close(mine.auxiliary_loss / experts**2, auxiliary)
    # and what our reading of it says
    torch.manual_seed(seed)
    read = theirs(x)
    assert torch.equal(read.demand(), dispatch.sum((0, 2)))
    assert torch.equal(read.demand(), mine.load())
    torch.testing.assert_close(read.auxiliary_loss, mine.auxiliary_loss)
    torch.testing.assert_close(read.z_loss, mine.z_loss)


def test_gradients_through_fairscales_gate_are_ours() -> None:
    ours = with_weight(
        GShardRouter(
            HIDDEN, EXPERTS, capacity_factor=1.0, second="gumbel", weights="kept"
        ),
        4 * weight(3),
    )
    theirs = FairscaleTop2Router(HIDDEN, EXPERTS)
    theirs.gate.wg.weight.data.copy_(ours.weight)
    for router in (ours, theirs):
        torch.manual_seed(5)
        routing = router(tokens(3))
        value = routing.weight * (1 + routing.expert + routing.token)
        (value.sum() + routing.auxiliary_loss + routing.z_loss).backward()
    torch.testing.assert_close(ours.weight.grad, theirs.gate.wg.weight.grad)


@pytest.fixture(scope="module")
def modeling() -> Any:
    """The modeling files of transformers that hold the routers."""
    pytest.importorskip("transformers", reason="the extra `test` installs it")
    from transformers.models.deepseek_v2 import modeling_deepseek_v2
    from transformers.models.deepseek_v3 import modeling_deepseek_v3
    from transformers.models.mixtral import modeling_mixtral
    from transformers.models.qwen2_moe import modeling_qwen2_moe
    from transformers.models.qwen3_moe import modeling_qwen3_moe

    return SimpleNamespace(
        mixtral=modeling_mixtral.MixtralTopKRouter,
        qwen2=modeling_qwen2_moe.Qwen2MoeTopKRouter,
        qwen3=modeling_qwen3_moe.Qwen3MoeTopKRouter,
        deepseek_v2=modeling_deepseek_v2.DeepseekV2TopkRouter,
        deepseek_v3=modeling_deepseek_v3.DeepseekV3TopkRouter,
    )


def config(**more: Any) -> SimpleNamespace:
    return SimpleNamespace(
        num_experts_per_tok=more.pop("k", 2),
        num_local_experts=EXPERTS,
        num_experts=EXPERTS,
        hidden_size=HIDDEN,
        **more,
    )


@pytest.mark.parametrize(
    ("name", "options", "their_config"),
    [
        ("mixtral", {"softmax": "after"}, {}),
        ("mixtral", {"renormalize": True}, {}),
        ("qwen2", {"renormalize": False}, {"norm_topk_prob": False}),
        ("qwen3", {"renormalize": True}, {"norm_topk_prob": True}),
    ],
)
@pytest.mark.parametrize("k", [1, 2, 4])
def test_topk_is_mixtrals_and_qwens(
    modeling: Any, name: str, options: Any, their_config: Any, k: int
) -> None:
    made = getattr(modeling, name)(config(k=k, **their_config))
    theirs = with_weight(made, weight(7))
    ours = with_weight(TopKRouter(HIDDEN, EXPERTS, k=k, **options), weight(7))
    x = tokens(8)
    _, their_weight, their_expert = theirs(x)
    routing = ours(x)
    assert torch.equal(routing.expert_tk, their_expert)
    torch.testing.assert_close(routing.weight.view_as(routing.expert_tk), their_weight)


@settings(max_examples=10)
@given(
    seed=st.integers(0, 10_000),
    groups=st.sampled_from([(1, 1), (2, 1), (4, 2), (4, 3)]),
    k=st.integers(1, 2),
    normalized=st.booleans(),
)
def test_deepseek_is_v3s(
    modeling: Any, seed: int, groups: tuple[int, int], k: int, normalized: bool
) -> None:
    groups_all, groups_top = groups  # theirs wants two experts of a group at least
    theirs = with_weight(
        modeling.deepseek_v3(
            config(
                k=k,
                n_group=groups_all,
                topk_group=groups_top,
                routed_scaling_factor=2.5,
                norm_topk_prob=normalized,
            )
        ),
        4 * weight(seed),
    )
    ours = with_weight(
        DeepSeekRouter(
            HIDDEN,
            EXPERTS,
            k=k,
            groups=groups_all,
            top_groups=groups_top,
            scale=2.5,
            renormalize=normalized,
            bias_rate=0.05,
        ),
        4 * weight(seed),
    )
    draws = torch.Generator().manual_seed(seed)
    ours.steps.copy_(torch.randint(-4, 5, (EXPERTS,), generator=draws))
    theirs.e_score_correction_bias.copy_(ours.bias)
    x = tokens(seed)
    _, their_weight, their_expert = theirs(x)
    routing = ours(x)
    torch.testing.assert_close(
        by_token(routing.expert_tk, routing.weight.view_as(routing.expert_tk), EXPERTS),
        by_token(their_expert, their_weight, EXPERTS),
    )


@pytest.mark.parametrize("method", ["greedy", "group_limited_greedy"])
def test_deepseek_is_v2s(modeling: Any, method: str) -> None:
    limited = method == "group_limited_greedy"
    theirs = with_weight(
        modeling.deepseek_v2(
            config(
                k=3,
                routed_scaling_factor=16.0,
                topk_method=method,
                n_group=4,
                topk_group=2,
            )
        ),
        4 * weight(2),
    )
    ours = with_weight(
        DeepSeekRouter(
            HIDDEN,
            EXPERTS,
            k=3,
            score="softmax",
            groups=4 if limited else 1,
            top_groups=2 if limited else 1,
            group_score="max",
            bias_rate=0.0,
            renormalize=False,
            scale=16.0,
        ),
        4 * weight(2),
    )
    x = tokens(4)
    _, their_weight, their_expert = theirs(x)
    routing = ours(x)
    torch.testing.assert_close(
        by_token(routing.expert_tk, routing.weight.view_as(routing.expert_tk), EXPERTS),
        by_token(their_expert, their_weight, EXPERTS),
    )


def test_switch_is_transformers() -> None:
    pytest.importorskip("transformers", reason="the extra `test` installs it")
    from transformers.models.switch_transformers import modeling_switch_transformers

    theirs = modeling_switch_transformers.SwitchTransformersTop1Router(
        SimpleNamespace(
            num_experts=EXPERTS,
            expert_capacity=5,
            hidden_size=HIDDEN,
            router_bias=False,
            router_jitter_noise=0.1,
            router_ignore_padding_tokens=False,
            router_dtype="float32",
        )
    )
    theirs.classifier.weight.data.copy_(4 * weight(1))
    # 48 tokens, 8 experts: a capacity of 5
    ours = with_weight(
        SwitchRouter(HIDDEN, EXPERTS, capacity_factor=0.8, jitter=0.1), 4 * weight(1)
    )
    x = tokens(6)
    for training in (True, False):
        torch.manual_seed(9)
        chosen, their_weight, _ = theirs.train(training)(x.clone()[None])
        torch.manual_seed(9)
        routing = ours.train(training)(x)
        assert routing.capacity == 5
        kept = torch.zeros(TOKENS, EXPERTS, dtype=torch.int64)
        kept[routing.token[routing.kept], routing.expert[routing.kept]] = 1
        assert torch.equal(kept, chosen[0])
        torch.testing.assert_close(
            routing.weight.view_as(routing.expert_tk), their_weight[0]
        )


def normalized_by_turns(cost: torch.Tensor, tolerance: float) -> torch.Tensor:
    """Sinkhorn's scaling written out without logarithms, as Megatron-Core stops it."""
    plan, before = cost.exp().double(), torch.ones(cost.shape[1], dtype=torch.float64)
    columns = before
    while True:
        rows = 1 / (len(plan) * (plan * columns).sum(1))
        columns = 1 / (plan.shape[1] * (plan * rows[:, None]).sum(0))
        if (columns - before).abs().mean() <= tolerance:
            return rows[:, None] * plan * columns
        before = columns


@given(seed=st.integers(0, 10_000), k=st.integers(1, 3))
def test_sinkhorn_is_the_scaling_of_rows_and_columns(seed: int, k: int) -> None:
    router = with_weight(SinkhornRouter(HIDDEN, EXPERTS, k=k), 2 * weight(seed))
    x = tokens(seed)
    logits = router.logits(x).detach()
    expected = normalized_by_turns(logits, 1e-4)
    plan = sinkhorn_plan(logits).exp()
    torch.testing.assert_close(plan, expected.float(), rtol=1e-3, atol=1e-7)
    routing = router(x)
    wanted = sinkhorn_plan(logits).topk(k).indices
    assert torch.equal(routing.expert_tk, wanted)
    score = logits.sigmoid() if k == 1 else logits.softmax(-1)
    torch.testing.assert_close(
        routing.weight.view_as(routing.expert_tk).detach(), score.gather(1, wanted)
    )
