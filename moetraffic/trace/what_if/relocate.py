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

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import LayoutError, TraceError
from moetraffic.trace.choices import padded
from moetraffic.trace.model import (
    PHASES,
    PLACEMENT,
    ROUTING,
    DroppedForm,
    Group,
    Steps,
)
from moetraffic.trace.panel import ArrayPanel
from moetraffic.trace.routed import RoutedLayer, trace_of_routing
from moetraffic.trace.trace import Trace

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
    layers = routed_layers(trace, to.ranks)
    groups = [Group(kind="ep", ranks=tuple(ranks)) for ranks in to.groups]
    rows = []
    for layer in {r.layer for r in layers}:
        slots = [r for r in layers if r.layer == layer]
        when = slots[0].iteration
        load = np.zeros((len(when), *slots[0].demand.shape[1:]), np.int64)
        for slot in slots:
            _, into, of = np.intersect1d(when, slot.iteration, return_indices=True)
            load[into] += slot.kept(0, len(slot.iteration))[of]
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
    # steps of the iterations, those of neighboring ranks joined
    when = reduce(np.union1d, (layer.iteration for layer in layers))
    neighbors = np.arange(trace.meta.world).reshape(to.ranks, -1).tolist()
    keep = np.isin(trace.steps.iteration, when)
    columns: dict[str, Any] = {
        n: np.array(v)[keep] for n, v in vars(trace.steps).items()
    }
    columns["kind"] = tuple(columns["kind"].tolist())
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
        steps=Steps(**columns).joined(neighbors),
    )


def _versions(
    when: Int64, load: Float64, every: int
) -> list[tuple[int, Float64 | None]]:
    """Return each placement's first iteration, and the load ``[E]`` that it uses.

    A placement without a recorded iteration before it is the one before.
    """
    if not every:
        return [(0, load.sum(axis=0))]
    versions: list[tuple[int, Float64 | None]] = [(0, None)]
    for first in range(int(when[0]) + every, int(when[-1]) + 1, every):
        before = (when >= first - every) & (when < first)
        if before.any():
            versions.append((first, load[before].sum(axis=0)))
    return versions


# ---- routing of a trace -----------------------------------------------------------


def routed_layers(trace: Trace, ranks: int | None = None) -> list[RoutedLayer]:
    """Extract a trace's routing decisions of all ranks, by slot and layer.

    Evaluations, and iterations that not all ranks recorded, are omitted.  ``ranks``
    joins neighboring ranks, to as many.
    """
    meta = trace.meta
    if (meta.tp, meta.pp, meta.cp) != (1, 1, 1):
        raise TraceError(
            "every rank must have tokens of its own, but the capture has tp x pp x cp "
            f"= {meta.tp} x {meta.pp} x {meta.cp}: place takes captures of data and "
            "expert parallelism"
        )
    joined = meta.world if ranks is None else ranks
    if joined < 1 or meta.world % joined:
        raise LayoutError(
            f"ranks are joined by equal parts, but {joined} does not divide the "
            f"capture's {meta.world}: choose a divisor of {meta.world}"
        )
    routed = trace.find(operation=ROUTING, direction="forward")
    sites = [trace.sites[s] for s in np.unique(trace.occurrences.site[routed])]
    if not sites:
        raise TraceError(
            f"{trace.name} holds no routing, so where its tokens would go elsewhere is "
            "not known: capture with a router hook or annotation"
        )
    keys = sorted({(site.slot, site.layer) for site in sites})
    return [_routed(trace, layer, slot, joined) for slot, layer in keys]


def _routed(trace: Trace, layer: int, slot: int, joined: int) -> RoutedLayer:
    """Extract the routing of a layer and micro-batch, which has a site per group."""
    every = trace.occurrences
    where: dict[str, Any] = {"layer": layer, "slot": slot}
    routed = trace.find(operation=ROUTING, direction="forward", **where)
    numbers = np.unique(every.site[routed])
    sites = [trace.sites[n] for n in numbers]
    ranks = [rank for s in sites for rank in trace.groups[s.group].ranks]
    if sorted(ranks) != list(range(trace.meta.world)):
        raise TraceError(
            f"every rank routes once a layer and micro-batch, but layer {layer} has "
            f"the routing of ranks {sorted(ranks)} of {trace.meta.world}: place takes "
            "data- and expert-parallel captures"
        )
    calls = [trace.complete(routed[every.site[routed] == n]) for n in numbers]
    when = reduce(np.intersect1d, (every.iteration[of] for of in calls))
    calls = [of[np.isin(every.iteration[of], when)] for of in calls]

    def by_rank(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Join groups ``[n, W, ...]``, and neighbors, ``[n, R', neighbors, ...]``."""
        whole = np.concatenate(parts, axis=1)[:, np.argsort(ranks)]
        return whole.reshape(len(when), joined, -1, *whole.shape[2:])

    copies = [trace.demand(of) for of in calls]
    forms = sorted({s.dropped for s in sites})
    # padding does not depend on what was dropped
    ignored = trace.meta.dispatch == "padded" and DroppedForm.UNKNOWN in forms
    kept = copies if ignored else [trace.kept(of) for of in calls]
    demand, sent = (
        by_rank(part).sum(axis=2, dtype=np.int32) for part in (copies, kept)
    )
    dropped = demand - sent
    chosen, sampled = None, min(s.token_sample for s in sites)
    if sampled:
        ids = [trace.chosen(of)[:, :, :sampled] for of in calls]
        k = max(each.shape[3] for each in ids)
        chosen = by_rank([padded(each, sampled, k) for each in ids])
        chosen = chosen.reshape(len(when), joined, -1, k)
    key = layer, slot, sites[0].group
    exchanges = {
        s.phase: n
        for n, s in reversed([*enumerate(trace.sites)])
        if (s.layer, s.slot, s.group) == key and s.phase and s.direction != "recompute"
    }
    if "dispatch" not in exchanges:
        raise TraceError(
            f"the bytes of a row are those of the dispatch, but layer {layer} has "
            "none: capture with the hook"
        )
    dispatch = trace.sites[exchanges["dispatch"]]
    sources = [s.source for s in sites]
    sources += [trace.sites[n].source for n in exchanges.values()]
    return RoutedLayer(
        layer=layer,
        slot=slot,
        iteration=when,
        demand=ArrayPanel(demand),
        dropped=ArrayPanel(dropped) if dropped.any() else None,
        unreported=next((f for f in forms if not f.known), DroppedForm.NONE),
        row_bytes=dispatch.row_bytes,
        dtype=dispatch.dtype,
        padded=_padded_rows(trace, exchanges["dispatch"], sites[0].experts)
        * (trace.meta.world // joined),
        chosen=chosen,
        phases=tuple(phase for phase in PHASES if phase in exchanges),
        source=min(sources),
    )


def _padded_rows(trace: Trace, dispatch: int, experts: int) -> int:
    """Return the rows per expert that a padded layer sends; 0 if not padded."""
    if trace.meta.dispatch != "padded":
        return 0
    site = trace.sites[dispatch]
    calls = np.flatnonzero(trace.occurrences.site == dispatch)
    a_rank = int(trace.wire(calls[:1]).sum()) // int(trace.width[dispatch])
    rows, rest = divmod(a_rank, site.row_bytes * experts)
    if rest or not rows or len(np.unique(trace.occurrences.matrix[calls])) > 1:
        raise TraceError(
            "a padded layer sends each expert as many rows, but layer "
            f"{site.layer} sends {a_rank} bytes in rows of {site.row_bytes} "
            f"for {experts} experts: place takes even padding"
        )
    return rows
