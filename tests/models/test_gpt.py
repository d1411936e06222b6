from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from moetraffic.errors import LayoutError
from moetraffic.gating import Routing, build
from moetraffic.models import GPT, MixtureOfExperts
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
    model = GPT(SHAPE, Gating())
    assert [m.layer for m in model.mixtures] == [1, 3]
    every = ModelShape(layers=3, hidden=16, heads=2, experts=2, moe_every=1)
    assert [m.layer for m in GPT(every, Gating()).mixtures] == [0, 1, 2]


def test_parameters_are_dense_or_experts() -> None:
    model = GPT(SHAPE, Gating())
    h, f = 16, 64
    experts = sum(p.numel() for p in model.expert_parameters())
    assert experts == 2 * 6 * 2 * h * f
    dense = sum(p.numel() for p in model.dense_parameters())
    attention, norms, ffn, routers = 4 * 4 * h * h, 9 * h, 2 * 2 * h * f, 2 * 6 * h
    embeddings = (256 + 12) * h  # the head shares them
    assert dense == attention + norms + ffn + routers + embeddings


def test_initial_parameters_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = GPT(SHAPE, Gating(), seed=7)
    torch.manual_seed(2)
    same, other = GPT(SHAPE, Gating(), seed=7), GPT(SHAPE, Gating(), seed=8)
    pairs = list(zip(first.parameters(), same.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    up = first.mixtures[0].experts.up
    assert not torch.equal(up, other.mixtures[0].experts.up)
    assert not torch.equal(up[0], up[1])
    assert not torch.equal(up, first.mixtures[1].experts.up)


def test_attention_is_causal() -> None:
    # routing is a token's own affair in a dropless layer, so nothing looks ahead
    model = GPT(SHAPE, Gating(dispatch="dropless")).double()
    tokens = torch.arange(12).unsqueeze(0)
    changed = tokens.clone()
    changed[0, 8] = 99
    a, b = model.logits(tokens)[0], model.logits(changed)[0]
    torch.testing.assert_close(a[0, :8], b[0, :8])
    assert not torch.allclose(a[0, 8:], b[0, 8:])


def test_losses_are_summed_over_layers() -> None:
    model, gating = GPT(SHAPE, Gating()), Gating(balance=0.5, z_loss=0.25)
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
