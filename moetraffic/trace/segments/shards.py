"""Segments of virtual expert parallelism, and the trace that they make.

One process trains on the shards of all R ranks.  Its segments hold what the routers
decided, R rows a layer and micro-batch; the all-to-alls are implied by it
(:mod:`moetraffic.trace.routed`).  Steps have R rows each as well, in the order of the
ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    Steps,
)
from moetraffic.trace.routed import RoutedLayer, trace_of_routing
from moetraffic.trace.trace import Trace

from .segment import EVENT, Segment


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardWindow:
    """Routing of all ranks' shards in a window of steps, by layer and slot."""

    sites: tuple[tuple[int, int, int, str, int], ...]
    """Layer, slot, row bytes, dtype and padded rows of each."""
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
    """The segment of a window; see :class:`.segment.Segment`.

    Parameters
    ----------
    steps
        ``[s R]`` STEP, the R ranks of a step one after another.
    kinds
        ``[s R]`` kind of each.
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


def trace_of_shards(segments: Sequence[Segment], meta: Meta) -> Trace:
    """The trace of R ranks from the segments of the process that stood for them."""
    first = segments[0]
    keys = {
        (r.layer, r.slot): (e.row_bytes, e.dtype, e.constant)
        for segment in segments
        for r, e in zip(segment.sites[::2], segment.sites[1::2], strict=True)
    }
    layers = []
    for (layer, slot), (row_bytes, dtype, constant) in sorted(
        keys.items(), key=lambda item: (item[0][1], item[0][0])
    ):
        iteration, rows = _rows(segments, layer, slot)
        dropped = rows[:, :, 1]
        layers.append(
            RoutedLayer(
                layer=layer,
                slot=slot,
                iteration=iteration,
                demand=rows[:, :, 0],
                dropped=dropped if dropped.any() else None,
                row_bytes=row_bytes,
                dtype=dtype,
                padded=constant[0] if constant else 0,
            )
        )
    placements = np.unique(np.concatenate([s.placements for s in segments]))
    return trace_of_routing(
        layers,
        groups=first.groups,
        placements=placements,
        meta=meta,
        steps=_steps(segments, first.shards),
        kind=Trace,
    )


def _rows(segments: Sequence[Segment], layer: int, slot: int) -> tuple[Int64, Int32]:
    """Iterations ``[n]`` and copies routed and dropped ``[n, R, 2, E]`` of a layer."""
    when, parts = [], []
    for segment in segments:
        number = next(
            (
                n
                for n, s in enumerate(segment.sites)
                if s.operation == ROUTING and (s.layer, s.slot) == (layer, slot)
            ),
            -1,
        )
        mine = segment.events[segment.events["site"] == number]
        if not len(mine):
            continue
        (rows,) = segment.demand.values()
        at = mine["payload"][:, None] + np.arange(segment.shards)
        when.append(mine["iteration"])
        parts.append(rows[at])
    return np.concatenate(when), np.concatenate(parts)


def _steps(segments: Sequence[Segment], shards: int) -> Steps:
    table = np.concatenate([s.steps for s in segments])
    kinds = [kind for s in segments for kind in s.kinds][::shards]
    columns: Mapping[str, Any] = {
        name: table[name].reshape(-1, shards)
        for name in ("loss", "tokens", "start", "end")
    }
    iteration = np.asarray(table["iteration"][::shards], np.int64)
    return Steps(iteration=iteration, kind=tuple(kinds), **columns)
