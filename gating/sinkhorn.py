"""Sinkhorn router: near-balanced expert selection by optimal transport in training."""

from __future__ import annotations

from math import log

from torch import Tensor

from .router import LinearGate, check_options
from .routing import Routing


class SinkhornRouter(LinearGate):
    """Top-k router that selects by a Sinkhorn plan in training, by score in evaluation.

    The transport plan selects the experts and carries no gradient; the weight is the
    score of the selected expert.  The plan balances the load, so there is no balance
    loss.

    Parameters
    ----------
    hidden, experts, k, capacity_factor
        As of :class:`~.router.LinearGate`.
    score
        ``"sigmoid"`` of the logit or ``"softmax"`` over all experts; ``"auto"`` is
        Megatron-Core's choice: sigmoid where k is 1, else softmax.
    tolerance, rounds
        Convergence criterion and maximum iterations of :func:`sinkhorn_plan`.

    References
    ----------
    Clark et al., "Unified Scaling Laws for Routed Language Models", arXiv 2202.01169,
    section 3 and appendix B (S-BASE); Megatron-Core,
    ``megatron/core/transformer/moe/router.py``, ``sinkhorn_load_balancing``.
    """

    def __init__(
        self,
        hidden: int,
        experts: int,
        *,
        k: int = 1,
        capacity_factor: float | None = None,
        score: str = "auto",
        tolerance: float = 1e-4,
        rounds: int = 1000,
    ) -> None:
        check_options("sinkhorn", experts, k, score=score)
        super().__init__(hidden, experts, k=k, capacity_factor=capacity_factor)
        self.score = ("sigmoid" if k == 1 else "softmax") if score == "auto" else score
        self.tolerance = tolerance
        self.rounds = rounds

    def forward(self, x: Tensor, *, ids: Tensor | None = None) -> Routing:
        """Compute the expert assignment of ``[T, h]`` token vectors."""
        logits = self.logits(x)
        score = logits.sigmoid() if self.score == "sigmoid" else logits.softmax(-1)
        if self.training:
            rank = sinkhorn_plan(logits.detach(), self.tolerance, self.rounds)
        else:
            rank = score.detach()
        expert = rank.topk(self.k, dim=-1).indices  # [T, K]
        return self.token_choice(logits, expert, score.gather(-1, expert))


def sinkhorn_plan(
    logits: Tensor, tolerance: float = 1e-4, rounds: int = 1000
) -> Tensor:
    """Compute the logarithm ``[T, E]`` of the plan between tokens and experts.

    Rows and columns of ``exp(logits)`` are scaled alternately until rows sum to 1/T and
    columns to 1/E, in log space, so that large logits do not overflow.  It ends when
    the experts' factors change by at most ``tolerance`` in the mean, which as in
    Megatron-Core is not relative, or after so many rounds.

    References
    ----------
    Cuturi, "Sinkhorn Distances", NeurIPS 2013, algorithm 1; Megatron-Core,
    ``megatron/core/transformer/moe/moe_utils.py``, ``sinkhorn``.
    """
    tokens, experts = logits.shape
    expert_factor = logits.new_zeros(experts)  # log of column scaling factors
    token_factor = logits.new_zeros(tokens)
    for _ in range(rounds):
        before = expert_factor
        token_factor = -log(tokens) - (logits + expert_factor).logsumexp(1)
        expert_factor = -log(experts) - (logits + token_factor[:, None]).logsumexp(0)
        if (expert_factor.exp() - before.exp()).abs().mean() <= tolerance:
            break
    return logits + expert_factor + token_factor.unsqueeze(1)
