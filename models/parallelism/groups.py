"""Process groups of a parallel layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import torch.distributed as dist

from moetraffic.errors import LayoutError
from moetraffic.patterns import Layout
from moetraffic.patterns.schedules import chunk_layers


@dataclass(frozen=True, kw_only=True, eq=False)
class ParallelGroups:
    """Process groups of one rank and its position in them.

    Without ``torch.distributed`` all groups are None and the world is this process.
    """

    layout: Layout
    rank: int  # in the world
    dp_rank: int  # among the data-parallel replicas: decides the data
    stage: int = 0  # of the pipeline
    world: dist.ProcessGroup | None = None
    dp: dist.ProcessGroup | None = None  # copies of the same dense parameters
    ep: dist.ProcessGroup | None = None  # the ranks that share one set of experts
    edp: dist.ProcessGroup | None = None  # copies of the same experts
    # the ranks that share each layer's matrices; None for tp = 1
    tp: dist.ProcessGroup | None = None
    # the stages of this rank's pipeline; None for pp = 1
    pp: dist.ProcessGroup | None = None
    # the first and last of several stages, which both hold the tied embedding
    embedding: dist.ProcessGroup | None = None

    def by_kind(self) -> Mapping[str, dist.ProcessGroup | None]:
        """The process groups by kind, as a recorder expects them."""
        kinds = ("world", "dp", "ep", "edp", "tp", "pp", "embedding")
        return {kind: getattr(self, kind) for kind in kinds}

    def layers(self, layers: int) -> range:
        """Compute the global layer indices of this rank's pipeline stage."""
        return chunk_layers(layers, self.layout.pp)[self.stage]

    def placement(self, experts: int) -> tuple[int, ...]:
        """Compute the expert-parallel group rank that holds each global expert."""
        local = experts // self.layout.ep
        return tuple(expert // local for expert in range(experts))


def connect(layout: Layout, *, timeout: timedelta | None = None) -> ParallelGroups:
    """Create the layout's process groups; every rank must call this.

    The layout's world is the number of ranks; ``timeout`` is for collectives of the new
    groups, None is torch's own.

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
        return ParallelGroups(layout=layout, rank=0, dp_rank=0)
    rank = dist.get_rank()

    def place(kind: str) -> int:
        return next(r for r in layout.groups(kind) if rank in r).index(rank)

    make = cast(
        "Callable[..., tuple[dist.ProcessGroup | None, object]]",
        dist.new_subgroups_by_enumeration,
    )

    def group(kind: str, wanted: bool = True) -> dist.ProcessGroup | None:
        # also a group of one rank, or of all: a recorder tells kinds by the group
        ranks = [list(group) for group in layout.groups(kind)]
        return make(ranks, timeout=timeout)[0] if wanted else None

    return ParallelGroups(
        layout=layout,
        rank=rank,
        dp_rank=place("dp"),
        stage=place("pp"),
        world=dist.group.WORLD,
        dp=group("dp"),
        ep=group("ep"),
        edp=group("edp"),
        tp=group("tp", layout.tp > 1),
        pp=group("pp", layout.pp > 1),
        embedding=group("embedding", layout.pp > 1),
    )
