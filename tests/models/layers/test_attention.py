from __future__ import annotations

from dataclasses import replace
from math import sqrt

import pytest
import torch

from moetraffic.models.layers.attention import Attention, LatentAttention
from moetraffic.models.layers.feedforward import FeedForward, LocalExperts
from moetraffic.models.layers.positions import RelativeBias, buckets, rotated, sinusoids
from moetraffic.patterns import ModelShape

SHAPE = ModelShape(hidden=16, heads=4, sequence=10)
LATENT = replace(
    SHAPE, positions="rotary", kv_rank=6, query_rank=10, rope_size=4, value_size=3
)


def x_of(tokens: int = 10) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(2, tokens, 16, dtype=torch.float64)


def test_a_shared_key_head_is_that_head_for_each_query() -> None:
    torch.manual_seed(0)
    few = Attention(replace(SHAPE, kv_heads=2)).double()
    many = Attention(SHAPE).double()
    with torch.no_grad():
        many.q.weight.copy_(few.q.weight)
        many.out.weight.copy_(few.out.weight)
        for a, b in ((few.k, many.k), (few.v, many.v)):
            heads = a.weight.view(2, 4, 16)  # [groups, d, h]
            b.weight.copy_(heads.repeat_interleave(2, dim=0).reshape(16, 16))
    torch.testing.assert_close(few(x_of()), many(x_of()))


def naive(layer: Attention, x: torch.Tensor, causal: bool) -> torch.Tensor:
    """One query at a time."""
    d, heads = layer.head_width, layer.q.out_features // layer.head_width
    q, k, v = (m(x).view(*x.shape[:2], heads, d) for m in (layer.q, layer.k, layer.v))
    out = torch.zeros_like(q)
    for b in range(len(x)):
        for i in range(x.shape[1]):
            seen = i + 1 if causal else x.shape[1]
            for n in range(heads):
                scores = (k[b, :seen, n] @ q[b, i, n]) / sqrt(d)
                out[b, i, n] = scores.softmax(0) @ v[b, :seen, n]
    return layer.out(out.flatten(2))


@pytest.mark.parametrize("causal", [True, False])
def test_attention_is_softmax_of_scores(causal: bool) -> None:
    layer = Attention(replace(SHAPE, bias=True), causal=causal).double()
    x = x_of(5)
    torch.testing.assert_close(layer(x), naive(layer, x, causal))


def test_cross_attention_asks_the_memory_all_of_it() -> None:
    layer = Attention(replace(SHAPE, positions="rotary"), cross=True).double()
    x, memory = x_of(4), x_of(7)
    y = layer(x, memory=memory)
    assert y.shape == x.shape
    # neither order nor place matters
    torch.testing.assert_close(layer(x, memory=memory.flip(1)), y)
    torch.testing.assert_close(layer(x.flip(1), memory=memory), y.flip(1))


@pytest.mark.parametrize("shape", [replace(SHAPE, kv_heads=2, bias=True), LATENT])
def test_a_slice_by_heads_is_a_share_of_the_layer(shape: ModelShape) -> None:
    torch.manual_seed(0)
    kind = LatentAttention if shape.kv_rank else Attention
    whole, total = kind(shape).double(), torch.zeros(2, 10, 16, dtype=torch.float64)
    for rank in range(2):
        part = kind(shape).double()
        part.load_state_dict(whole.state_dict())
        for name in part.column_parallel:
            linear = getattr(part, name)
            linear.weight = torch.nn.Parameter(linear.weight.chunk(2)[rank])
            if linear.bias is not None:
                linear.bias = torch.nn.Parameter(linear.bias.chunk(2)[rank])
        for name in part.row_parallel:
            linear = getattr(part, name)
            linear.weight = torch.nn.Parameter(linear.weight.chunk(2, 1)[rank])
            linear.bias = None
        total = total + part(x_of())
    bias = 0 if whole.out.bias is None else whole.out.bias
    torch.testing.assert_close(total + bias, whole(x_of()))


def test_latent_attention_is_causal() -> None:
    layer, x = LatentAttention(LATENT).double(), x_of()
    changed = x.clone()
    changed[:, 6] += 1
    a, b = layer(x), layer(changed)
    torch.testing.assert_close(a[:, :6], b[:, :6])
    assert not torch.allclose(a[:, 6:], b[:, 6:])


def test_rotations_keep_lengths_and_know_distances_alone() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 8, dtype=torch.float64)
    turned = rotated(torch.stack([q, k]).view(1, 2, 1, 8).expand(1, 2, 30, 8), 100.0)
    torch.testing.assert_close(turned[0, 0, 7].norm(), q.norm())
    torch.testing.assert_close(turned[0, 0, 0], q)
    score = turned[0, 0] @ turned[0, 1].T  # [place of q, place of k]
    for distance in (-5, 0, 3):
        along = score.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), rtol=0, atol=1e-5)
    assert score[0, 1] != pytest.approx(score[0, 0].item())


def test_rotations_of_half_precision_are_computed_in_full() -> None:
    x = torch.ones(1, 1, 3000, 4)
    exact = rotated(x.double(), 10_000.0)
    near = rotated(x.bfloat16(), 10_000.0)
    assert near.dtype == torch.bfloat16
    torch.testing.assert_close(near.double(), exact, rtol=0, atol=0.01)


def test_sinusoids_are_those_of_the_paper() -> None:
    table = sinusoids(5, 6, device=torch.device("cpu")).double()
    for place in range(5):
        for i in range(3):
            angle = torch.tensor(place / 10_000 ** (2 * i / 6), dtype=torch.float64)
            torch.testing.assert_close(table[place, i], angle.sin(), rtol=0, atol=1e-6)
            torch.testing.assert_close(
                table[place, 3 + i], angle.cos(), rtol=0, atol=1e-6
            )
    assert sinusoids(4, 5, device=torch.device("cpu")).shape == (4, 5)


def test_buckets_tell_near_distances_apart() -> None:
    back = torch.arange(-200, 1)
    found = buckets(back, causal=True)
    assert found[-16:].tolist() == list(range(15, -1, -1))  # exact up to 15
    assert found[0] == 31
    assert (found.diff() <= 0).all()  # farther away, no smaller bucket
    assert buckets(torch.tensor([1, 50]), causal=True).tolist() == [0, 0]
    both = buckets(torch.tensor([-300, -3, 0, 3, 300]), causal=False)
    assert both.tolist() == [15, 3, 0, 19, 31]


def test_a_relative_bias_hides_what_is_behind_a_causal_query() -> None:
    bias = RelativeBias(3, causal=True)(6)
    assert bias.shape == (3, 6, 6)
    hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)
    assert bool((bias[:, hidden] == float("-inf")).all())
    assert bool(bias[:, ~hidden].isfinite().all())
    assert bool(RelativeBias(3, causal=False)(6).isfinite().all())


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("activation", ["gelu", "relu", "silu"])
def test_an_expert_is_a_feed_forward(gated: bool, activation: str) -> None:
    torch.manual_seed(0)
    kind = {"activation": activation, "gated": gated}
    experts = LocalExperts(3, 6, 10, **kind).double()
    networks = [FeedForward(6, 10, **kind).double() for _ in range(3)]
    with torch.no_grad():
        for i, network in enumerate(networks):
            for name, linear in network.named_children():
                getattr(experts, name)[i].copy_(linear.weight.T)
    assert networks[0].column_parallel == (("gate", "up") if gated else ("up",))
    rows = torch.randn(9, 6, dtype=torch.float64)
    counts = [4, 0, 5]
    expected = torch.cat(
        [net(x) for net, x in zip(networks, rows.split(counts), strict=True)]
    )
    torch.testing.assert_close(experts.ragged(rows, counts), expected)
    slots = torch.randn(3, 7, 6, dtype=torch.float64)
    expected = torch.stack([net(x) for net, x in zip(networks, slots, strict=True)])
    torch.testing.assert_close(experts.batched(slots), expected)
