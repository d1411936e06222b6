"""Recompute a trace for another expert-parallel degree or expert placement.

The routing of a rank's tokens does not depend on where the experts are, so one capture
determines the matrices of every placement.  (The training is assumed to be the same: a
placement changes no arithmetic except the order of sums.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64, Int32, Int64
from moetraffic.errors import LayoutError, TraceError

from .choices import packed_bytes, resized
from .model import (
    ALL_TO_ALL,
    PHASES,
    PLACEMENT,
    ROUTING,
    DroppedForm,
    Group,
    Site,
    Steps,
    WireForm,
)
from .routed import RoutedLayer, trace_of_routing
from .trace import Trace

Placer = Callable[[Float64, int], tuple[Int64, Int64]]
"""(load ``[E]``, ranks W) -> expert ``[S]`` and rank ``[S]`` of each slot."""


@dataclass(frozen=True, kw_only=True)
class Relocation:
    """Target ranks, groups and placement policy of the experts."""

    ranks: int  # R', a divisor of the capture's ranks: shards of neighbors are joined
    groups: Sequence[tuple[int, ...]]  # expert-parallel groups over ranks 0 to R'-1
    place: Placer
    every: int = 0  # iterations between placements, each by the load before it; 0: once
    source: str = ""  # ``source`` of the result's meta


def relocate(trace: Trace, to: Relocation) -> Trace:
    """Compute the trace of the same routing with another placement of the experts.

    The trace is data- and expert-parallel; its demand and the bytes of a row are used.
    With ``every`` 0 the experts are placed once, by the load of the whole trace
    (hindsight); otherwise again after every ``every`` iterations by their load,
    starting with a contiguous placement.  The result has the same origin, is marked as
    virtual, and has no times.
    """
    layers = [_joined(layer, to.ranks) for layer in routed_layers(trace)]
    groups = [Group(kind="ep", ranks=tuple(g)) for g in to.groups]
    rows = []
    for layer in {r.layer for r in layers}:
        slots = [r for r in layers if r.layer == layer]
        when = slots[0].iteration
        load = np.sum([_by_iteration(s, when) for s in slots], axis=0)  # [n, R', E]
        for number, group in enumerate(groups):
            mine = load[:, list(group.ranks)].sum(axis=1).astype(np.float64)  # [n, E]
            for start, used in _versions(when, mine, to.every):
                width, experts = len(group.ranks), np.arange(mine.shape[1])
                members = experts * width // len(experts)  # contiguous
                if used is not None:
                    experts, members = to.place(used, width)
                replica = np.arange(len(experts)) - np.searchsorted(experts, experts)
                rows += [
                    (number, layer, int(e), int(r), group.ranks[int(m)], start)
                    for e, r, m in zip(experts, replica, members, strict=True)
                ]
    every = reduce(np.union1d, (layer.iteration for layer in layers))
    return trace_of_routing(
        layers,
        groups=groups,
        placements=np.unique(np.array(rows, PLACEMENT)),
        meta=replace(
            trace.meta,
            world=to.ranks,
            dp=to.ranks,
            ep=len(to.groups[0]),
            virtual=True,
            backend="",
            source=to.source,
            nodes=("",) * to.ranks,
        ),
        steps=_steps(trace.steps, to.ranks, every),
        kind=Trace,
    )


def routed_layers(trace: Trace) -> list[RoutedLayer]:
    """Extract a trace's routing decisions of all ranks, by slot and layer.

    Evaluations, and iterations that not all ranks recorded, are omitted.
    """
    world, meta = trace.meta.world, trace.meta
    if (meta.tp, meta.pp, meta.cp) != (1, 1, 1):
        raise TraceError(
            "every rank must have tokens of its own, but the capture has tp x pp x cp "
            f"= {meta.tp} x {meta.pp} x {meta.cp}: place takes captures of data and "
            "expert parallelism"
        )
    keys = sorted(
        {
            (s.slot, s.layer)
            for s in trace.sites
            if s.operation == ROUTING and s.direction == "forward"
        }
    )
    if not keys:
        raise TraceError(
            f"{trace.name} holds no routing, so where its tokens would go elsewhere is "
            "not known: capture with a router hook or annotation"
        )
    return [_routed(trace, layer, slot, world) for slot, layer in keys]


def _routed(trace: Trace, layer: int, slot: int, world: int) -> RoutedLayer:
    numbers = [
        n
        for n, s in enumerate(trace.sites)
        if (s.operation, s.layer, s.slot, s.direction)
        == (ROUTING, layer, slot, "forward")
    ]
    ranks = sorted(r for n in numbers for r in trace.groups[trace.sites[n].group].ranks)
    if ranks != list(range(world)):
        raise TraceError(
            f"every rank routes once a layer and micro-batch, but layer {layer} has "
            f"the routing of ranks {ranks} of {world}: place takes data- and "
            "expert-parallel captures"
        )
    every = trace.occurrences
    found = [trace.complete(np.flatnonzero(every.site == n)) for n in numbers]
    when = trace.iterations
    for occurrences in found:
        when = np.intersect1d(when, every.iteration[occurrences])
    experts = trace.sites[numbers[0]].experts
    forms = sorted({trace.sites[n].dropped for n in numbers})
    # padding does not depend on what was dropped
    padded = trace.meta.dispatch == "padded" and DroppedForm.UNKNOWN in forms
    demand = np.zeros((len(when), world, experts), np.int32)
    dropped = np.zeros_like(demand)
    for number, occurrences in zip(numbers, found, strict=True):
        these = occurrences[np.isin(every.iteration[occurrences], when)]
        members = list(trace.groups[trace.sites[number].group].ranks)
        demand[:, members] = trace.demand(these)
        if trace.any_dropped(these) and not padded:
            dropped[:, members] = trace.dropped(these)
    choices = None
    sampled = {trace.sites[n].choices for n in numbers}
    if sampled != {0}:
        most = max(sampled)
        choices = np.zeros((len(when), world, most, packed_bytes(experts)), np.uint8)
        for number, occurrences in zip(numbers, found, strict=True):
            if not trace.sites[number].choices:
                continue
            these = occurrences[np.isin(every.iteration[occurrences], when)]
            members = list(trace.groups[trace.sites[number].group].ranks)
            choices[:, members] = resized(trace.choice_bits(these), most)
    exchanges = [
        s
        for s in trace.sites
        if s.operation == ALL_TO_ALL
        and s.phase
        and (s.layer, s.slot, s.group) == (layer, slot, trace.sites[numbers[0]].group)
        and s.direction != "recompute"
    ]
    first = next((s for s in exchanges if s.phase == "dispatch"), None)
    if first is None:
        raise TraceError(
            f"the bytes of a row are those of the dispatch, but layer {layer} has "
            "none: capture with the hook"
        )
    return RoutedLayer(
        layer=layer,
        slot=slot,
        iteration=when,
        demand=demand,
        dropped=dropped if dropped.any() else None,
        unreported=next((f for f in forms if not f.known), DroppedForm.NONE),
        row_bytes=first.row_bytes,
        dtype=first.dtype,
        padded=_padded_rows(trace, first, experts),
        choices=choices,
        phases=tuple(p for p in PHASES if any(s.phase == p for s in exchanges)),
        source=min(
            source
            for s in (*exchanges, *(trace.sites[n] for n in numbers))
            for source in s.sources
        ),
    )


def _padded_rows(trace: Trace, dispatch: Site, experts: int) -> int:
    """Return the rows per expert that a padded layer sends; 0 if not padded."""
    if dispatch.wire == WireForm.DEMAND or trace.meta.dispatch != "padded":
        return 0
    width = len(trace.groups[dispatch.group].ranks)
    a_rank = sum(dispatch.constant) // width
    rows, rest = divmod(a_rank, dispatch.row_bytes * experts)
    if rest or not rows:
        raise TraceError(
            "a padded layer sends each expert as many rows, but layer "
            f"{dispatch.layer} sends {a_rank} bytes in rows of {dispatch.row_bytes} "
            f"for {experts} experts: place takes even padding"
        )
    return rows


def _joined(layer: RoutedLayer, ranks: int) -> RoutedLayer:
    """Sum the routing of neighboring ranks, to ``ranks`` ranks."""
    count, world, experts = layer.demand.shape
    if ranks < 1 or world % ranks:
        raise LayoutError(
            f"ranks are joined by equal parts, but {ranks} does not divide the "
            f"capture's {world}: choose a divisor of {world}"
        )
    a_rank = world // ranks

    def total(copies: Int32) -> Int32:
        parts = copies.reshape(count, ranks, a_rank, experts)
        return np.asarray(parts.sum(axis=2), np.int32)

    return replace(
        layer,
        demand=total(layer.demand),
        dropped=None if layer.dropped is None else total(layer.dropped),
        padded=layer.padded * a_rank,
        choices=None
        if layer.choices is None
        else layer.choices.reshape(count, ranks, -1, layer.choices.shape[-1]),
    )


def _by_iteration(layer: RoutedLayer, when: Int64) -> Int64:
    """Return the kept copies ``[n, R, E]`` in the given iterations; 0 if absent."""
    out = np.zeros((len(when), *layer.demand.shape[1:]), np.int64)
    _, to, of = np.intersect1d(when, layer.iteration, return_indices=True)
    out[to] = layer.kept[of]
    return out


def _versions(
    when: Int64, load: Float64, every: int
) -> list[tuple[int, Float64 | None]]:
    """Return each placement's first iteration, and the load ``[E]`` that it uses."""
    if not every:
        return [(0, load.sum(axis=0))]
    versions: list[tuple[int, Float64 | None]] = [(0, None)]
    for first in range(every, len(when), every):
        versions.append((int(when[first]), load[first - every : first].sum(axis=0)))
    return versions


def _steps(steps: Steps, ranks: int, iterations: npt.NDArray[Any]) -> Steps:
    """Select the steps of iterations, and join those of neighboring ranks."""
    keep = np.isin(steps.iteration, iterations)
    arrays = ("iteration", "loss", "tokens", "start", "end", "source", "kind_source")
    chosen = Steps(
        kind=tuple(k for k, kept in zip(steps.kind, keep, strict=True) if kept),
        **{name: getattr(steps, name)[keep] for name in arrays},
    )
    return chosen.joined(np.arange(steps.loss.shape[1]).reshape(ranks, -1).tolist())
