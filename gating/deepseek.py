"""DeepSeek router: group-limited top-k selection with a loss-free balancing bias."""

from __future__ import annotations

import torch
from torch import Tensor

from .losses import load_error_sign
from .router import LinearGate, check_options
from .routing import Routing


class DeepSeekRouter(LinearGate):
    """Router that selects top-k experts of the top groups by biased score.

    The weights of the selected experts are computed from the scores without the bias.

    Parameters
    ----------
    hidden, experts, k, capacity_factor
        As of :class:`~.router.LinearGate`.
    score
        ``"sigmoid"`` of each logit (V3) or ``"softmax"`` over all experts (V2).
    groups, top_groups
        Number of contiguous expert groups, and number of groups that a token may use.
    group_score
        ``"top2"``: the sum of a group's two highest biased scores (V3); ``"max"``: its
        highest (V2).
    bias_rate
        Step size of the loss-free bias; 0 keeps the bias at zero.
    renormalize
        Divide a token's weights by their sum (V3) or keep them unchanged (V2).  None:
        divide where k > 1, since a single renormalized weight carries no gradient.
    scale
        Factor of the weights: 2.5 in V3, 16 in V2, 1 in V2-Lite.

    References
    ----------
    DeepSeek-V3, arXiv 2412.19437, equations 12 to 16 (selection and weights), 17 to 20
    (balance: a token's shares are its normalized scores, and each token is counted for
    the experts that it would have chosen without bias and groups).  DeepSeek-V2, arXiv
    2405.04434, equations 20 to 22 and section 2.2.2.  Bias: Wang et al., arXiv
    2408.15664, algorithm 1.
    """

    steps: Tensor

    def __init__(
        self,
        hidden: int,
        experts: int,
        *,
        k: int,
        capacity_factor: float | None = None,
        score: str = "sigmoid",
        groups: int = 1,
        top_groups: int = 1,
        group_score: str = "top2",
        bias_rate: float = 0.001,
        renormalize: bool | None = None,
        scale: float = 1.0,
    ) -> None:
        check_options(
            *("deepseek", experts, k),
            score=score,
            groups=groups,
            top_groups=top_groups,
            group_score=group_score,
        )
        super().__init__(hidden, experts, k=k, capacity_factor=capacity_factor)
        self.score = score
        self.groups = groups
        self.top_groups = top_groups
        self.group_score = group_score
        self.bias_rate = bias_rate
        self.renormalize = k > 1 if renormalize is None else renormalize
        self.scale = scale
        # [E] the bias in steps of bias_rate: whole numbers stay exact when a model is
        # converted to bfloat16, and equal on every rank
        self.register_buffer("steps", torch.zeros(experts, dtype=torch.int64))

    @property
    def bias(self) -> Tensor:
        """Bias ``[E]`` float32 that is added to the scores for expert selection."""
        return self.steps.float() * self.bias_rate

    @torch.no_grad()
    def after_step(self, load_e: Tensor) -> None:
        """Raise the bias of experts below the mean load ``[E]``, lower the others'."""
        self.steps += load_error_sign(load_e)

    def forward(self, x: Tensor, *, ids: Tensor | None = None) -> Routing:
        """Compute the expert assignment of ``[T, h]`` token vectors."""
        logits = self.logits(x)
        score = logits.sigmoid() if self.score == "sigmoid" else logits.softmax(-1)
        expert = self._selected(score.detach())
        weight = score.gather(-1, expert)
        if self.renormalize:
            weight = weight / (weight.sum(-1, keepdim=True) + 1e-20)
        # sigmoid scores sum to 1 only after division; softmax scores already do
        total = score.sum(-1, keepdim=True) if self.score == "sigmoid" else 1.0
        probabilities = score / total
        wanted = probabilities.detach().topk(self.k, dim=-1).indices
        return self.token_choice(
            logits, expert, weight * self.scale, probabilities, wanted
        )

    def _selected(self, score: Tensor) -> Tensor:
        """Select ``[T, K]`` experts by biased ``[T, E]`` scores, highest first."""
        biased = score + self.bias.to(score.dtype)
        if self.top_groups < self.groups:
            # Step 1: the best groups of each token.
            by_group = biased.view(len(biased), self.groups, -1)  # [T, G, E/G]
            best = min(2 if self.group_score == "top2" else 1, by_group.shape[2])
            group_score = by_group.topk(best, dim=-1).values.sum(-1)
            chosen = group_score.topk(self.top_groups, dim=-1).indices
            # Step 2: exclude the experts of all other groups.
            open_tg = torch.zeros_like(group_score, dtype=torch.bool)
            open_tg.scatter_(1, chosen, True)
            closed = ~open_tg.unsqueeze(-1).expand_as(by_group).reshape_as(biased)
            biased = biased.masked_fill(closed, float("-inf"))
        return biased.topk(self.k, dim=-1).indices
