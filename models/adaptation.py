"""Update adaptive routers with the expert load of all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from moetraffic.capture import at
from moetraffic.gating import Adaptive
from moetraffic.models.layers.moe import MixtureOfExperts


def adapt(
    mixtures: Sequence[MixtureOfExperts], replicas: dist.ProcessGroup | None
) -> None:
    """Pass the global expert load of the finished step to each adaptive router.

    Parameters
    ----------
    mixtures
        This rank's MoE layers.
    replicas
        The data-parallel group, over which loads are summed; None: nobody else.
    """
    adaptive = [m for m in mixtures if isinstance(m.router, Adaptive)]
    if not adaptive:
        return
    loads = torch.stack([m.take_load() for m in adaptive])  # [layers, E]
    if replicas is not None and replicas.size() > 1:
        with at(label="router_load"):
            dist.all_reduce(loads, group=replicas)
    for mixture, load in zip(adaptive, loads, strict=True):
        router = mixture.router
        assert isinstance(router, Adaptive)
        router.after_step(load)
