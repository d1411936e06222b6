"""Mixture-of-experts layer that runs fairscale's ``MOELayer``.

``fairscale.nn.MOELayer`` runs as it is: its einsums, its padding to ``[E, C, h]`` and
its all-to-alls, which send as much whatever is routed.  They are annotated with layer
and phase by what runs right before each of them: the gate, the experts and their
gradients.

References
----------
fairscale 0.4.13, ``fairscale/nn/moe/moe_layer.py``; GShard, arXiv 2006.16668,
algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

import torch.distributed as dist
from fairscale.nn import MOELayer
from torch import Tensor, nn

from moetraffic.capture import at
from moetraffic.capture import routing as report_routing
from moetraffic.errors import LayoutError
from moetraffic.gating import FairscaleTop2Router, Routing

from .moe import MixtureOfExperts


class FairscaleMixture(MixtureOfExperts):
    """A :class:`MixtureOfExperts` computed by fairscale's ``MOELayer``.

    Rows travel in float32, which is what MOELayer's dispatch computes in.  The routing
    contains the copies that are sent: see
    :class:`~moetraffic.gating.FairscaleTop2Router`, which must be the router.  The
    dispatch form is ``"padded"``, and there must be a group, if of one rank.
    """

    def __init__(
        self,
        router: nn.Module,
        *,
        dispatch: str,
        group: dist.ProcessGroup | None = None,
        **sizes: Any,
    ) -> None:
        if not isinstance(router, FairscaleTop2Router) or dispatch != "padded":
            raise LayoutError(
                "fairscale's MOELayer has the router fairscale and the dispatch form "
                f"padded, not {type(router).__name__} and {dispatch}: set --router "
                "fairscale --dispatch padded"
            )
        if group is None:
            raise LayoutError(
                "fairscale's MOELayer is an exchange within a process group, but there "
                "is none: start ranks, one at least, or use --router fairscale-top2"
            )
        super().__init__(router, dispatch=dispatch, group=group, **sizes)
        self.call = _Call(self.layer)  # state of the current forward pass
        # parameters belong to this module: what MOELayer holds only refers to it
        local = (_Step(partial(self._apply_expert, i)) for i in range(self.local))
        self.fairscale = MOELayer(_Step(self._gate), nn.ModuleList(local), group)

    def forward(self, x: Tensor, ids: Tensor | None = None) -> tuple[Tensor, Routing]:
        """Compute the weighted sum of the experts' outputs, and the routing.

        A token both of whose copies were dropped gets zeros.
        """
        call = self.call = _Call(self.layer)
        x_th = x.reshape(-1, x.shape[-1]).float()
        try:
            # what follows dispatch_grad on the way back: nothing is sent any more
            x_th = _mark(x_th, call.close)
            y_t1h = self.fairscale(x_th.unsqueeze(1))
            y_t1h = _mark(y_t1h, lambda: call.enter("combine_grad"))
        finally:
            call.close()
            self.fairscale.l_aux = None
        sequences = len(x) if x.dim() > 2 else 1
        (routing,) = self.balanced([cast("Routing", call.routing)], sequences)
        return y_t1h.view(x.shape).to(x.dtype), routing

    def _gate(self, x_th: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Apply fairscale's gate, and start the dispatch phase."""
        router = cast("FairscaleTop2Router", self.router)
        auxiliary_loss, combine, dispatch = output = router.decide(x_th)
        routing = self.call.routing = router.routing(x_th, output)
        # what the gate dropped does not show: absent, not zero
        report_routing(
            self.layer, routing.demand(), None, self.group, chosen=routing.chosen()
        )
        self.call.enter("dispatch")
        return auxiliary_loss, combine.float(), dispatch

    def _apply_expert(self, index: int, x: Tensor) -> Tensor:
        """Apply a local expert to its ``[W, 1, C, h]`` float32 rows from all ranks.

        The combine phase starts behind it.
        """
        experts, call = self.experts, self.call
        call.close()
        x_ah = _mark(x, lambda: call.enter("dispatch_grad")).reshape(-1, x.shape[-1])
        counts = [0] * self.local
        counts[index] = len(x_ah)
        y_ah = experts.ragged(x_ah.to(next(experts.parameters()).dtype), counts)
        y = _mark(y_ah.to(x.dtype).view_as(x), call.close)
        call.enter("combine")
        return y


class _Call(ExitStack):
    """State of one forward pass: its routing and its current phase."""

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.routing: Routing | None = None

    def enter(self, phase: str) -> None:
        """Annotate the following collectives with this phase, until closed."""
        self.close()
        self.enter_context(at(layer=self.layer, phase=phase))


class _Step(nn.Module):
    """Module without parameters that calls a function."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.forward = function


def _mark(x: Tensor, on_backward: Callable[[], None]) -> Tensor:
    """Return ``x`` and call ``on_backward`` when its gradient is computed.

    The gradient's thread, which is the one that sends, runs it.
    """
    if x.requires_grad:
        x = x.view_as(x)
        x.register_hook(lambda _: on_backward())  # type: ignore[no-untyped-call]
    return x
