"""Top-k and Switch routers: each token is routed to its most probable experts."""

from __future__ import annotations

import torch
from torch import Tensor

from .linear_gate import LinearGate, check_options
from .routing import Routing


class TopKRouter(LinearGate):
    """Top-k router with softmax weights and experts in order of probability.

    Parameters
    ----------
    hidden, experts, k, capacity_factor
        As of :class:`~.linear_gate.LinearGate`.
    softmax
        ``"before"``: over all experts, of which the k most probable are chosen;
        ``"after"``: over the k chosen logits (Mixtral, arXiv 2401.04088, section 2.1).
        ``"after"`` differs only by rounding from ``"before"`` with ``renormalize``,
        which is how ``transformers`` computes Mixtral.
    renormalize
        Divide the k probabilities by their sum (Mixtral, Qwen3) or keep them
        unchanged (DeepSeekMoE, arXiv 2401.06066, equation 4; Qwen1.5-MoE and
        Qwen2-MoE, ``norm_topk_prob`` of their configurations).  None: divide where k >
        1, since a single renormalized weight is 1 and carries no gradient to the
        router.  With ``"after"`` the sum is always 1.

    References
    ----------
    Shazeer et al., "Outrageously Large Neural Networks", arXiv 1701.06538, equations
    3 to 5 (without their noise).
    """

    def __init__(
        self,
        hidden: int,
        experts: int,
        *,
        k: int,
        capacity_factor: float | None = None,
        softmax: str = "before",
        renormalize: bool | None = None,
    ) -> None:
        check_options("topk", experts, k, softmax=softmax, renormalize=renormalize)
        super().__init__(hidden, experts, k=k, capacity_factor=capacity_factor)
        self.softmax = softmax
        self.renormalize = k > 1 if renormalize is None else renormalize

    def forward(self, x: Tensor, *, ids: Tensor | None = None) -> Routing:
        """Compute the expert assignment of ``[T, h]`` token vectors."""
        logits = self.logits(x)
        probabilities = logits.softmax(-1)
        if self.softmax == "after":
            chosen, expert = logits.topk(self.k, dim=-1)  # [T, K]
            weight = chosen.softmax(-1)
        else:
            weight, expert = probabilities.topk(self.k, dim=-1)
        if self.softmax == "before" and self.renormalize:
            weight = weight / weight.sum(-1, keepdim=True)
        return self.token_choice(logits, expert, weight, probabilities)


class SwitchRouter(LinearGate):
    """Top-1 router that weights the expert's output by the expert's probability.

    Parameters
    ----------
    hidden, experts, capacity_factor
        As of :class:`~.linear_gate.LinearGate`, with k = 1.
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
