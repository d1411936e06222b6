"""What a trace says of the run it was captured from."""

from __future__ import annotations

import platform
from dataclasses import replace
from datetime import datetime, timezone

import torch
import torch.distributed as dist

from moetraffic import __version__
from moetraffic.patterns import Workload
from moetraffic.trace.model import Meta


def describe(
    workload: Workload | None, world: int, *, model: str, router: str, k: int
) -> Meta:
    """The meta of a capture that begins now.

    Parameters
    ----------
    workload
        What is trained, None where that is not known.
    world
        Number of ranks.
    model, router, k
        Names, "" for none, and the experts of a token, 0 where that is not known; they
        come before what the workload says.
    """
    backend = dist.get_backend() if dist.is_initialized() else ""
    meta = Meta(
        origin="captured",
        model=model,
        router=router,
        k=k,
        world=world,
        backend=backend,
        moetraffic=__version__,
        torch=torch.__version__,
        python=platform.python_version(),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )
    if workload is None:
        return meta
    shape, gating = workload.model, workload.gating
    layout, training = workload.layout, workload.training
    return replace(
        meta,
        model=model or shape.name,
        router=router or gating.router,
        dispatch=gating.dispatch,
        dp=layout.dp,
        tp=layout.tp,
        pp=layout.pp,
        ep=layout.ep,
        cp=layout.cp,
        order=layout.order,
        layers=shape.layers,
        hidden=shape.hidden,
        experts=shape.experts,
        k=k or gating.k,
        capacity_factor=(
            float("nan") if gating.dispatch == "dropless" else gating.capacity_factor
        ),
        dtype=training.dtype,
        seed=training.seed,
        workload=workload.to_json(),
    )
