"""Language models with an encoder: T5, Switch and GShard, or BERT alone.

An encoder and a decoder read a passage and write what follows it; an encoder alone
fills in masked tokens.  ``shape`` says which (:class:`moetraffic.patterns.ModelShape`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from moetraffic.gating import Routing
from moetraffic.models.layers.attention import norm
from moetraffic.models.layers.feedforward import ACTIVATIONS
from moetraffic.models.layers.positions import RelativeBias
from moetraffic.patterns import Gating, ModelShape

from .gpt import GPT


def language_model(shape: ModelShape, gating: Gating, **how: Any) -> GPT:
    """Create the model of a shape; ``how`` are the arguments of :class:`GPT`."""
    kind = EncoderModel if shape.encoder_layers or shape.norm_place == "post" else GPT
    return kind(shape, gating, **how)


class EncoderModel(GPT):
    """A :class:`GPT` whose first blocks, or all, see the tokens behind them too.

    Parameters are those of :class:`GPT`; a stage of a pipeline holds what it has there.
    """

    def make_embeddings(self) -> None:
        """Create what stands before the blocks, norms and relative positions too."""
        super().make_embeddings()
        shape = self.shape
        if self.first and shape.segments:
            self.segment = nn.Embedding(shape.segments, shape.hidden)
        if self.first and shape.norm_place == "post":
            self.norm_embedding = norm(shape)
        elif self.first and shape.two_stacks:
            self.norm_encoder = norm(shape)
        if shape.positions == "relative":
            self.relative_encoder = RelativeBias(shape.heads, causal=False)
            self.relative = RelativeBias(shape.heads, causal=True)

    def make_head(self) -> None:
        """Create what stands behind the blocks: with BERT a further layer, too."""
        shape, h = self.shape, self.shape.hidden
        if self.last and shape.norm_place == "pre":
            self.norm = norm(shape)
        if self.last and shape.masked:
            self.transform = nn.Linear(h, h, bias=shape.bias)
            self.norm_transform = norm(shape)
        if self.last and not shape.tied:
            self.unembed = nn.Linear(h, shape.vocabulary, bias=False)
        if self.last and shape.masked and shape.bias:
            self.unembed_bias = nn.Parameter(torch.zeros(shape.vocabulary))

    def embed(self, tokens: Tensor) -> Tensor:
        """Embed ``[B, S]`` int64 tokens as ``[B, S, h]`` vectors."""
        x = super().embed(tokens)
        if self.shape.segments:
            x = x + self.segment.weight[0]  # all text is of one segment
        return self.norm_embedding(x) if self.shape.norm_place == "post" else x

    def head(self, x: Tensor) -> Tensor:
        """Compute ``[B, S, V]`` logits of ``[B, S, h]`` vectors."""
        dtype, shape = x.dtype, self.shape
        with self.multiplied_in(x.device):
            if shape.norm_place == "pre":
                x = self.norm(x)
            if shape.masked:
                activation = ACTIVATIONS[shape.activation]
                x = self.norm_transform(activation(self.transform(x)))
            weight = self.token.weight if shape.tied else self.unembed.weight
            bias = self.unembed_bias if shape.masked and shape.bias else None
            return F.linear(x, weight, bias).to(dtype)

    def logits(self, tokens: Tensor) -> tuple[Tensor, list[Routing]]:
        """Compute the logits of tokens and the routing of each MoE layer.

        With two stacks tokens are ``[B, S + S']`` int64, what the encoder reads and
        behind it what the decoder does, and logits ``[B, S', V]``.
        """
        shape, between = self.shape, self.shape.encoder_layers
        if not shape.two_stacks:
            return super().logits(tokens)
        read, written = tokens[:, : shape.sequence], tokens[:, shape.sequence :]
        bias, causal = None, None
        if shape.positions == "relative":
            bias = self.relative_encoder(read.shape[1])
            causal = self.relative(written.shape[1])
        memory, before = self.run(self.embed(read), slice(between), ids=read, bias=bias)
        if shape.norm_place == "pre":
            memory = self.norm_encoder(memory)
        x, after = self.run(
            self.embed(written),
            slice(between, None),
            ids=written,
            memory=memory,
            bias=causal,
        )
        return self.head(x), before + after
