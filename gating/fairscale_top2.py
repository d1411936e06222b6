"""Router around fairscale's ``Top2Gate``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from fairscale.nn.moe.top2gate import Top2Gate
from torch import Tensor, nn
from torch.nn import functional as F

from moetraffic.errors import LayoutError

from .losses import router_z_loss
from .routing import Routing


@dataclass(frozen=True, kw_only=True, eq=False)
class GateOutput:
    """Output of ``Top2Gate`` for T tokens, E experts and capacity C."""

    auxiliary_loss: Tensor  # scalar
    combine: Tensor  # [T, E, C] float, weight of each copy at its place
    dispatch: Tensor  # [T, E, C] bool, whether it is sent


class FairscaleTop2Router(nn.Module):
    """``fairscale.nn.moe.top2gate.Top2Gate``, unchanged, in single precision or better.

    Its capacity is ``2 T / E``.  It tells of the copies that are sent alone: what it
    dropped does not show in its ``dispatch_mask``, so demand here is what is sent and
    nothing counts as dropped.  Its auxiliary loss is multiplied by E^2, so that a
    uniform router has 1 as with the other routers.  The z-loss is not fairscale's.

    Parameters
    ----------
    hidden
        Width h of a token vector.
    experts
        Number of experts E, at least 2.

    Raises
    ------
    LayoutError
        If there is one expert; on routing, if E does not divide T.

    References
    ----------
    fairscale 0.4.13, ``fairscale/nn/moe/top2gate.py``.
    """

    def __init__(self, hidden: int, experts: int) -> None:
        if experts < 2:
            raise LayoutError(
                f"a token's 2 experts are distinct, but there is {experts}: use "
                "SwitchRouter, or at least 2 experts"
            )
        super().__init__()
        self.hidden = hidden
        self.experts = experts
        self.gate = Top2Gate(hidden, experts)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights from N(0, 0.02^2), as the other gates do."""
        nn.init.normal_(self.gate.wg.weight, std=0.02)

    def decide(self, x: Tensor) -> GateOutput:
        """Run the gate on ``[T, h]`` token vectors."""
        if len(x) % self.experts:
            raise LayoutError(
                "fairscale's Top2Gate wants the tokens of a micro-batch to divide by "
                f"the experts, but there are {len(x)} tokens and {self.experts} "
                "experts: change --micro-batch, --sequence or --experts"
            )
        weight = self.gate.wg.weight
        dtype = _precise(x)
        with torch.autocast(x.device.type, enabled=False):
            # the gate itself, with its weight in the precision of all gates here
            auxiliary, combine, dispatch = torch.func.functional_call(
                self.gate, {"wg.weight": weight.to(dtype)}, (x.to(dtype),)
            )
        return GateOutput(auxiliary_loss=auxiliary, combine=combine, dispatch=dispatch)

    def routing(self, x: Tensor, output: GateOutput) -> Routing:
        """Convert the gate's output into a :class:`Routing`."""
        token, expert, place = output.dispatch.nonzero(as_tuple=True)
        dtype = _precise(x)
        with torch.autocast(x.device.type, enabled=False):
            logits = F.linear(x.to(dtype), self.gate.wg.weight.to(dtype))
        probabilities = logits.softmax(-1)
        return Routing(
            token=token,
            expert=expert,
            weight=output.combine[token, expert, place],
            kept=torch.ones_like(token, dtype=torch.bool),
            tokens=len(x),
            experts=self.experts,
            auxiliary_loss=output.auxiliary_loss * self.experts**2,
            z_loss=router_z_loss(logits),
            capacity=output.dispatch.shape[2],
            probabilities=probabilities,
            balanced=probabilities.argmax(-1, keepdim=True),
        )

    def forward(self, x: Tensor, *, ids: Tensor | None = None) -> Routing:
        """Route ``[T, h]`` token vectors."""
        return self.routing(x, self.decide(x))

    def extra_repr(self) -> str:
        """The sizes, for ``print(module)``."""
        return f"hidden={self.hidden}, experts={self.experts}"


def _precise(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
