"""A GPT whose feed-forward is a mixture of experts in some of its layers.

The shape is GPT-2's (Radford et al. 2019, as in nanoGPT): pre-norm blocks, learned
positions, an output head that shares the embedding's weights; here without biases and
dropout.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt
from typing import cast
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from moetraffic.gating import Routing, build
from moetraffic.patterns import Gating, ModelShape

from .attention import Attention
from .fairscale_moe import FairscaleMixture
from .feedforward import FeedForward
from .moe import MixtureOfExperts
from .randomness import Stream, generator


@dataclass(frozen=True, kw_only=True, eq=False)
class Losses:
    """The parts of a micro-batch's loss, scalars with gradient."""

    cross_entropy: Tensor  # mean over tokens, nats
    auxiliary: Tensor  # load balancing, summed over the MoE layers
    z: Tensor  # router z-loss, summed over the MoE layers

    def total(self, gating: Gating) -> Tensor:
        """What is minimised, with the weights of ``gating``."""
        return (
            self.cross_entropy
            + gating.balance * self.auxiliary
            + gating.z_loss * self.z
        )


class Block(nn.Module):
    """Attention, then a dense or a mixture-of-experts feed-forward."""

    def __init__(
        self,
        shape: ModelShape,
        gating: Gating,
        layer: int,
        group: dist.ProcessGroup | None,
    ) -> None:
        super().__init__()
        h, width = shape.hidden, shape.ffn_multiple * shape.hidden
        self.norm_1 = nn.LayerNorm(h, bias=False)
        self.attention = Attention(h, shape.heads)
        self.norm_2 = nn.LayerNorm(h, bias=False)
        self.mlp: FeedForward | MixtureOfExperts
        if layer in shape.moe_layers:
            fairscale = gating.router == "fairscale"
            self.mlp = (FairscaleMixture if fairscale else MixtureOfExperts)(
                build(gating, h, shape.experts, layer=layer),
                experts=shape.experts,
                hidden=h,
                width=width,
                dispatch=gating.dispatch,
                layer=layer,
                group=group,
            )
        else:
            self.mlp = FeedForward(h, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Routing | None]:
        """``[B, S, h]`` to ``[B, S, h]``, and the routing of a MoE layer."""
        x = x + self.attention(self.norm_1(x))
        y = self.norm_2(x)
        if isinstance(self.mlp, MixtureOfExperts):
            y, routing = self.mlp(y)
            return x + y, routing
        return x + self.mlp(y), None


class GPT(nn.Module):
    """The model; one instance a rank, holding that rank's experts.

    Parameters
    ----------
    shape
        Sizes, and which layers carry experts.
    gating
        Router and dispatch form of every MoE layer.
    group
        The expert-parallel process group, or None.
    seed
        Decides the initial parameters, see :meth:`reset_parameters`.
    layers
        The blocks to hold, a stage of a pipeline; None holds all.  The embeddings come
        with the first layer, the head (whose weight is the embedding) with the last.
    """

    def __init__(
        self,
        shape: ModelShape,
        gating: Gating,
        *,
        group: dist.ProcessGroup | None = None,
        seed: int = 0,
        layers: range | None = None,
    ) -> None:
        super().__init__()
        self.shape = shape
        held = range(shape.layers) if layers is None else layers
        if 0 in held or shape.layers - 1 in held:
            self.token = nn.Embedding(shape.vocabulary, shape.hidden)
        if 0 in held:
            self.position = nn.Embedding(shape.sequence, shape.hidden)
        self.blocks = nn.ModuleDict(
            {str(layer): Block(shape, gating, layer, group) for layer in held}
        )
        if shape.layers - 1 in held:
            self.norm = nn.LayerNorm(shape.hidden, bias=False)
        self.reset_parameters(seed)

    @property
    def mixtures(self) -> tuple[MixtureOfExperts, ...]:
        """The mixture-of-experts layers, in order."""
        return tuple(m for m in self.modules() if isinstance(m, MixtureOfExperts))

    def expert_parameters(self) -> list[nn.Parameter]:
        """The parameters of this rank's experts."""
        return [p for m in self.mixtures for p in m.experts.parameters()]

    def dense_parameters(self) -> list[nn.Parameter]:
        """All other parameters, routers included: the same on every rank."""
        experts = {id(p) for p in self.expert_parameters()}
        return [p for p in self.parameters() if id(p) not in experts]

    @torch.no_grad()
    def reset_parameters(self, seed: int) -> None:
        """Draw the parameters as GPT-2 does, from ``seed`` alone.

        Matrices are N(0, 0.02^2), those that end a residual branch divided by
        sqrt(2 layers); norms are 1.  A dense parameter depends on (seed, its name),
        an expert on (seed, layer, global expert): a model has the same parameters
        however its layers and experts are spread over ranks.
        """
        residual = 0.02 / sqrt(2 * self.shape.layers)
        experts = {id(p) for p in self.expert_parameters()}
        for name, p in self.named_parameters():
            if id(p) in experts:
                continue
            if p.dim() == 1:
                p.fill_(1.0)
            else:
                _draw(p, 0.02, generator(Stream.DENSE, seed, crc32(name.encode())))
        for block in cast("Iterable[Block]", self.blocks.values()):
            block.attention.out.weight.mul_(residual / 0.02)
            if isinstance(block.mlp, FeedForward):
                block.mlp.down.weight.mul_(residual / 0.02)
        for mixture in self.mixtures:
            up, down = mixture.experts.up, mixture.experts.down
            for local in range(len(up)):
                expert = mixture.first_expert + local
                draws = generator(Stream.EXPERT, seed, mixture.layer, expert)
                _draw(up[local], 0.02, draws)
                _draw(down[local], residual, draws)

    def embed(self, tokens: Tensor) -> Tensor:
        """``[B, S]`` int64 tokens to ``[B, S, h]`` (with the first layer)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x: Tensor = self.token(tokens) + self.position(places)
        return x

    def run(self, x: Tensor) -> tuple[Tensor, list[Routing]]:
        """``[B, S, h]`` through the blocks held here, and each MoE layer's routing."""
        routings = []
        for block in self.blocks.values():
            x, routing = block(x)
            if routing is not None:
                routings.append(routing)
        return x, routings

    def head(self, x: Tensor) -> Tensor:
        """``[B, S, h]`` to ``[B, S, V]`` logits (with the last layer)."""
        return F.linear(self.norm(x), self.token.weight)

    def logits(self, tokens: Tensor) -> tuple[Tensor, list[Routing]]:
        """``[B, S]`` int64 tokens to ``[B, S, V]`` logits, and each MoE's routing."""
        x, routings = self.run(self.embed(tokens))
        return self.head(x), routings

    def forward(self, tokens: Tensor, targets: Tensor) -> Losses:
        """The losses of ``[B, S]`` int64 tokens and the tokens that follow them."""
        logits, routings = self.logits(tokens)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        return Losses(
            cross_entropy=F.cross_entropy(
                logits.flatten(0, 1).to(dtype), targets.flatten()
            ),
            auxiliary=torch.stack([r.auxiliary_loss for r in routings]).sum(),
            z=torch.stack([r.z_loss for r in routings]).sum(),
        )


def _draw(parameter: Tensor, std: float, generator: torch.Generator) -> None:
    # float32 on the CPU whatever the parameter is: every device and dtype draws alike
    parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
