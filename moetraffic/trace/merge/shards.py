"""Build the trace of a virtual expert-parallel run from its one process's segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from moetraffic.trace.model import ROUTING, Int32, Int64, Meta, Steps
from moetraffic.trace.routed import RoutedLayer, trace_of_routing
from moetraffic.trace.segments.segment import Segment
from moetraffic.trace.trace import Trace


def trace_of_shards(segments: Sequence[Segment], meta: Meta) -> Trace:
    """Build the trace of R virtual ranks from the segments of one process."""
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
    """Return iterations ``[n]`` and copies routed and dropped ``[n, R, 2, E]``."""
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
