"""Differentiable all-to-all of token vectors between expert-parallel ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from moetraffic.capture import at


def exchange(
    rows: Tensor,
    send: list[int] | None,
    receive: list[int] | None,
    *,
    group: dist.ProcessGroup,
    layer: int,
    phase: str,
) -> Tensor:
    """Exchange rows with all ranks of a group by a differentiable all-to-all.

    Its backward pass is the reverse all-to-all.  The forward call is annotated with
    ``phase``, the backward call with ``phase + "_grad"``.

    Parameters
    ----------
    rows
        ``[N, h]``, the rows for rank 0 first.
    send, receive
        Rows for and from each rank of the group; both None: N divided evenly.
    group
        The expert-parallel group.
    layer
        Global layer index, for recording.
    phase
        ``"dispatch"`` or ``"combine"``.

    Returns
    -------
    Tensor
        ``[sum(receive), h]``, the rows of rank 0 first.
    """
    apply = cast("Callable[..., Tensor]", _Exchange.apply)
    return apply(rows, send, receive, group, layer, phase)


class _Exchange(torch.autograd.Function):
    """``all_to_all_single`` whose gradient is the reverse ``all_to_all_single``."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        send: list[int] | None,
        receive: list[int] | None,
        group: dist.ProcessGroup,
        layer: int,
        phase: str,
    ) -> Tensor:
        ctx.send, ctx.receive = send, receive
        ctx.group, ctx.layer, ctx.phase = group, layer, phase
        with at(layer=layer, phase=phase):
            return _all_to_all(rows, send, receive, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        with at(layer=ctx.layer, phase=f"{ctx.phase}_grad"):
            rows = _all_to_all(gradient, ctx.receive, ctx.send, ctx.group)
        return rows, None, None, None, None, None


def _all_to_all(
    rows: Tensor,
    send: list[int] | None,
    receive: list[int] | None,
    group: dist.ProcessGroup,
) -> Tensor:
    arriving = len(rows) if receive is None else sum(receive)
    arrived = rows.new_empty(arriving, *rows.shape[1:])
    dist.all_to_all_single(arrived, rows.contiguous(), receive, send, group=group)
    return arrived
