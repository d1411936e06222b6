"""Segments of virtual expert parallelism, where one process trains for all ranks.

A segment holds the routers' decisions for the shards of all R ranks, R rows per layer
and micro-batch; the all-to-alls follow from them (:mod:`moetraffic.trace.routed`).
Steps have R rows each as well, in the order of the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.trace.model import (
    ALL_TO_ALL,
    ROUTING,
    UNKNOWN_TIME,
    Group,
    Int32,
    Int64,
    Meta,
    Site,
)

from .segment import EVENT, Segment


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardWindow:
    """Routing of all virtual ranks in a window of steps, by layer and slot."""

    sites: tuple[tuple[int, int, int, str, int], ...]
    """Layer, slot, row bytes, dtype and padded rows of each call site."""
    site: Int64  # [n] of each routing
    iteration: Int64  # [n]
    rows: Int32  # [n, 2, R, E] token copies routed and dropped


def segment_of_shards(
    window: ShardWindow,
    *,
    index: int,
    final: bool,
    node: str,
    meta: Meta,
    groups: Sequence[Group],
    placements: npt.NDArray[Any],
    steps: npt.NDArray[Any],
    kinds: Sequence[str],
) -> Segment:
    """Build the segment of a window of virtual ranks; see :class:`.segment.Segment`.

    Parameters
    ----------
    steps
        ``[s R]`` of type STEP; the R ranks of a step are consecutive.
    kinds
        ``[s R]`` kind of each step.
    """
    count, _, shards, experts = window.rows.shape
    sites = []
    for layer, slot, row_bytes, dtype, padded in window.sites:
        routing = Site(
            group=0, operation=ROUTING, layer=layer, slot=slot, experts=experts
        )
        exchange = Site(
            group=0,
            operation=ALL_TO_ALL,
            phase="dispatch",
            layer=layer,
            slot=slot,
            dtype=dtype,
            row_bytes=row_bytes,
            constant=(padded,) if padded else (),
        )
        sites += [routing, exchange]
    events = np.zeros(count, EVENT)
    events["iteration"] = window.iteration
    events["site"] = 2 * window.site
    events["sequence"] = -1
    events["payload"] = np.arange(count) * shards
    for name in ("issue", "start", "end"):
        events[name] = UNKNOWN_TIME
    rows = window.rows.transpose(0, 2, 1, 3).reshape(count * shards, 2, experts)
    return Segment(
        rank=0,
        index=index,
        final=final,
        node=node,
        meta=meta,
        groups=tuple(groups),
        sites=tuple(sites),
        events=events,
        steps=steps,
        kinds=tuple(kinds),
        splits={},
        demand={experts: rows},
        placements=placements,
        shards=shards,
    )
