"""Transformer block: attention and a dense or mixture-of-experts feed-forward."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from moetraffic.gating import Routing, build
from moetraffic.patterns import Gating, ModelShape

from .attention import Attention, LatentAttention, norm
from .fairscale_moe import FairscaleMixture
from .feedforward import FeedForward
from .moe import MixtureOfExperts


class TransformerBlock(nn.Module):
    """One transformer layer, dense or with experts according to its global index.

    Parameters are those of :class:`~moetraffic.models.GPT`.
    """

    def __init__(
        self,
        shape: ModelShape,
        gating: Gating,
        layer: int,
        group: dist.ProcessGroup | None,
        seed: int = 0,
        mixture: type[MixtureOfExperts] = MixtureOfExperts,
    ) -> None:
        super().__init__()
        decodes = layer >= shape.encoder_layers
        self.layer, self.post = layer, shape.norm_place == "post"
        self.norm_1 = norm(shape)
        self.attention: Attention | LatentAttention
        if shape.kv_rank:
            self.attention = LatentAttention(shape)
        else:
            self.attention = Attention(shape, causal=decodes)
        self.crosses = decodes and shape.two_stacks
        if self.crosses:
            self.norm_cross = norm(shape)
            self.cross = Attention(shape, cross=True)
        self.norm_2 = norm(shape)
        self.mlp: FeedForward | MixtureOfExperts
        self.shared: FeedForward | None = None  # shared experts
        self.shared_gate: nn.Linear | None = None
        if layer not in shape.moe_layers:
            self.mlp = _feedforward(shape, shape.ffn_width)
            return
        kind = FairscaleMixture if gating.router == "fairscale" else mixture
        self.mlp = kind(
            build(gating, shape.hidden, shape.experts, seed=seed, layer=layer),
            experts=shape.experts,
            hidden=shape.hidden,
            width=shape.expert_width,
            dispatch=gating.dispatch,
            layer=layer,
            group=group,
            activation=shape.activation,
            gated=shape.gated,
        )
        if shape.shared_ffn:
            self.shared = _feedforward(shape, shape.shared_ffn)
            if shape.shared_gate:
                self.shared_gate = nn.Linear(shape.hidden, 1, bias=False)

    def forward(
        self,
        x: Tensor,
        *,
        ids: Tensor | None = None,
        memory: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, Routing | None]:
        """Apply the block to token vectors; return them and the routing of a MoE layer.

        ``x`` is ``[B, S, h]``, ``ids`` ``[B, S]`` int64 token ids, for routers that go
        by them, ``memory`` ``[B, M, h]`` the output of the encoder before a decoder,
        and ``bias`` ``[heads, S, S]`` relative positions, if the model has them.
        """
        more = {} if bias is None else {"bias": bias}
        if self.post:
            x = self.norm_1(x + self.attention(x, **more))
        else:
            x = x + self.attention(self.norm_1(x), **more)
        if self.crosses:
            if self.post:
                x = self.norm_cross(x + self.cross(x, memory=memory))
            else:
                x = x + self.cross(self.norm_cross(x), memory=memory)
        y, routing = self._feed(x if self.post else self.norm_2(x), ids)
        x = x + y
        return (self.norm_2(x) if self.post else x), routing

    def _feed(self, x: Tensor, ids: Tensor | None) -> tuple[Tensor, Routing | None]:
        """Apply the feed-forward network, or routed and shared experts."""
        if not isinstance(self.mlp, MixtureOfExperts):
            return self.mlp(x), None
        if torch.is_autocast_enabled(x.device.type):
            # rows travel in the precision that they are multiplied in
            x = x.to(torch.get_autocast_dtype(x.device.type))
        y, routing = self.mlp(x, ids)
        if self.shared is not None:
            shared = self.shared(x)
            if self.shared_gate is not None:
                shared = torch.sigmoid(self.shared_gate(x)) * shared
            y = y + shared
        return y, routing


def _feedforward(shape: ModelShape, width: int) -> FeedForward:
    return FeedForward(
        shape.hidden,
        width,
        activation=shape.activation,
        gated=shape.gated,
        bias=shape.bias,
    )
