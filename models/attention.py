"""Causal self-attention."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Causal self-attention."""

    column_parallel = ("q", "k", "v")
    row_parallel = ("out",)

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.head_width = hidden // heads
        self.q = nn.Linear(hidden, hidden, bias=False)
        self.k = nn.Linear(hidden, hidden, bias=False)
        self.v = nn.Linear(hidden, hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, S, h]`` to ``[B, S, h]``."""
        b, s, _ = x.shape
        # [B, heads of this rank, S, h/heads] each
        q, k, v = (
            y.view(b, s, -1, self.head_width).transpose(1, 2)
            for y in (self.q(x), self.k(x), self.v(x))
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(y.transpose(1, 2).reshape(b, s, -1))
        return out
