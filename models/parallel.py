"""Process groups of a parallel layout, and gradients kept equal over their ranks.

The loss of a run is the mean of its ranks' losses.  A dense parameter lives on every
rank: its gradient is the mean over the world.  An expert's gradient on the rank that
holds it already sums what the ranks of its expert-parallel group sent there: it is
summed over the copies of the expert and divided by the world's size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from moetraffic.capture import at
from moetraffic.errors import LayoutError
from moetraffic.patterns import ParallelLayout


@dataclass(frozen=True, kw_only=True, eq=False)
class ParallelGroups:
    """This rank's process groups and its place in them.

    Without ``torch.distributed`` all groups are None and the world is this process.
    """

    layout: ParallelLayout
    rank: int  # in the world
    dp_rank: int  # among the data-parallel replicas: decides the data
    world: dist.ProcessGroup | None
    ep: dist.ProcessGroup | None  # the ranks that share one set of experts
    edp: dist.ProcessGroup | None  # the ranks that hold copies of the same experts

    def by_kind(self) -> Mapping[str, dist.ProcessGroup | None]:
        """The groups by their kind, as a recorder wants them."""
        return {"world": self.world, "ep": self.ep, "edp": self.edp}

    def placement(self, experts: int) -> tuple[int, ...]:
        """For each global expert, the rank within the expert-parallel group."""
        local = experts // self.layout.ep
        return tuple(expert // local for expert in range(experts))


def connect(
    layout: ParallelLayout, *, timeout: timedelta | None = None
) -> ParallelGroups:
    """Make the layout's process groups; every rank of the world must call this.

    Parameters
    ----------
    layout
        Its world is the number of ranks.
    timeout
        For collectives of the new groups; None is torch's own.

    Raises
    ------
    LayoutError
        If the layout's ranks are not the ranks there are.
    """
    ready = dist.is_available() and dist.is_initialized()
    ranks = dist.get_world_size() if ready else 1
    if layout.world != ranks:
        raise LayoutError(
            "the layout must have as many ranks as were started, but dp x tp x pp x cp "
            f"= {layout.dp} x {layout.tp} x {layout.pp} x {layout.cp} = {layout.world} "
            f"and {ranks} were started: change --dp or start {layout.world} ranks"
        )
    if not ready:
        return ParallelGroups(
            layout=layout, rank=0, dp_rank=0, world=None, ep=None, edp=None
        )
    rank = dist.get_rank()
    mine = next(ranks for ranks in layout.groups("dp") if rank in ranks)
    return ParallelGroups(
        layout=layout,
        rank=rank,
        dp_rank=mine.index(rank),
        world=dist.group.WORLD,
        ep=_subgroup(layout, "ep", timeout),
        edp=_subgroup(layout, "edp", timeout),
    )


def _subgroup(
    layout: ParallelLayout, kind: str, timeout: timedelta | None
) -> dist.ProcessGroup:
    # Also a group of one rank, or of all: who records tells kinds apart by the group.
    ranks = [list(group) for group in layout.groups(kind)]
    make = cast(
        "Callable[..., tuple[dist.ProcessGroup, object]]",
        dist.new_subgroups_by_enumeration,
    )
    mine, _ = make(ranks, timeout=timeout)
    return mine


class GradientBucket:
    """The gradients of some parameters as views of one flat tensor.

    One collective then reduces them all, without copies.  Nobody may set a ``grad`` to
    None afterwards: it would drop the view.

    Parameters
    ----------
    parameters
        At least one, all of one dtype and device.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        # [elements of all parameters]
        self.flat = torch.cat([torch.zeros_like(p).flatten() for p in parameters])
        sizes = [p.numel() for p in parameters]
        for p, part in zip(parameters, torch.split(self.flat, sizes), strict=True):
            p.grad = part.view_as(p)

    def zero(self) -> None:
        """Forget the gradients."""
        self.flat.zero_()


def synchronise(
    dense: GradientBucket, experts: GradientBucket, groups: ParallelGroups
) -> None:
    """Give every parameter the gradient of the mean loss over all ranks, in place."""
    size = groups.layout.world
    if size == 1:
        return
    with at(label="gradient_sync"):
        dist.all_reduce(dense.flat, group=groups.world)
    if groups.layout.edp > 1:
        with at(label="expert_gradient_sync"):
            dist.all_reduce(experts.flat, group=groups.edp)
    dense.flat /= size
    experts.flat /= size


def gradient_norm(
    dense: GradientBucket, experts: GradientBucket, groups: ParallelGroups
) -> Tensor:
    """The 2-norm of the whole model's gradient, the same on every rank.

    Each dense parameter and each expert counts once.  Call it after
    :func:`synchronise`.

    Returns
    -------
    Tensor
        Scalar, float64.
    """
    squares = _square(experts.flat)
    if groups.layout.ep > 1:
        with at(label="gradient_norm"):
            dist.all_reduce(squares, group=groups.ep)
    return (squares + _square(dense.flat)).sqrt().squeeze()


def clip(
    dense: GradientBucket,
    experts: GradientBucket,
    groups: ParallelGroups,
    largest: float,
) -> None:
    """Scale the gradients down to a norm of ``largest``, by one factor everywhere."""
    factor = (largest / (gradient_norm(dense, experts, groups) + 1e-6)).clamp(max=1.0)
    dense.flat *= factor
    experts.flat *= factor


def _square(flat: Tensor) -> Tensor:
    # [1]: the hook on collectives sees a row of one element
    norm: Tensor = torch.linalg.vector_norm(flat)
    return norm.double().square().reshape(1)
