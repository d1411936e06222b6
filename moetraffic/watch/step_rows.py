"""Rows of training steps: load, bytes and all-to-all time of each layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from moetraffic.analysis.measures import means_of_known
from moetraffic.analysis.times.calls import covered_ns, merge_intervals, timed
from moetraffic.arrays import Int64
from moetraffic.trace import ALL_TO_ALL, ROUTING, UNKNOWN_TIME, Trace
from moetraffic.trace.clock import to_common
from moetraffic.trace.model import Source

NAN = float("nan")


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """One layer in one step; NaN where unknown.

    The load is token copies of experts where the routing was recorded, else the bytes
    that the dispatch brings to each rank, rank-local ones included.
    """

    of: str  # "expert", "rank", or "" if no load is known
    source: Source  # how the layer and the phases were determined, the weakest
    load: Int64  # [C]
    dropped: float = NAN  # token copies dropped over capacity
    bytes: float = NAN  # sent by all-to-alls, rank-local ones included
    local_bytes: float = NAN  # of these, to the rank itself
    time_share: float = NAN  # of the step in all-to-alls, mean of the ranks


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """One training step, mean of the ranks with a record; NaN where unknown."""

    iteration: int
    duration_s: float
    loss: float
    bytes: float  # sent by all-to-alls of all layers, rank-local ones included
    local_bytes: float
    time_share: float  # of the step in any all-to-all
    layers: Mapping[int, LayerRow]  # by layer; -1: all-to-alls of unknown layers


def step_rows(trace: Trace, iterations: Int64) -> list[StepRow]:
    """Compute the rows of training steps of a trace."""
    calls = trace.find()
    when = trace.occurrences.iteration[calls]
    return [_step_row(trace, calls[when == number], number) for number in iterations]


def _step_row(trace: Trace, calls: Int64, iteration: int) -> StepRow:
    steps, ranks = trace.steps, np.arange(trace.meta.world)
    row = int(np.searchsorted(steps.iteration, iteration))
    start, end = (
        to_common(trace.clocks, ranks[None], times[row][None])[0]
        for times in (steps.start, steps.end)
    )
    known = (start != UNKNOWN_TIME) & (end != UNKNOWN_TIME) & (end > start)
    span = np.where(known, start, 0), np.where(known, end, 0)
    sites = [trace.sites[number] for number in trace.occurrences.site[calls].tolist()]
    layer = np.array([site.layer for site in sites], np.int64)
    numbers = {s.layer for s in sites if s.operation in (ALL_TO_ALL, ROUTING)}
    layers = {
        number: _layer_row(trace, calls[layer == number], *span)
        for number in sorted(numbers)
    }
    return StepRow(
        iteration=int(iteration),
        duration_s=float(means_of_known(np.where(known, end - start, np.nan)) / 1e9),
        loss=float(means_of_known(steps.loss[row])),
        bytes=sum(row.bytes for row in layers.values()),
        local_bytes=sum(row.local_bytes for row in layers.values()),
        time_share=_time_share(trace, calls, *span),
        layers=layers,
    )


def _layer_row(trace: Trace, calls: Int64, start: Int64, end: Int64) -> LayerRow:
    """Sum up a layer's calls in a step, of all groups and micro-batches."""
    site_of = trace.occurrences.site[calls]
    sites = {number: trace.sites[number] for number in np.unique(site_of).tolist()}
    copies = np.zeros(max(s.experts for s in sites.values()), np.int64)
    received = np.zeros(trace.meta.world, np.int64)
    dropped = total = local = 0.0
    routed, sized = False, True
    for number, site in sites.items():
        part = calls[site_of == number]
        forward = site.direction == "forward"
        dispatch = forward and site.phase == "dispatch"
        if site.operation == ROUTING and forward:
            routed = True
            copies[: site.experts] += trace.demand(part).sum(axis=(0, 1))
            dropped += trace.dropped(part).sum() if site.dropped.known else NAN
        elif trace.square[number] and (trace.occurrences.matrix[part] < 0).any():
            total = local = NAN
            sized &= not dispatch
        elif trace.square[number]:
            wire = trace.wire(part)
            total += wire.sum()
            local += np.trace(wire, axis1=1, axis2=2).sum()
            if dispatch:
                ranks = np.array(trace.groups[site.group].ranks)
                received[ranks] += wire.sum(axis=(0, 1))
    by_rank = sized and bool(received.any()) and not routed
    named = (s.source for s in sites.values() if s.phase or s.operation == ROUTING)
    return LayerRow(
        of="expert" if routed else "rank" if by_rank else "",
        source=min(named, default=Source.UNKNOWN),
        load=copies if routed else received if by_rank else received[:0],
        dropped=float(dropped) if routed else NAN,
        bytes=float(total),
        local_bytes=float(local),
        time_share=_time_share(trace, calls, start, end),
    )


def _time_share(trace: Trace, calls: Int64, start: Int64, end: Int64) -> float:
    """Return the share of a step in some all-to-alls, mean of the ranks.

    ``start`` and ``end`` are ``[R]`` of the step.  A rank counts where the times of its
    step and of all its calls are known.
    """
    calls = calls[trace.square[trace.occurrences.site[calls]]]
    table = np.zeros((4, 0), np.int64)  # rank, known, begin, end of each call
    for part in timed(trace, calls, with_wire=False):
        present = trace.present(part.occurrence)
        columns = (part.ranks, part.known, part.begin, part.end)
        table = np.hstack([table, [column[present] for column in columns]])
    shares = [NAN]
    for rank in np.unique(table[0]).tolist():
        _, known, begin, until = table[:, table[0] == rank]
        if known.all() and end[rank] > start[rank]:
            span = start[rank : rank + 1], end[rank : rank + 1]
            inside = covered_ns(merge_intervals(begin, until), *span)
            shares.append(float(inside[0] / (end[rank] - start[rank])))
    return float(means_of_known(shares))
