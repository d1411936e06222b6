"""Router that wraps fairscale's ``Top2Gate``."""

from __future__ import annotations

from typing import TypeAlias

import torch
from fairscale.nn.moe.top2gate import Top2Gate
from torch import Tensor, nn
from torch.nn import functional as F

from moetraffic.errors import LayoutError

from .gshard import check_two
from .losses import router_z_loss
from .routing import Routing

GateOutput: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Auxiliary loss (scalar); ``[T, E, C]`` float, the weight of the copy in each capacity
slot; ``[T, E, C]`` bool, whether a copy is sent in the slot."""


class FairscaleTop2Router(nn.Module):
    """Router that calls fairscale's unmodified ``Top2Gate`` in float32 or float64.

    The capacity is ``2 T / E``.  ``dispatch_mask`` contains only the copies that are
    sent, so the demand reported here is that of the sent copies, and no copy is counted
    as dropped.  The auxiliary loss is multiplied by E^2, so that a uniform router has 1
    as with the other routers.  The z-loss is not part of fairscale.

    Parameters
    ----------
    hidden
        Width h of a token vector.
    experts
        Number of experts E, at least 2.

    References
    ----------
    fairscale 0.4.13, ``fairscale/nn/moe/top2gate.py``.
    """

    def __init__(self, hidden: int, experts: int) -> None:
        check_two(experts)
        super().__init__()
        self.experts = experts
        self.gate = Top2Gate(hidden, experts)
        nn.init.normal_(self.gate.wg.weight, std=0.02)  # as in the other routers

    def decide(self, x: Tensor) -> GateOutput:
        """Compute the output of ``Top2Gate`` for ``[T, h]`` token vectors."""
        if len(x) % self.experts:
            raise LayoutError(
                "fairscale's Top2Gate wants the tokens of a micro-batch to divide by "
                f"the experts, but there are {len(x)} tokens and {self.experts} "
                "experts: change --micro-batch, --sequence or --experts"
            )
        weight = self.gate.wg.weight
        dtype = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            # the unmodified gate, with its weight cast to the precision of the other
            # routers
            output: GateOutput = torch.func.functional_call(
                self.gate, {"wg.weight": weight.to(dtype)}, (x.to(dtype),)
            )
        return output

    def routing(self, x: Tensor, output: GateOutput) -> Routing:
        """Convert the output of ``Top2Gate`` into a :class:`Routing`."""
        auxiliary_loss, combine, dispatch = output
        token, expert, place = dispatch.nonzero(as_tuple=True)
        dtype = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            logits = F.linear(x.to(dtype), self.gate.wg.weight.to(dtype))
        probabilities = logits.softmax(-1)
        return Routing(
            token=token,
            expert=expert,
            weight=combine[token, expert, place],
            kept=torch.ones_like(token, dtype=torch.bool),
            tokens=len(x),
            experts=self.experts,
            auxiliary_loss=auxiliary_loss * self.experts**2,
            z_loss=router_z_loss(logits),
            capacity=dispatch.shape[2],
            probabilities=probabilities,
            balanced=probabilities.argmax(-1, keepdim=True),
        )

    def forward(self, x: Tensor, *, ids: Tensor | None = None) -> Routing:
        """Compute the expert assignment of ``[T, h]`` token vectors."""
        return self.routing(x, self.decide(x))
