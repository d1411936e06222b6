"""GShard router: top-2 selection with a randomized second expert."""

from __future__ import annotations

import torch
from torch import Tensor

from moetraffic.errors import LayoutError

from .capacity import keep, limit
from .losses import load_balancing_loss, router_z_loss
from .router import LinearGate, check_options
from .routing import Routing


def check_two(experts: int) -> None:
    """Check that there are experts enough for two distinct ones per token."""
    if experts < 2:
        raise LayoutError(
            f"a token's 2 experts are distinct, but there is {experts}: use "
            "SwitchRouter, or at least 2 experts"
        )


class GShardRouter(LinearGate):
    """Top-2 router in which the second expert is randomly omitted or sampled.

    All first choices have priority over any second choice; among the first and among
    the second choices, earlier tokens have priority.

    Parameters
    ----------
    hidden, experts, capacity_factor
        As of :class:`~.router.LinearGate`, with k = 2 and at least 2 experts.
    second
        ``"proportional"``: the next best expert, with probability ``2 g2``, where g2 is
        its share of the two probabilities.  A copy that is not sent is not counted: it
        uses no capacity, and the token has one expert.  ``"gumbel"``: an expert drawn
        from the softmax without the first one.  ``"always"``: the next best expert.
    weights
        ``"chosen"``: the two probabilities divided by their sum, whether or not the
        second copy is sent.  ``"kept"``: divided by the sum over the kept copies, so
        that a single kept copy has weight 1.

    References
    ----------
    Lepikhin et al., "GShard", arXiv 2006.16668, section 2.2 and algorithm 1.  The
    algorithm does not state whether an unsent copy uses capacity; here it does not, as
    in the authors' ``lingvo/core/gshard_layers.py``, ``Top2GatingOnLogits`` (policies
    ``random``, ``sampling`` and ``all``).  ``second="gumbel", weights="kept"`` and
    capacity factor 1 are fairscale's ``Top2Gate``.  The auxiliary loss counts first
    choices; it is E^2 times that of the paper, so that a uniform router has 1.
    """

    def __init__(
        self,
        hidden: int,
        experts: int,
        *,
        capacity_factor: float | None = None,
        second: str = "proportional",
        weights: str = "chosen",
    ) -> None:
        check_two(experts)
        check_options("gshard", experts, 2, second=second, weights=weights)
        super().__init__(hidden, experts, k=2, capacity_factor=capacity_factor)
        self.second = second
        self.weights = weights

    def forward(self, x: Tensor, *, ids: Tensor | None = None) -> Routing:
        """Compute the expert assignment of ``[T, h]`` token vectors."""
        logits = self.logits(x)
        probabilities = logits.softmax(-1)
        tokens = len(x)
        # Step 1: two experts per token.
        first = probabilities.argmax(-1, keepdim=True)  # [T, 1]
        rest = logits
        if self.second == "gumbel":
            rest = logits + _gumbel(logits)
        second = rest.scatter(-1, first, float("-inf")).argmax(-1, keepdim=True)
        expert = torch.cat([first, second], dim=-1)  # [T, 2]
        gate = probabilities.gather(-1, expert)
        share = gate / gate.sum(-1, keepdim=True)
        sent = torch.ones_like(expert, dtype=torch.bool)
        if self.second == "proportional":
            dice = torch.rand(tokens, dtype=share.dtype, device=x.device)
            sent[:, 1] = 2 * share[:, 1].detach() > dice
        # Step 2: assign capacity to the first choices of all tokens, then to the
        # second.
        room = limit(self.capacity_factor, 2, tokens, self.experts)
        kept = sent.clone()
        if room is not None:
            queue = sent.t().reshape(-1).nonzero().squeeze(1)  # first choices first
            fits = torch.zeros(2 * tokens, dtype=torch.bool, device=x.device)
            fits[queue] = keep(expert.t().reshape(-1)[queue], self.experts, room)
            kept = fits.view(2, tokens).t()
        # Step 3: weights.
        if self.weights == "kept":
            gate = gate * kept
            total = gate.sum(-1, keepdim=True)
            share = gate / total.clamp(min=torch.finfo(gate.dtype).eps)
        copies = sent.reshape(-1).nonzero().squeeze(1)
        token = torch.arange(tokens, device=x.device).repeat_interleave(2)
        return Routing(
            token=token[copies],
            expert=expert.reshape(-1)[copies],
            weight=share.reshape(-1)[copies],
            kept=kept.reshape(-1)[copies],
            tokens=tokens,
            experts=self.experts,
            auxiliary_loss=load_balancing_loss(probabilities, first),
            z_loss=router_z_loss(logits),
            k=None if self.second == "proportional" else 2,
            capacity=room,
            probabilities=probabilities,
            balanced=first,
        )


def _gumbel(like: Tensor) -> Tensor:
    """Sample Gumbel(0, 1) noise in the shape of ``like``."""
    # excludes 0 and 1 as torch.distributions.Gumbel does, which fairscale uses; not
    # called here because importing torch.distributions takes seconds
    ends = torch.finfo(like.dtype)
    drawn = ends.tiny + torch.rand_like(like) * (1 - ends.eps - ends.tiny)
    return -(-drawn.log()).log()
