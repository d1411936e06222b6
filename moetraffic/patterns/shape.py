"""The shape of a model: its sizes, and which layers carry experts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A GPT whose feed-forward is a mixture of experts in every n-th layer."""

    layers: int = 4  # transformer blocks
    hidden: int = 128  # model width h
    heads: int = 4  # attention heads
    sequence: int = 128  # tokens of a sequence s
    vocabulary: int = 256  # bytes
    ffn_multiple: int = 4  # feed-forward width is this times h
    moe_every: int = 2  # layers moe_every-1, 2*moe_every-1, ... carry experts
    experts: int = 8  # experts of a MoE layer E

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """Global indices of the layers that carry experts."""
        return tuple(range(self.moe_every - 1, self.layers, self.moe_every))
