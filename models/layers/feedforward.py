"""Feed-forward networks: dense, and of the local experts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
}
"""The non-linear functions by the name that a shape gives them."""


class FeedForward(nn.Module):
    """Dense feed-forward network of a layer, or its shared experts.

    ``activation`` is one of ``ACTIVATIONS``.  A gated network computes
    ``act(x W_gate) * (x W_up)`` instead of ``act(x W_up)``: with silu this is SwiGLU,
    with gelu GEGLU (Shazeer, arXiv 2002.05202).
    """

    column_parallel: tuple[str, ...] = ("up",)
    row_parallel = ("down",)

    def __init__(
        self,
        hidden: int,
        width: int,
        *,
        activation: str = "gelu",
        gated: bool = False,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.activation, self.gated = ACTIVATIONS[activation], gated
        self.up = nn.Linear(hidden, width, bias=bias)
        if gated:
            self.column_parallel = ("gate", "up")
            self.gate = nn.Linear(hidden, width, bias=bias)
        self.down = nn.Linear(width, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the feed-forward network to ``[B, S, h]`` token vectors."""
        if self.gated:
            inner = self.activation(self.gate(x)) * self.up(x)
        else:
            inner = self.activation(self.up(x))
        y: Tensor = self.down(inner)
        return y


class LocalExperts(nn.Module):
    """Feed-forward networks, as :class:`FeedForward`, of one rank's L experts.

    Their matrices have no biases, as in every published mixture of experts here.
    """

    def __init__(
        self,
        experts: int,
        hidden: int,
        width: int,
        *,
        activation: str = "gelu",
        gated: bool = False,
    ) -> None:
        super().__init__()
        self.activation, self.gated = ACTIVATIONS[activation], gated
        self.up = nn.Parameter(torch.empty(experts, hidden, width))  # [L, h, f]
        self.down = nn.Parameter(torch.empty(experts, width, hidden))  # [L, f, h]
        if gated:
            self.gate = nn.Parameter(torch.empty(experts, hidden, width))  # [L, h, f]

    def batched(self, x_lch: Tensor) -> Tensor:
        """Apply the experts to ``[L, C, h]`` rows, C per expert."""
        inner = torch.bmm(x_lch, self.up)
        if self.gated:
            inner = self.activation(torch.bmm(x_lch, self.gate)) * inner
        else:
            inner = self.activation(inner)
        return torch.bmm(inner, self.down)

    def ragged(self, x_ah: Tensor, counts: list[int]) -> Tensor:
        """Apply the experts to ``[A, h]`` rows, ``counts[i]`` for expert i in order."""
        act, rows = self.activation, torch.split(x_ah, counts)
        # unbind, not indexing: its gradient is one stack, not a padded sum an expert
        ups, downs = self.up.unbind(), self.down.unbind()
        if self.gated:
            every = zip(rows, self.gate.unbind(), ups, downs, strict=True)
            done = [(act(x @ gate) * (x @ up)) @ down for x, gate, up, down in every]
        else:
            parts = zip(rows, ups, downs, strict=True)
            done = [act(x @ up) @ down for x, up, down in parts]
        return torch.cat(done)
