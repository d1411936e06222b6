"""Expert-choice router: each expert selects the tokens with the highest scores."""

from __future__ import annotations

import torch
from torch import Tensor

from .capacity import capacity
from .losses import router_z_loss
from .router import LinearGate
from .routing import Routing


class ExpertChoiceRouter(LinearGate):
    """Router in which each expert chooses an equal number of tokens.

    A token may have any number of experts, including none.  Loads are equal by
    construction: nothing is dropped and there is no balance loss.  The selection is not
    causal: an expert compares all tokens of the micro-batch, including later ones.

    Parameters
    ----------
    hidden, experts
        As of :class:`~.router.LinearGate`.
    k
        Mean number of experts per token (capacity factor c of Zhou et al.).
    capacity_factor
        An expert chooses ``ceil(capacity_factor k T / E)`` tokens, at most T; None: 1.

    References
    ----------
    Zhou et al., "Mixture-of-Experts with Expert Choice Routing", arXiv 2202.09368,
    section 3.2, equations 1 and 2.
    """

    def forward(self, x: Tensor, *, ids: Tensor | None = None) -> Routing:
        """Compute the expert assignment of ``[T, h]`` token vectors."""
        logits = self.logits(x)
        factor = 1.0 if self.capacity_factor is None else self.capacity_factor
        take = min(capacity(factor, self.k, len(x), self.experts), len(x))
        # normalized over the experts of each token, not over the tokens of each expert
        score_et = logits.softmax(-1).t()
        weight, token = score_et.topk(take, dim=-1)  # [E, C]
        expert = torch.arange(self.experts, device=x.device)
        return Routing(
            token=token.reshape(-1),
            expert=expert.repeat_interleave(take),
            weight=weight.reshape(-1),
            kept=torch.ones(token.numel(), dtype=torch.bool, device=x.device),
            tokens=len(x),
            experts=self.experts,
            auxiliary_loss=logits.new_zeros(()),
            z_loss=router_z_loss(logits),
            capacity=None if self.capacity_factor is None else take,
        )
