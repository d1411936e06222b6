"""Per-step rows of a run: expert load, bytes and all-to-all time by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from moetraffic.analysis.times.call_times import timed
from moetraffic.analysis.times.time_breakdown import distribution
from moetraffic.arrays import Float64, Int64
from moetraffic.trace import ALL_TO_ALL, ROUTING, UNKNOWN_TIME, Trace
from moetraffic.trace.clock import to_common
from moetraffic.trace.model import DroppedForm, Source

NONE = np.zeros(0, np.int64)

PLAIN = ("of", "source")
"""Fields of a layer that are no columns."""


@dataclass(frozen=True, kw_only=True)
class LayerRows:
    """One layer in n steps; NaN where unknown.

    Loads are token copies of experts where the routing was recorded, else bytes that
    the dispatch brings to each rank, rank-local ones included.
    """

    of: str  # "expert", "rank", or "" if neither is known
    source: Source  # how the layer and the phases were determined, the weakest
    load: Int64  # [n, C]
    dropped: Float64  # [n] token copies dropped over capacity
    bytes: Float64  # [n] sent by all-to-alls, rank-local ones included
    local_bytes: Float64  # [n] of these, to the rank itself
    busy: Float64  # [n] share of the step in the layer's all-to-alls, mean of the ranks


@dataclass(frozen=True, kw_only=True)
class StepRows:
    """Rows of n training steps; NaN where unknown."""

    iteration: Int64  # [n], increasing
    duration_s: Float64  # [n] mean of the ranks
    loss: Float64  # [n] mean of the ranks
    busy: Float64  # [n] share of the step in any all-to-all, mean of the ranks
    layers: dict[int, LayerRows]  # by layer; -1: all-to-alls of unknown layers
    k: int  # experts per token, 0: unknown
    source: Source  # how the ends of the steps were determined, the weakest

    def last(self, number: int) -> StepRows:
        """Keep the last ``number`` steps."""
        return _taken(self, slice(max(0, len(self.iteration) - number), None))


def _taken(rows: StepRows, kept: slice) -> StepRows:
    arrays = ("iteration", "duration_s", "loss", "busy")
    return replace(
        rows,
        **{name: getattr(rows, name)[kept] for name in arrays},
        layers={
            layer: replace(
                each,
                **{
                    f.name: getattr(each, f.name)[kept]
                    for f in fields(each)
                    if f.name not in PLAIN
                },
            )
            for layer, each in rows.layers.items()
        },
    )


def joined(parts: Sequence[StepRows]) -> StepRows:
    """Concatenate rows of consecutive steps; a layer is unknown where it is absent.

    Where the number of experts or the kind of load has changed, the last one counts,
    and earlier loads are zero.
    """
    layers = {}
    for layer in sorted({layer for part in parts for layer in part.layers}):
        newest = next(p.layers[layer] for p in reversed(parts) if layer in p.layers)
        shape = newest.load.shape[1]
        rows = []
        for part in parts:
            n = len(part.iteration)
            there = part.layers.get(layer) or _unknown(newest, n)
            if there.of != newest.of or there.load.shape[1] != shape:
                there = replace(there, load=np.zeros((n, shape), np.int64))
            rows.append(there)
        layers[layer] = LayerRows(
            of=newest.of,
            source=min(row.source for row in rows),
            **{
                f.name: np.concatenate([getattr(r, f.name) for r in rows])
                for f in fields(LayerRows)
                if f.name not in PLAIN
            },
        )
    return StepRows(
        iteration=np.concatenate([p.iteration for p in parts]),
        duration_s=np.concatenate([p.duration_s for p in parts]),
        loss=np.concatenate([p.loss for p in parts]),
        busy=np.concatenate([p.busy for p in parts]),
        layers=layers,
        k=parts[-1].k,
        source=min(part.source for part in parts),
    )


def _unknown(like: LayerRows, steps: int) -> LayerRows:
    nan = np.full(steps, np.nan)
    return LayerRows(
        of=like.of,
        source=like.source,
        load=np.zeros((steps, like.load.shape[1]), np.int64),
        dropped=nan,
        bytes=nan,
        local_bytes=nan,
        busy=nan,
    )


def step_rows(trace: Trace, iterations: Int64) -> StepRows:
    """Compute the rows of training steps of a trace, ``[n]`` increasing iterations.

    Ranks whose record is missing are left out of sums and means.
    """
    steps = trace.steps
    row = np.searchsorted(steps.iteration, iterations)
    ranks = np.broadcast_to(np.arange(trace.meta.world), (len(row), trace.meta.world))
    start, end = (
        to_common(trace.clocks, ranks, t[row]) for t in (steps.start, steps.end)
    )
    known = (start != UNKNOWN_TIME) & (end != UNKNOWN_TIME) & (end > start)
    span = np.where(known, end - start, 0)
    found = trace.find()
    found = found[np.isin(trace.occurrences.iteration[found], iterations)]
    layer_of = np.array([s.layer for s in trace.sites], np.int64)
    sites = trace.occurrences.site[found]
    numbers = {
        s.layer for s in trace.sites if s.operation in (ALL_TO_ALL, ROUTING)
    } & set(layer_of[sites].tolist())
    layers = {}
    for layer in sorted(numbers):
        mine = found[layer_of[sites] == layer]
        sent = mine[trace.square[trace.occurrences.site[mine]]]
        of, load, dropped = _load(trace, mine, iterations)
        total, local = _bytes(trace, sent, iterations)
        layers[layer] = LayerRows(
            of=of,
            source=_source(trace, mine),
            load=load,
            dropped=dropped,
            bytes=total,
            local_bytes=local,
            busy=_busy(trace, sent, iterations, start, span),
        )
    return StepRows(
        iteration=iterations,
        duration_s=mean_of_known(np.where(known, span, np.nan)) / 1e9,
        loss=mean_of_known(steps.loss[row]),
        busy=_busy(trace, found[trace.square[sites]], iterations, start, span),
        layers=layers,
        k=trace.meta.k,
        source=Source(int(steps.source[row].min(initial=Source.ANNOTATED))),
    )


def _source(trace: Trace, mine: Int64) -> Source:
    """Return the weakest source of routings and of calls that have a phase."""
    sites = [trace.sites[s] for s in np.unique(trace.occurrences.site[mine]).tolist()]
    named = (s.source for s in sites if s.phase or s.operation == ROUTING)
    return min(named, default=Source.UNKNOWN)


def mean_of_known(values: Float64) -> Float64:
    """Average the values along the last axis that are not NaN; NaN without any."""
    known = ~np.isnan(values)
    number = known.sum(axis=-1)
    total = np.where(known, values, 0.0).sum(axis=-1)
    return np.asarray(np.where(number > 0, total / np.maximum(number, 1), np.nan))


def _load(trace: Trace, mine: Int64, when: Int64) -> tuple[str, Int64, Float64]:
    """Sum the load of a layer over groups and micro-batches, and its drops."""
    every = [trace.sites[s] for s in trace.occurrences.site[mine].tolist()]
    forward = np.array([s.direction == "forward" for s in every], bool)
    routed = forward & np.array([s.operation == ROUTING for s in every], bool)
    experts = max((s.experts for s in every), default=0)
    unknown = np.full(len(when), np.nan)
    if routed.any():
        load = np.zeros((len(when), experts), np.int64)
        dropped = np.zeros(len(when))
        for part in _alike(trace, mine[routed]):
            at = _index(trace, part, when)
            demand = trace.demand(part).sum(axis=1)
            np.add.at(load[:, : demand.shape[1]], at, demand)
            form = trace.sites[int(trace.occurrences.site[part[0]])].dropped
            if not form.known:
                dropped[at] = np.nan
            elif form == DroppedForm.STORED:
                np.add.at(dropped, at, trace.dropped(part).sum(axis=(1, 2)))
        return "expert", load, dropped
    dispatch = forward & np.array([s.phase == "dispatch" for s in every], bool)
    if not dispatch.any():
        return "", np.zeros((len(when), 0), np.int64), unknown
    load = np.zeros((len(when), trace.meta.world), np.int64)
    for part in _alike(trace, mine[dispatch]):
        if not _sized(trace, part):
            return "", np.zeros((len(when), 0), np.int64), unknown
        at = _index(trace, part, when)
        ranks = trace.groups[trace.sites[trace.occurrences.site[part[0]]].group].ranks
        received = trace.wire(part).sum(axis=1)
        np.add.at(load, (at[:, None], np.array(ranks)[None, :]), received)
    used = np.flatnonzero(load.any(axis=0))
    return "rank", load if len(used) else load[:, :0], unknown


def _alike(trace: Trace, occurrences: Int64) -> list[Int64]:
    """Split occurrences by call site."""
    sites = trace.occurrences.site[occurrences]
    return [occurrences[sites == site] for site in np.unique(sites).tolist()]


def _index(trace: Trace, occurrences: Int64, when: Int64) -> Int64:
    return np.searchsorted(when, trace.occurrences.iteration[occurrences])


def _sized(trace: Trace, part: Int64) -> bool:
    return bool((trace.occurrences.matrix[part] >= 0).all())


def _bytes(trace: Trace, sent: Int64, when: Int64) -> tuple[Float64, Float64]:
    """Sum the bytes of all-to-alls by step, all and rank-local; NaN where unknown."""
    total, local = np.zeros(len(when)), np.zeros(len(when))
    for part in _alike(trace, sent):
        at = _index(trace, part, when)
        if not _sized(trace, part):
            total[at] = local[at] = np.nan
            continue
        wire = trace.wire(part)
        np.add.at(total, at, wire.sum(axis=(1, 2)))
        np.add.at(local, at, np.trace(wire, axis1=1, axis2=2))
    return total, local


def _busy(trace: Trace, sent: Int64, when: Int64, start: Int64, span: Int64) -> Float64:
    """Compute the share of each step in all-to-alls, mean of the ranks, ``[n]``.

    A rank counts where the times of all its calls in the step are known.
    """
    world = trace.meta.world
    known = np.ones((len(when), world), bool)
    made = np.zeros((len(when), world), bool)
    begins: list[Int64] = [NONE]
    ends, owners = [NONE], [NONE]
    for part in timed(trace, sent, with_wire=False):
        at = np.broadcast_to(
            _index(trace, part.occurrence, when)[:, None], part.ranks.shape
        )
        there = trace.present(part.occurrence)
        made[at[there], part.ranks[there]] = True
        lacks = there & ~part.known
        known[at[lacks], part.ranks[lacks]] = False
        kept = there & part.known
        begins.append(part.begin[kept])
        ends.append(part.end[kept])
        owners.append(part.ranks[kept])
    begin, end, owner = map(np.concatenate, (begins, ends, owners))
    share = np.full((len(when), world), np.nan)
    for rank in np.unique(owner).tolist():
        mine = owner == rank
        steps = np.flatnonzero(known[:, rank] & made[:, rank] & (span[:, rank] > 0))
        if not len(steps):
            continue
        first = start[steps, rank]
        _, sending, _, _ = distribution(
            (NONE, NONE), (begin[mine], end[mine]), first, first + span[steps, rank]
        )
        share[steps, rank] = sending / span[steps, rank]
    return mean_of_known(share)
