"""Simulated packet loss: lost data is replaced by zeros.

The idea of the experiment is MLT's (Wang et al., "Towards Domain-Specific Network
Transport for Distributed DNN Training", NSDI 2024): training bears some loss.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from moetraffic.models.random_streams import Stream, generator
from moetraffic.workload.training import Dropping

BACKWARD = "_grad"


class LossyNetwork:
    """Drop data at one communication site, determined by seed, step, layer and site.

    The training loop sets ``iteration`` and ``slot``; a recomputed forward pass loses
    the same again.
    """

    def __init__(self, dropping: Dropping, seed: int) -> None:
        self.dropping = dropping
        self.seed = seed
        self.iteration = 0
        self.slot = 0
        self.crossed = 0  # elements that should have crossed the network
        self.lost = 0  # of these, dropped

    def carry(
        self,
        rows: Tensor,
        phase: str,
        layer: int,
        *,
        message: Tensor,
        crosses: Tensor,
        weight: Tensor,
    ) -> Tensor:
        """Apply packet loss to the rows of an exchange or to their gradient.

        ``rows`` are ``[N, h]``, of the exchange ``phase`` ("dispatch" or "combine") of
        a layer; ``message`` and ``weight`` are ``[N]``, the number of each row's
        message and its gate weight; ``crosses`` is ``[N]`` bool, false for rows that
        stay on their rank.  A loss on the way forth does not change what is sent back:
        the backward exchange is another transmission, with the loss of its own site.
        """
        site = self.dropping.site
        if self.dropping.share == 0 or site.removesuffix(BACKWARD) != phase:
            return rows
        number = layer + 1
        if site == "combine" or site == "dispatch_grad":
            message = -1 - message  # the way back: other messages than the way forth
        factor = self._factor(rows, number, message, crosses, weight)
        if not site.endswith(BACKWARD):
            return cast("Callable[..., Tensor]", _Scaled.apply)(rows, factor)
        rows = rows.view_as(rows)
        if rows.requires_grad:
            scale = partial(torch.mul, factor)
            rows.register_hook(scale)  # type: ignore[no-untyped-call]
        return rows

    def thin(self, gradient: Tensor, rank: int) -> None:
        """Apply packet loss to a rank's own gradients ``[n]``, in place."""
        if self.dropping.share == 0 or self.dropping.site != "gradient_sync":
            return
        rows = gradient.view(-1, 1)
        message = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        crosses = torch.ones_like(message, dtype=torch.bool)
        factor = self._factor(rows, -1 - rank, message, crosses, message)
        gradient *= factor.view(-1)

    def _factor(
        self,
        rows: Tensor,
        number: int,
        message: Tensor,
        crosses: Tensor,
        weight: Tensor,
    ) -> Tensor:
        """Compute a factor per element, ``[N, h]``, which is 0 for lost elements."""
        plan = self.dropping
        draws = generator(
            Stream.DROPPING, self.seed, self.iteration, self.slot, number % (1 << 32)
        )
        if plan.pattern == "lowest_weight":
            lost = _lowest(weight, crosses, plan.share).unsqueeze(1).expand_as(rows)
        else:
            unit = _units(rows, message, plan)  # [N, h]
            count = int(unit.max()) + 1 if unit.numel() else 0
            drops = torch.rand(count, generator=draws) < plan.share
            lost = drops.to(rows.device)[unit] & crosses.unsqueeze(1)
        self.crossed += int(crosses.sum()) * rows.shape[1]
        self.lost += int(lost.sum())
        kept = 1 / (1 - plan.share) if plan.compensate else 1.0
        factor = torch.where(crosses, kept, 1.0).to(rows.dtype)
        delivered: Tensor = factor.unsqueeze(1) * ~lost
        return delivered


class _Scaled(torch.autograd.Function):
    """Multiply by a factor in the forward pass alone."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, factor: Tensor) -> Tensor:
        return rows * factor

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def _units(rows: Tensor, message: Tensor, plan: Dropping) -> Tensor:
    """Compute the index of each element's packet or message, ``[N, h]`` int64."""
    _, numbered, counts = torch.unique(message, return_inverse=True, return_counts=True)
    if plan.pattern == "messages":
        whole: Tensor = numbered.unsqueeze(1).expand_as(rows)
        return whole
    # Step 1: each row's place in its message, in the order in which rows are sent.
    order = torch.argsort(numbered, stable=True)
    begins = counts.cumsum(0) - counts
    place = torch.empty_like(numbered)
    index = torch.arange(len(numbered), device=rows.device)
    place[order] = index - begins[numbered[order]]
    # Step 2: the element's byte in its message, and so its packet.
    width, size = rows.shape[1], rows.element_size()
    column = torch.arange(width, device=rows.device)
    packet = (place.unsqueeze(1) * width + column) * size // plan.packet_bytes
    a_message = -(-counts * width * size // plan.packet_bytes)
    first = a_message.cumsum(0) - a_message
    unit: Tensor = first[numbered].unsqueeze(1) + packet
    return unit


def _lowest(weight: Tensor, crosses: Tensor, share: float) -> Tensor:
    """Select the lowest-weight rows of those that cross the network, ``[N]`` bool."""
    lost = torch.zeros_like(crosses)
    of = crosses.nonzero().squeeze(1)
    count = round(share * len(of))
    order = torch.argsort(weight.detach()[of], stable=True)
    lost[of[order[:count]]] = True
    return lost
