"""Create and validate the metadata of a captured run."""

from __future__ import annotations

import operator
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import torch
import torch.distributed as dist

from moetraffic import __version__
from moetraffic.errors import CaptureError
from moetraffic.patterns import Workload
from moetraffic.trace.model import Meta

LONGEST_NAME = 1000  # characters
LARGEST_COUNT = 2**31 - 1


def check_names_and_counts(**told: Any) -> None:
    """Check that names and counts of the metadata can be stored in a trace.

    Parameters
    ----------
    **told
        Names as text, and counts as non-negative integers, by argument name.

    Raises
    ------
    CaptureError
        If an argument is invalid; the message contains its name.
    """
    for name, value in told.items():
        if isinstance(value, str):
            sound = len(value) <= LONGEST_NAME and "\0" not in value
            sound = sound and not any("\ud800" <= c <= "\udfff" for c in value)
            rule = f"text of at most {LONGEST_NAME} characters"
        else:
            sound = isinstance(value, int) and not isinstance(value, bool)
            sound = sound and 0 <= value <= LARGEST_COUNT
            rule = "a whole number from 0 on"
        if not sound:
            raise CaptureError(
                f"{name} is {rule}, but {str(value)[:40]!r} was given: change it"
            )


def describe(
    workload: Workload | None, world: int, *, model: str, router: str, k: int
) -> Meta:
    """Create the metadata of a new capture from workload, names and layout.

    Parameters
    ----------
    workload
        The trained workload; None if unknown.
    world
        Number of ranks.
    model, router, k
        Model and router names, "" if unknown, and experts per token, 0 if unknown; they
        take precedence over the workload.
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


def checked_placement(
    placement: Mapping[int, Sequence[int]],
) -> dict[int, tuple[int, ...]]:
    """Validate an expert placement: the group rank of each expert, by layer.

    Raises
    ------
    CaptureError
        If the placement is invalid.
    """
    try:
        checked = {
            operator.index(layer): tuple(operator.index(m) for m in members)
            for layer, members in placement.items()
        }
        sound = all(min(m, default=0) >= 0 for m in checked.values())
    except (TypeError, AttributeError):
        checked, sound = {}, False
    if not sound:
        raise CaptureError(
            "a placement is, by layer, the group rank of each expert, from 0 on, but "
            f"{str(placement)[:60]!r} was given: change it"
        )
    return checked


def checked_groups(
    groups: Mapping[str, dist.ProcessGroup | None],
) -> dict[str, str]:
    """Validate process groups; return their kinds by group name.

    Raises
    ------
    CaptureError
        If a value is not a process group.
    """
    for kind, group in groups.items():
        check_names_and_counts(groups=str(kind))
        if group is not None and not hasattr(group, "group_name"):
            raise CaptureError(
                "groups are process groups of torch.distributed by their kind, but "
                f"{kind!r} is {type(group).__name__}: give what new_group returned"
            )
    return {str(g.group_name): str(k) for k, g in groups.items() if g is not None}
