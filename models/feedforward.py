"""Feed-forward networks: the dense one of a layer, and those of its experts."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class FeedForward(nn.Module):
    """The dense feed-forward of a layer without experts."""

    column_parallel = ("up",)
    row_parallel = ("down",)

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, width, bias=False)
        self.down = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, S, h]`` to ``[B, S, h]``."""
        y: Tensor = self.down(F.gelu(self.up(x)))
        return y


class Experts(nn.Module):
    """The feed-forward networks of the experts that one rank holds.

    Parameters
    ----------
    experts
        Their number L.
    hidden, width
        Sizes h and f.
    """

    def __init__(self, experts: int, hidden: int, width: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(experts, hidden, width))  # [L, h, f]
        self.down = nn.Parameter(torch.empty(experts, width, hidden))  # [L, f, h]

    def batched(self, x_lch: Tensor) -> Tensor:
        """``[L, C, h]``: as many rows for each expert."""
        return torch.bmm(F.gelu(torch.bmm(x_lch, self.up)), self.down)

    def ragged(self, x_ah: Tensor, counts: list[int]) -> Tensor:
        """``[A, h]``: the first ``counts[0]`` rows are for expert 0, and so on."""
        # unbind, not indexing: its gradient is one stack, not a padded sum an expert
        parts = zip(
            torch.split(x_ah, counts), self.up.unbind(), self.down.unbind(), strict=True
        )
        return torch.cat([F.gelu(x @ up) @ down for x, up, down in parts])
