"""The Switch router: a token goes to its most probable expert."""

from __future__ import annotations

from torch import Tensor

from .capacity import capacity
from .gate import LinearGate
from .losses import load_balancing_loss, router_z_loss
from .routing import Routing


class SwitchRouter(LinearGate):
    """Top-1 routing; the chosen expert's probability is the weight of its output.

    Parameters
    ----------
    hidden
        Width h of a token vector.
    experts
        Number of experts E.
    capacity_factor
        An expert takes ``ceil(capacity_factor T / E)`` tokens, the first ones; None
        keeps all (dropless).

    References
    ----------
    Fedus, Zoph, Shazeer, "Switch Transformers", arXiv 2101.03961, equations 1 to 6
    (without its input jitter).
    """

    def __init__(
        self, hidden: int, experts: int, *, capacity_factor: float | None = None
    ) -> None:
        super().__init__(hidden, experts)
        self.capacity_factor = capacity_factor

    def forward(self, x: Tensor) -> Routing:
        """Route ``[T, h]`` token vectors."""
        logits = self.logits(x)
        probabilities = logits.softmax(-1)
        weight, expert = probabilities.max(-1, keepdim=True)  # [T, 1]
        factor = self.capacity_factor
        return Routing.token_choice(
            expert=expert,
            weight=weight,
            experts=self.experts,
            capacity=None
            if factor is None
            else capacity(factor, 1, len(x), self.experts),
            auxiliary_loss=load_balancing_loss(probabilities, expert),
            z_loss=router_z_loss(logits),
        )
