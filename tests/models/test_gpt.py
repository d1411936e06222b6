from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from moetraffic.errors import LayoutError
from moetraffic.gating import Routing, build
from moetraffic.models import GPT, MixtureOfExperts, language_model
from moetraffic.patterns import Gating, ModelShape

SHAPE = ModelShape(layers=4, hidden=16, heads=2, sequence=12, experts=6)


def dense_reference(layer: MixtureOfExperts, x: torch.Tensor) -> torch.Tensor:
    """Every token through its kept experts, one at a time."""
    routing: Routing = layer.router(x)
    y = torch.zeros_like(x)
    for token, expert, weight, kept in zip(
        routing.token, routing.expert, routing.weight, routing.kept, strict=True
    ):
        if kept:
            up, down = layer.experts.up[expert], layer.experts.down[expert]
            y[token] = y[token] + weight * (F.gelu(x[token] @ up) @ down)
    return y


@pytest.mark.parametrize("dispatch", ["padded", "dropped", "dropless"])
@pytest.mark.parametrize(("router", "k"), [("switch", 1), ("topk", 2), ("topk", 6)])
def test_a_layer_is_the_weighted_sum_of_its_experts(
    dispatch: str, router: str, k: int
) -> None:
    torch.manual_seed(0)
    gating = Gating(router=router, k=k, dispatch=dispatch, capacity_factor=0.6)
    layer = MixtureOfExperts(
        build(gating, 8, 6), experts=6, hidden=8, width=12, dispatch=dispatch, layer=0
    )
    for p in layer.parameters():
        nn.init.normal_(p)
    layer = layer.double()
    x = torch.randn(17, 8, dtype=torch.float64)
    y, routing = layer(x)
    assert routing.kept.all() == (dispatch == "dropless")
    torch.testing.assert_close(y, dense_reference(layer, x))
    # and so are its gradients
    names, parameters = zip(*layer.named_parameters(), strict=True)
    got = torch.autograd.grad(y.square().sum(), parameters)
    expected = torch.autograd.grad(dense_reference(layer, x).square().sum(), parameters)
    for name, a, b in zip(names, got, expected, strict=True):
        torch.testing.assert_close(a, b, msg=name)


@pytest.mark.slow
def test_experts_that_no_token_chose_on_other_ranks(
    run_ranks: Callable[..., list[Any]],
) -> None:
    # experts 0 and 1 live on rank 0: the other three ranks receive nothing
    ranks = run_ranks("lonely", chosen=[0, 1])
    parameters = []
    for expert in (0, 1):
        torch.manual_seed(expert)
        parameters.append(
            (
                torch.empty(4, 8, dtype=torch.float64).normal_(),
                torch.empty(8, 4, dtype=torch.float64).normal_(),
            )
        )
    for rank, result in enumerate(ranks):
        x = result["x"].requires_grad_()
        y = sum(0.5 * F.gelu(x @ up) @ down for up, down in parameters)
        y.square().sum().backward()
        torch.testing.assert_close(result["y"], y.detach())
        torch.testing.assert_close(result["x_grad"], x.grad)
        assert (result["up_grad"].abs().sum() > 0) == (rank == 0)


def test_padded_needs_a_capacity() -> None:
    layer = MixtureOfExperts(
        build(Gating(dispatch="dropless"), 8, 6),
        experts=6,
        hidden=8,
        width=8,
        dispatch="padded",
        layer=0,
    )
    with pytest.raises(LayoutError, match="padded dispatch needs a capacity"):
        layer(torch.randn(4, 8))


def test_experts_sit_in_every_nth_layer() -> None:
    model = language_model(SHAPE, Gating())
    assert [m.layer for m in model.mixtures] == [1, 3]
    every = ModelShape(layers=3, hidden=16, heads=2, experts=2, moe_every=1)
    assert [m.layer for m in language_model(every, Gating()).mixtures] == [0, 1, 2]


def test_parameters_are_dense_or_experts() -> None:
    model = language_model(SHAPE, Gating())
    h, f = 16, 64
    experts = sum(p.numel() for p in model.expert_parameters())
    assert experts == 2 * 6 * 2 * h * f
    dense = sum(p.numel() for p in model.dense_parameters())
    attention, norms, ffn, routers = 4 * 4 * h * h, 9 * h, 2 * 2 * h * f, 2 * 6 * h
    embeddings = (256 + 12) * h  # the head shares them
    assert dense == attention + norms + ffn + routers + embeddings


def test_initial_parameters_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = language_model(SHAPE, Gating(), seed=7)
    torch.manual_seed(2)
    same, other = (
        language_model(SHAPE, Gating(), seed=7),
        language_model(SHAPE, Gating(), seed=8),
    )
    pairs = list(zip(first.parameters(), same.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    up = first.mixtures[0].experts.up
    assert not torch.equal(up, other.mixtures[0].experts.up)
    assert not torch.equal(up[0], up[1])
    assert not torch.equal(up, first.mixtures[1].experts.up)


STAGED = {
    "tied": SHAPE,
    "untied, rotary, shared experts": ModelShape(
        layers=4,
        hidden=16,
        heads=2,
        sequence=12,
        experts=4,
        positions="rotary",
        norm="rms",
        tied=False,
        shared_ffn=8,
        moe_first=1,
        moe_every=1,
    ),
}


@pytest.mark.parametrize("shape", STAGED.values(), ids=STAGED)
def test_stages_make_up_the_whole_model(shape: ModelShape) -> None:
    whole = language_model(shape, Gating(), seed=4).double()
    held = [range(0, 1), range(1, 3), range(3, 4)]
    stages = [
        language_model(shape, Gating(), seed=4, layers=part).double() for part in held
    ]
    # a parameter has the same name and the same value wherever it is
    named = dict(whole.named_parameters())
    seen: list[str] = []
    for stage in stages:
        for name, p in stage.named_parameters():
            assert torch.equal(p, named[name]), name
            seen.append(name)
    assert set(seen) == set(named)
    twice = {name for name in seen if seen.count(name) > 1}
    assert twice == ({"token.weight"} if shape.tied else set())
    assert [sorted(map(int, s.blocks)) for s in stages] == [list(r) for r in held]
    # and together they compute what the whole does
    tokens = torch.arange(24).view(2, 12)
    x, routed = stages[0].embed(tokens), 0
    for stage in stages:
        x, routings = stage.run(x)
        routed += len(routings)
    expected, routings = whole.logits(tokens)
    assert routed == len(routings) == len(shape.moe_layers)
    torch.testing.assert_close(stages[-1].head(x), expected)


def test_biases_begin_at_zero_and_residual_branches_small() -> None:
    shape = ModelShape(
        layers=8, hidden=64, bias=True, norm_bias=True, gated=True, shared_ffn=64
    )
    named = dict(language_model(shape, Gating()).named_parameters())
    for name, p in named.items():
        if p.dim() == 1:
            assert bool((p == (0.0 if name.endswith("bias") else 1.0)).all()), name
        elif name.endswith((".out.weight", ".down.weight", "experts.down")):
            assert p.std().item() == pytest.approx(0.02 / 4, rel=0.1), name
        else:
            assert p.std().item() == pytest.approx(0.02, rel=0.1), name


def test_an_encoder_looks_both_ways() -> None:
    shape = replace(SHAPE, encoder_layers=4, norm_place="post", segments=2)
    model = language_model(shape, Gating()).double()
    tokens = torch.arange(12).unsqueeze(0)
    changed = tokens.clone()
    changed[0, 8] = 99
    a, b = model.logits(tokens)[0], model.logits(changed)[0]
    assert all(not torch.allclose(a[0, i], b[0, i]) for i in range(12))


def two_stacks() -> GPT:
    shape = ModelShape(
        layers=4,
        encoder_layers=2,
        hidden=16,
        heads=2,
        sequence=12,
        target_sequence=5,
        experts=6,
        positions="relative",
        norm="rms",
    )
    return language_model(shape, Gating()).double()


def test_a_decoder_sees_the_passage_and_what_it_wrote() -> None:
    model, tokens = two_stacks(), torch.arange(17).unsqueeze(0)
    before, routings = model.logits(tokens)
    assert before.shape == (1, 5, 256)
    assert [m.layer for m in model.mixtures] == [1, 3]
    assert [r.tokens for r in routings] == [12, 5]
    read, written = tokens.clone(), tokens.clone()
    read[0, 3], written[0, 12 + 3] = 99, 99
    after = model.logits(read)[0]
    assert all(not torch.allclose(before[0, i], after[0, i]) for i in range(5))
    after = model.logits(written)[0]
    torch.testing.assert_close(before[0, :3], after[0, :3])
    assert not torch.allclose(before[0, 3:], after[0, 3:])


def test_ignored_targets_count_for_nothing() -> None:
    model, tokens = language_model(SHAPE, Gating()), torch.arange(24).view(2, 12)
    targets = torch.full_like(tokens, -100)
    targets[0, 3], targets[1, 7] = 5, 6
    logits, _ = model.logits(tokens)
    chosen = torch.stack([logits[0, 3], logits[1, 7]])
    expected = F.cross_entropy(chosen, torch.tensor([5, 6]))
    torch.testing.assert_close(model(tokens, targets).cross_entropy, expected)


def test_a_dense_model_has_no_routing_losses() -> None:
    shape = ModelShape(layers=2, hidden=16, heads=2, sequence=12, experts=0)
    model, tokens = language_model(shape, Gating()), torch.arange(24).view(2, 12)
    losses = model(tokens, tokens)
    assert losses.auxiliary == losses.z == 0
    assert losses.total(Gating()) == losses.cross_entropy
    assert model.expert_parameters() == []


def test_shared_experts_are_added_for_every_token() -> None:
    shape = replace(SHAPE, shared_ffn=10, shared_gate=True)
    block = language_model(shape, Gating()).double().blocks["1"]
    x = torch.randn(2, 12, 16, dtype=torch.float64)
    y, _ = block(x)
    x = x + block.attention(block.norm_1(x))
    inner = block.norm_2(x)
    gate = torch.sigmoid(block.shared_gate(inner))
    expected = x + block.mlp(inner)[0] + gate * block.shared(inner)
    torch.testing.assert_close(y, expected)


def test_recomputing_gives_the_same_gradients() -> None:
    tokens, gradients = torch.arange(24).view(2, 12), []
    for recompute in (False, True):
        model = language_model(SHAPE, Gating(), recompute=recompute)
        losses = model(tokens, tokens)
        losses.total(Gating(balance=0.5)).backward()
        gradients.append([p.grad for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        assert torch.equal(a, b)


def test_products_in_bfloat16_leave_the_rest_in_float32() -> None:
    model = language_model(SHAPE, Gating(), precision=torch.bfloat16)
    sent = []
    for mixture in model.mixtures:
        mixture.register_forward_pre_hook(lambda _, given: sent.append(given[0].dtype))
    logits, routings = model.logits(torch.arange(12).unsqueeze(0))
    assert sent == [torch.bfloat16] * 2  # what experts are sent
    assert logits.dtype == torch.float32
    assert {r.weight.dtype for r in routings} == {torch.float32}
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_attention_is_causal() -> None:
    # routing is a token's own affair in a dropless layer, so nothing looks ahead
    model = language_model(SHAPE, Gating(dispatch="dropless")).double()
    tokens = torch.arange(12).unsqueeze(0)
    changed = tokens.clone()
    changed[0, 8] = 99
    a, b = model.logits(tokens)[0], model.logits(changed)[0]
    torch.testing.assert_close(a[0, :8], b[0, :8])
    assert not torch.allclose(a[0, 8:], b[0, 8:])


def test_losses_are_summed_over_layers() -> None:
    model, gating = language_model(SHAPE, Gating()), Gating(balance=0.5, z_loss=0.25)
    tokens = torch.arange(24).view(2, 12)
    losses = model(tokens, tokens)
    logits, routings = model.logits(tokens)
    assert len(routings) == 2
    auxiliary = sum(r.auxiliary_loss for r in routings)
    z = sum(r.z_loss for r in routings)
    torch.testing.assert_close(losses.auxiliary, auxiliary)
    torch.testing.assert_close(losses.z, z)
    entropy = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    torch.testing.assert_close(losses.cross_entropy, entropy)
    expected = entropy + 0.5 * auxiliary + 0.25 * z
    torch.testing.assert_close(losses.total(gating), expected)
