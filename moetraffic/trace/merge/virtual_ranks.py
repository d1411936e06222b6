"""Build segments and traces of virtual expert parallelism: one process, all ranks.

A segment holds the routers' decisions for the shards of all R ranks, R rows per layer
and micro-batch; the all-to-alls follow from them (:mod:`moetraffic.trace.routed`).
Steps have R rows each as well, in the order of the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from moetraffic.arrays import Int32, Int64, UInt8
from moetraffic.trace.choices import expert_ids, unpack
from moetraffic.trace.model import ALL_TO_ALL, ROUTING, UNKNOWN_TIME, Site, Steps
from moetraffic.trace.panel import ArrayPanel
from moetraffic.trace.routed import RoutedLayer, trace_of_routing
from moetraffic.trace.segments.record import Record
from moetraffic.trace.segments.segment import EVENT, Segment
from moetraffic.trace.trace import TIMES, Trace


def segment_of_shards(
    sites: Sequence[tuple[int, int, int, str, int]],
    site: Int64,
    iteration: Int64,
    rows: Int32,
    choices: UInt8 | None = None,
    **fields: Any,
) -> Segment:
    """Build the segment of a window of virtual ranks.

    ``sites`` are layer, slot, row bytes, dtype and padded rows of each call site;
    ``site`` and ``iteration`` are ``[n]``, of each routing; ``rows`` are
    ``[n, 2, R, E]`` token copies routed and dropped; ``choices`` are ``[n, R, S, B]``
    bit sets of the experts of sampled tokens, None without a sample.  Of the other
    ``fields``, ``steps`` and ``kinds`` have a row per rank and step, those of a step
    are consecutive.
    """
    count, _, shards, experts = rows.shape
    pairs = []
    for layer, slot, row_bytes, dtype, padded in sites:
        exchange = Site(
            group=0,
            operation=ALL_TO_ALL,
            phase="dispatch",
            layer=layer,
            slot=slot,
            dtype=dtype,
            row_bytes=row_bytes,
            experts=padded,  # rows of each expert, 0 where they are not padded
        )
        routing = Site(
            group=0, operation=ROUTING, layer=layer, slot=slot, experts=experts
        )
        pairs += [routing, exchange]
    events = np.zeros(count, EVENT)
    events["iteration"] = iteration
    events["site"] = 2 * site
    events["sequence"] = -1
    events["payload"] = np.arange(count) * shards
    for name in TIMES:
        events[name] = UNKNOWN_TIME
    demand = rows.transpose(0, 2, 1, 3).reshape(count * shards, 2, experts)
    return Segment(
        rank=0,
        sites=tuple(pairs),
        events=events,
        splits={},
        demand={experts: demand},
        choices={}
        if choices is None
        else {experts: choices.reshape(count * shards, *choices.shape[2:])},
        shards=shards,
        **fields,
    )


def trace_of_shards(record: Record) -> Trace:
    """Build the trace of R virtual ranks from the record of one process."""
    shards = record.segments[0].shards
    keys = {
        (routing.slot, routing.layer): exchange
        for segment in record.segments
        for routing, exchange in zip(
            segment.sites[::2], segment.sites[1::2], strict=True
        )
    }
    layers = []
    for slot, layer in sorted(keys):
        exchange = keys[slot, layer]
        iteration, rows, choices = _rows(record.segments, layer, slot)
        dropped = rows[:, :, 1]
        layers.append(
            RoutedLayer(
                layer=layer,
                slot=slot,
                iteration=iteration,
                demand=ArrayPanel(rows[:, :, 0]),
                dropped=ArrayPanel(dropped) if dropped.any() else None,
                row_bytes=exchange.row_bytes,
                dtype=exchange.dtype,
                padded=exchange.experts,
                chosen=None
                if choices is None
                else expert_ids(unpack(choices, rows.shape[3])),
            )
        )
    steps = record.steps
    columns: dict[str, Any] = {
        name: steps[name].reshape(-1, shards)
        for name in ("loss", "tokens", "start", "end")
    }
    return trace_of_routing(
        layers,
        groups=record.groups,
        placements=record.placements,
        meta=record.meta,
        steps=Steps(
            iteration=steps["iteration"][::shards].astype(np.int64),
            kind=tuple(steps["kind"][::shards].tolist()),
            source=steps["source"][::shards].copy(),
            **columns,
        ),
    )


def _rows(
    segments: Sequence[Segment], layer: int, slot: int
) -> tuple[Int64, Int32, UInt8 | None]:
    """Collect the routings of a layer and micro-batch.

    Returns iterations ``[n]``, copies routed and dropped ``[n, R, 2, E]``, and bit sets
    of sampled tokens ``[n, R, S, B]``, or None.
    """
    when, parts, bits = [], [], []
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
        bits += [choices[at] for choices in segment.choices.values()]
    # one process samples all its windows alike, or none
    sampled = np.concatenate(bits) if len(bits) == len(parts) else None
    return np.concatenate(when), np.concatenate(parts), sampled
