"""Top-k router: each token is routed to its k most probable experts."""

from __future__ import annotations

from torch import Tensor

from .router import LinearGate, check_options
from .routing import Routing


class TopKRouter(LinearGate):
    """Top-k router with softmax weights and experts in order of probability.

    Parameters
    ----------
    hidden, experts, k, capacity_factor
        As of :class:`~.router.LinearGate`.
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
