"""Transformer language model with mixture-of-experts layers, top to bottom.

By its shape it is GPT-2, Llama, Mixtral, Qwen or DeepSeek; encoders are in
:mod:`.encoders`.  There is no dropout.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import sqrt
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from moetraffic.gating import Routing
from moetraffic.models.layers.attention import norm
from moetraffic.models.layers.moe import MixtureOfExperts
from moetraffic.models.layers.positions import sinusoids
from moetraffic.models.layers.transformer_block import TransformerBlock
from moetraffic.patterns import Gating, ModelShape

from .random_streams import Stream, generator

IGNORED = -100
"""A target that counts for nothing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Losses:
    """Cross-entropy, balance loss and router z-loss of a micro-batch, with gradient."""

    cross_entropy: Tensor  # mean over tokens, nats
    auxiliary: Tensor  # load balancing, summed over the MoE layers
    z: Tensor  # router z-loss, summed over the MoE layers

    def total(self, gating: Gating) -> Tensor:
        """Compute the training loss with the loss weights of ``gating``."""
        return (
            self.cross_entropy
            + gating.balance * self.auxiliary
            + gating.z_loss * self.z
        )


def cross_entropy(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Compute the cross-entropy of logits in float32 at least, nats.

    ``logits`` are ``[B, S, V]`` float, ``targets`` ``[B, S]`` int64, of which
    ``IGNORED`` ones count for nothing; ``reduction`` is ``"mean"`` over tokens, or
    ``"none"``: one for each of the ``B S`` tokens.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    logits = logits.flatten(0, 1).to(dtype)
    return F.cross_entropy(
        logits, targets.flatten(), ignore_index=IGNORED, reduction=reduction
    )


class GPT(nn.Module):
    """Transformer language model of one rank, with the rank's layers and experts.

    Parameters
    ----------
    shape
        Sizes, building blocks, and which layers carry experts.
    gating
        Router and dispatch form of every MoE layer.
    group
        The expert-parallel process group, or None.
    seed
        Seed of the initial parameters, see :meth:`reset_parameters`.
    layers
        The blocks to hold, a stage of a decoder's pipeline; None holds all.  The
        embeddings come with the first layer, norm and head with the last, and with it
        the embedding of tokens again if it is the head.
    recompute
        Keep of each block its input alone, and compute the rest again when its
        gradient is due (Chen et al., arXiv 1604.06174): its all-to-alls are sent again.
    precision
        What matrices are multiplied in, and token vectors sent to experts, where that
        is not the dtype of the parameters (Micikevicius et al., arXiv 1710.03740).
    mixture
        Class of the MoE layers: of one rank, or of virtual ones.
    """

    def __init__(
        self,
        shape: ModelShape,
        gating: Gating,
        *,
        group: dist.ProcessGroup | None = None,
        seed: int = 0,
        layers: range | None = None,
        recompute: bool = False,
        precision: torch.dtype | None = None,
        mixture: type[MixtureOfExperts] = MixtureOfExperts,
    ) -> None:
        super().__init__()
        self.shape, self.recompute, self.precision = shape, recompute, precision
        held = range(shape.layers) if layers is None else layers
        self.first, self.last = 0 in held, shape.layers - 1 in held
        self.make_embeddings()
        self.blocks = nn.ModuleDict(
            {
                str(layer): TransformerBlock(shape, gating, layer, group, seed, mixture)
                for layer in held
            }
        )
        self.make_head()
        self.reset_parameters(seed)

    def make_embeddings(self) -> None:
        """Create what stands before the blocks."""
        shape = self.shape
        if self.first or (self.last and shape.tied):
            self.token = nn.Embedding(shape.vocabulary, shape.hidden)
        if self.first and shape.positions == "learned":
            self.position = nn.Embedding(shape.sequence, shape.hidden)

    def make_head(self) -> None:
        """Create what stands behind the blocks."""
        if self.last and self.shape.norm_place == "pre":
            self.norm = norm(self.shape)
        if self.last and not self.shape.tied:
            self.unembed = nn.Linear(
                self.shape.hidden, self.shape.vocabulary, bias=False
            )

    @property
    def mixtures(self) -> tuple[MixtureOfExperts, ...]:
        """The mixture-of-experts layers of this rank, in order."""
        return tuple(m for m in self.modules() if isinstance(m, MixtureOfExperts))

    def expert_parameters(self) -> list[nn.Parameter]:
        """The parameters of this rank's experts."""
        return [p for m in self.mixtures for p in m.experts.parameters()]

    def dense_parameters(self) -> list[nn.Parameter]:
        """All parameters except those of experts, routers included."""
        experts = {id(p) for p in self.expert_parameters()}
        return [p for p in self.parameters() if id(p) not in experts]

    @torch.no_grad()
    def reset_parameters(self, seed: int) -> None:
        """Initialize the parameters as GPT-2 does, from ``seed``.

        Matrices are N(0, 0.02^2), those that end a residual branch divided by
        sqrt(2 layers); norms are 1 and biases 0.  A dense parameter depends on (seed,
        its name), an expert on (seed, layer, global expert): a model has the same
        parameters however its layers and experts are spread over ranks.  On the meta
        device nothing is drawn.
        """
        residual = 0.02 / sqrt(2 * self.shape.layers)
        experts = {id(p) for p in self.expert_parameters()}
        for name, p in self.named_parameters():
            if p.is_meta or id(p) in experts:
                continue
            if p.dim() == 1:
                p.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            _draw(p, 0.02, generator(Stream.DENSE, seed, crc32(name.encode())))
            if name.endswith((".out.weight", ".down.weight")):
                p.mul_(residual / 0.02)
        for mixture in self.mixtures:
            if mixture.experts.up.is_meta:
                continue
            for local in range(len(mixture.experts.up)):
                expert = mixture.first_expert + local
                draws = generator(Stream.EXPERT, seed, mixture.layer, expert)
                _draw(mixture.experts.up[local], 0.02, draws)
                _draw(mixture.experts.down[local], residual, draws)
                if mixture.experts.gated:
                    _draw(mixture.experts.gate[local], 0.02, draws)

    def embed(self, tokens: Tensor) -> Tensor:
        """Embed ``[B, S]`` int64 tokens as ``[B, S, h]`` vectors (first stage only)."""
        x: Tensor = self.token(tokens)
        s, shape = tokens.shape[1], self.shape
        if shape.positions == "learned":
            x = x + self.position(torch.arange(s, device=tokens.device))
        elif shape.positions == "sinusoidal":
            x = x + sinusoids(s, shape.hidden, device=x.device).to(x.dtype)
        return x

    def run(
        self, x: Tensor, stack: slice = slice(None), **inputs: Tensor | None
    ) -> tuple[Tensor, list[Routing]]:
        """Apply this rank's transformer blocks, or some, to ``[B, S, h]`` vectors.

        ``inputs`` are further ones of :meth:`~.TransformerBlock.forward`.  Returns
        token vectors, and each MoE layer's routing.
        """
        routings = []
        with self.multiplied_in(x.device):
            for block in list(self.blocks.values())[stack]:
                if self.recompute and torch.is_grad_enabled():
                    again = partial(block, **inputs)
                    x, routing = checkpoint(again, x, use_reentrant=False)
                else:
                    x, routing = block(x, **inputs)
                if routing is not None:
                    routings.append(routing)
        return x, routings

    def head(self, x: Tensor) -> Tensor:
        """Compute ``[B, S, V]`` logits of ``[B, S, h]`` vectors (last stage only)."""
        with self.multiplied_in(x.device):
            weight = self.token.weight if self.shape.tied else self.unembed.weight
            return F.linear(self.norm(x), weight).to(x.dtype)

    def logits(self, tokens: Tensor) -> tuple[Tensor, list[Routing]]:
        """Compute ``[B, S, V]`` logits of ``[B, S]`` tokens, and layers' routings."""
        x, routings = self.run(self.embed(tokens), ids=tokens)
        return self.head(x), routings

    def forward(self, tokens: Tensor, targets: Tensor) -> Losses:
        """Compute the losses of ``[B, S]`` int64 tokens and targets, the right tokens.

        ``IGNORED`` targets count for nothing.
        """
        logits, routings = self.logits(tokens)
        entropy = cross_entropy(logits, targets)
        none = entropy.new_zeros(())
        return Losses(
            cross_entropy=entropy,
            auxiliary=sum((r.auxiliary_loss for r in routings), none),
            z=sum((r.z_loss for r in routings), none),
        )

    def multiplied_in(self, device: torch.device) -> torch.autocast:
        """Return the context in which matrices are multiplied in ``precision``."""
        lower = self.precision is not None
        return torch.autocast(device.type, dtype=self.precision, enabled=lower)


def _draw(parameter: Tensor, std: float, generator: torch.Generator) -> None:
    # float32 on the CPU whatever the parameter is: every device and dtype draws alike
    parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
