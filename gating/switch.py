"""Switch router: each token is routed to its most probable expert."""

from __future__ import annotations

import torch
from torch import Tensor

from .router import LinearGate
from .routing import Routing


class SwitchRouter(LinearGate):
    """Top-1 router that weights the expert's output by the expert's probability.

    Parameters
    ----------
    hidden, experts, capacity_factor
        As of :class:`~.router.LinearGate`, with k = 1.
    jitter
        In training each component of the router's input, not of the experts', is
        multiplied by a random number between ``1 - jitter`` and ``1 + jitter``.

    References
    ----------
    Fedus, Zoph, Shazeer, "Switch Transformers", arXiv 2101.03961, equations 1 to 6;
    the jitter is its "input jitter", as ``transformers`` computes it for Switch.
    """

    def __init__(
        self,
        hidden: int,
        experts: int,
        *,
        capacity_factor: float | None = None,
        jitter: float = 0.0,
    ) -> None:
        super().__init__(hidden, experts, k=1, capacity_factor=capacity_factor)
        self.jitter = jitter

    def forward(self, x: Tensor, *, ids: Tensor | None = None) -> Routing:
        """Compute the expert assignment of ``[T, h]`` token vectors."""
        if self.training and self.jitter > 0:
            x = x.to(torch.promote_types(x.dtype, torch.float32))
            x = x * torch.empty_like(x).uniform_(1 - self.jitter, 1 + self.jitter)
        logits = self.logits(x)
        probabilities = logits.softmax(-1)
        weight, expert = probabilities.max(-1, keepdim=True)  # [T, 1]
        return self.token_choice(logits, expert, weight, probabilities)
