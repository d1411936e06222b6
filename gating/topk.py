"""The top-k router: softmax over all experts, then the k most probable ones."""

from __future__ import annotations

from torch import Tensor

from moetraffic.errors import LayoutError

from .capacity import capacity
from .gate import LinearGate
from .losses import load_balancing_loss, router_z_loss
from .routing import Routing


class TopKRouter(LinearGate):
    """Top-k routing with distinct experts, the most probable one first.

    Parameters
    ----------
    hidden
        Width h of a token vector.
    experts
        Number of experts E.
    k
        Experts of a token, at most E.
    capacity_factor
        An expert takes ``ceil(capacity_factor k T / E)`` copies, those of earlier
        tokens first; None keeps all (dropless).
    renormalise
        Divide the k probabilities by their sum, which is the softmax over the k chosen
        logits (Mixtral, arXiv 2401.04088, section 2.1); otherwise they stay as they
        are (DeepSeekMoE, arXiv 2401.06066, equation 4).  None: where k > 1, since a
        single renormalised weight is 1 and carries no gradient to the router.

    Raises
    ------
    LayoutError
        If k is not between 1 and E.

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
        renormalise: bool | None = None,
    ) -> None:
        if not 1 <= k <= experts:
            raise LayoutError(
                f"a token's k experts are distinct, but k is {k} and there are "
                f"{experts} experts: choose k between 1 and {experts}"
            )
        super().__init__(hidden, experts)
        self.k = k
        self.capacity_factor = capacity_factor
        self.renormalise = k > 1 if renormalise is None else renormalise

    def forward(self, x: Tensor) -> Routing:
        """Route ``[T, h]`` token vectors."""
        logits = self.logits(x)
        probabilities = logits.softmax(-1)
        weight, expert = probabilities.topk(self.k, dim=-1)  # [T, K]
        if self.renormalise:
            weight = weight / weight.sum(-1, keepdim=True)
        factor = self.capacity_factor
        return Routing.token_choice(
            expert=expert,
            weight=weight,
            experts=self.experts,
            capacity=None
            if factor is None
            else capacity(factor, self.k, len(x), self.experts),
            auxiliary_loss=load_balancing_loss(probabilities, expert),
            z_loss=router_z_loss(logits),
        )

    def extra_repr(self) -> str:
        """The sizes, for ``print(module)``."""
        return f"{super().extra_repr()}, k={self.k}, renormalise={self.renormalise}"
