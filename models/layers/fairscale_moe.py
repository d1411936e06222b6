"""Mixture-of-experts layer that runs fairscale's ``MOELayer``.

``fairscale.nn.MOELayer`` runs as it is: its einsums, its padding to ``[E, C, h]`` and
its all-to-alls, which send as much whatever is routed.  It does not say where its
all-to-alls stand, so the layer around it does: what runs right before each of them, the
gate, the experts and their gradients, enters the phase.

References
----------
fairscale 0.4.13, ``fairscale/nn/moe/moe_layer.py``; GShard, arXiv 2006.16668,
algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
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
    tells of the copies that are sent: see
    :class:`~moetraffic.gating.FairscaleTop2Router`.

    Parameters
    ----------
    router
        A :class:`~moetraffic.gating.FairscaleTop2Router`.
    experts, hidden, width, dispatch, layer, group
        As of :class:`MixtureOfExperts`; the dispatch form is ``"padded"``, and there
        must be a group, if of one rank.

    Raises
    ------
    LayoutError
        If the router or the dispatch form is another, or there is no group; on the
        way forward, if the experts do not divide the tokens.
    """

    def __init__(
        self,
        router: nn.Module,
        *,
        experts: int,
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
        super().__init__(
            router, experts=experts, dispatch=dispatch, group=group, **sizes
        )
        self.call = _Call(self.layer)  # state of the current forward pass
        mine = experts // self.ranks
        # parameters belong to this module: what MOELayer holds only refers to it
        self.fairscale = MOELayer(
            _Gate(self), nn.ModuleList(_Expert(self, i) for i in range(mine)), group
        )

    def forward(self, x: Tensor, ids: Tensor | None = None) -> tuple[Tensor, Routing]:
        """Compute the weighted sum of the experts' outputs, and the routing.

        A token both of whose copies were dropped gets zeros.
        """
        call = self.call = _Call(self.layer)
        x_th = x.reshape(-1, x.shape[-1]).float()
        try:
            # what follows dispatch_grad on the way back: nothing is sent any more
            x_th = _mark(x_th, call.leave)
            y_t1h = self.fairscale(x_th.unsqueeze(1))
            y_t1h = _mark(y_t1h, lambda: call.enter("combine_grad"))
        finally:
            call.leave()
            self.fairscale.l_aux = None
        sequences = len(x) if x.dim() > 2 else 1
        (routing,) = self._balanced([cast("Routing", call.routing)], sequences)
        return y_t1h.view(x.shape).to(x.dtype), routing


class _Call:
    """State of one forward pass: its routing and its current phase."""

    def __init__(self, layer: int) -> None:
        self.layer = layer
        self.routing: Routing | None = None
        self._place: AbstractContextManager[None] | None = None

    def enter(self, phase: str) -> None:
        """Annotate the following collectives with this phase."""
        self.leave()
        self._place = at(layer=self.layer, phase=phase)
        self._place.__enter__()

    def leave(self) -> None:
        """End the annotation of collectives."""
        place, self._place = self._place, None
        if place is not None:
            place.__exit__(None, None, None)


class _Gate(nn.Module):
    """fairscale's gate, followed by the start of the dispatch phase."""

    def __init__(self, owner: FairscaleMixture) -> None:
        super().__init__()
        self._owner = (owner,)  # a tuple: no submodule of it

    def forward(self, x_th: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (owner,) = self._owner
        router = cast("FairscaleTop2Router", owner.router)
        output = router.decide(x_th)
        routing = owner.call.routing = router.routing(x_th, output)
        # what the gate dropped does not show: absent, not zero
        report_routing(owner.layer, routing.demand(), None, owner.group)
        owner.call.enter("dispatch")
        auxiliary_loss, combine, dispatch = output
        return auxiliary_loss, combine.float(), dispatch


class _Expert(nn.Module):
    """One local expert, followed by the start of the combine phase."""

    def __init__(self, owner: FairscaleMixture, index: int) -> None:
        super().__init__()
        self._owner, self.index = (owner,), index

    def forward(self, x: Tensor) -> Tensor:
        """Apply the expert to its ``[W, 1, C, h]`` float32 rows from all ranks."""
        (owner,) = self._owner
        experts, call = owner.experts, owner.call
        call.leave()
        x_ah = _mark(x, lambda: call.enter("dispatch_grad")).reshape(-1, x.shape[-1])
        counts = [0] * (owner.experts_all // owner.ranks)
        counts[self.index] = len(x_ah)
        y_ah = experts.ragged(x_ah.to(next(experts.parameters()).dtype), counts)
        y = _mark(y_ah.to(x.dtype).view_as(x), call.leave)
        call.enter("combine")
        return y


def _mark(x: Tensor, on_backward: Callable[[], None]) -> Tensor:
    """Return ``x`` and call ``on_backward`` when its gradient is computed.

    The gradient's thread, which is the one that sends, runs it.
    """
    if x.requires_grad:
        x = x.view_as(x)
        x.register_hook(lambda _: on_backward())  # type: ignore[no-untyped-call]
    return x
