"""Number the MoE layers that calls belong to, by the modules that make them.

A layer is a module of the model.  Layers have the numbers that routers report or, if
not all have a router, are counted from 0 on in the order of the model's definition.
Layers of a pipeline stage are counted after those of earlier stages: torch's pipelines
state the stage, and in other programs it follows from what ranks send each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from moetraffic.arrays import Bool
from moetraffic.trace.merge.rank_record import CallingModule

from .calls import Calls
from .units import Unit

MODULES = (
    "layers are unknown where no module of the model makes the calls, or one call of a "
    "module makes several dispatches (report them with capture.at)"
)
STAGES = (
    "layers are unknown: it is unclear which stages of the pipeline each rank computes "
    "(report them with capture.at)"
)
REPORTED = "layers are unknown where no router reports them, as others do"

Model = tuple[int, int]  # rank, and number of the model in its process


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Layers by rank and module, and the layers that routers report."""

    of_module: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """By rank and number of the module."""
    of_router: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    """By rank and reported layer, where they differ; -1: unknown."""
    remarks: tuple[str, ...] = ()

    def layer(self, unit: Unit) -> int:
        """Return the layer of a unit, -1 if it is unknown."""
        if unit.layer >= 0 and not unit.linked:
            return unit.layer
        if unit.layer >= 0:
            return self.of_router.get(unit.rank, {}).get(unit.layer, unit.layer)
        return self.of_module.get((unit.rank, unit.module), -1)


def number_layers(
    every: Sequence[Calls],
    modules: Mapping[int, Sequence[CallingModule]],
    units: Sequence[Unit],
    trained: Mapping[int, bool],
) -> Layers:
    """Number the layers of all ranks.

    ``modules`` are those of each rank; ``trained`` is whether each unit, by its ``id``,
    is part of a training pass: models that train and evaluate are counted apart.
    """
    named = [unit for unit in units if unit.dispatches]
    several = {(u.rank, u.module) for u in named if u.has_several}
    by_module: dict[tuple[int, int], list[Unit]] = defaultdict(list)
    for unit in named:
        if unit.module and (unit.rank, unit.module) not in several:
            by_module[unit.rank, unit.module].append(unit)
    reported = _reported(by_module, units)
    remarks = [MODULES] if several else []
    # modules of each model in the order of its definition
    models: dict[Model, list[int]] = defaultdict(list)
    for rank, module in by_module:
        models[rank, modules[rank][module - 1].model].append(module)
    for (rank, _), members in models.items():
        members.sort(key=lambda m: modules[rank][m - 1].order)
    transfers = {c.rank: _transfers(c) for c in every}
    piped = any(transfer.any() for transfer in transfers.values())
    first: Mapping[Model, int] | None
    if not piped:
        first = _after_each_other(models, by_module, trained)
    else:
        first = _after_stages(models, modules, transfers, every)
    local = piped and _overlap(every, transfers, reported)
    counted = {}
    if first is not None:
        counted = {
            (rank, module): first[rank, model] + place
            for (rank, model), members in models.items()
            for place, module in enumerate(members)
        }
    if not local and reported.keys() >= by_module.keys():
        return Layers(of_module=reported, remarks=tuple(remarks))
    if local or all(counted.get(m) == layer for m, layer in reported.items()):
        if first is None and models:
            remarks.append(STAGES)
        of_router: dict[int, dict[int, int]] = defaultdict(dict)
        for (rank, module), layer in reported.items():
            of_router[rank][layer] = counted.get((rank, module), -1)
        return Layers(of_module=counted, of_router=of_router, remarks=tuple(remarks))
    if by_module:
        remarks.append(REPORTED)
    return Layers(of_module=reported, remarks=tuple(remarks))


def _reported(
    by_module: Mapping[tuple[int, int], Sequence[Unit]], units: Sequence[Unit]
) -> dict[tuple[int, int], int]:
    """Return the layer that a hook or router reports for each module, if the same."""
    layers: dict[tuple[int, int], set[int]] = defaultdict(set)
    for unit in units:
        if (unit.rank, unit.module) in by_module and not unit.recomputed:
            layers[unit.rank, unit.module].add(unit.layer)
    known = {m: next(iter(n)) for m, n in layers.items() if len(n) == 1 and min(n) >= 0}
    # one layer is one module
    counts: dict[tuple[int, int], int] = defaultdict(int)
    for (rank, _), layer in known.items():
        counts[rank, layer] += 1
    return {m: n for m, n in known.items() if counts[m[0], n] == 1}


def _after_each_other(
    models: Mapping[Model, Sequence[int]],
    by_module: Mapping[tuple[int, int], Sequence[Unit]],
    trained: Mapping[int, bool],
) -> dict[Model, int]:
    """Return the first layer of each model.

    Models that are called in one iteration follow each other; others are copies, whose
    layers are counted from 0 on.
    """
    begin: dict[Model, int] = {}
    for rank in sorted({rank for rank, _ in models}):
        own = [model for model in models if model[0] == rank]
        passes = {
            model: {
                (unit.iteration, trained[id(unit)])
                for module in models[model]
                for unit in by_module[rank, module]
            }
            for model in own
        }
        calls = {m: min(by_module[rank, n][0].calls[0] for n in models[m]) for m in own}
        own.sort(key=calls.__getitem__)
        for place, model in enumerate(own):
            before = [m for m in own[:place] if passes[m] & passes[model]]
            ends = (begin[m] + len(models[m]) for m in before)
            begin[model] = max(ends, default=0)
    return begin


def _after_stages(
    models: Mapping[Model, Sequence[int]],
    modules: Mapping[int, Sequence[CallingModule]],
    transfers: Mapping[int, Bool],
    every: Sequence[Calls],
) -> dict[Model, int] | None:
    """Return the first layer of each model of a pipeline, None if it is unknown."""
    stages = {
        (rank, model): modules[rank][members[0] - 1].stage
        for (rank, model), members in models.items()
    }
    if min(stages.values(), default=0) < 0:
        before = _stage_before(every, transfers)
        if before is None or len(models) > len({rank for rank, _ in models}):
            return None
        stages = {(r, m): sum(1 for _ in _earlier(r, before)) for r, m in models}
    depth: dict[int, int] = defaultdict(int)
    for model, stage in stages.items():
        depth[stage] = max(depth[stage], len(models[model]))
    return {
        model: sum(length for earlier, length in depth.items() if earlier < stage)
        for model, stage in stages.items()
    }


def _overlap(
    every: Sequence[Calls],
    transfers: Mapping[int, Bool],
    reported: Mapping[tuple[int, int], int],
) -> bool:
    """Return whether ranks that send to each other report the same layers."""
    layers: dict[int, set[int]] = defaultdict(set)
    for (rank, _), layer in reported.items():
        layers[rank].add(layer)
    return any(
        bool(layers[calls.rank] & layers[peer])
        for calls in every
        for peer in _peers(calls, transfers[calls.rank])
    )


def _peers(calls: Calls, transfers: Bool) -> set[int]:
    """Return the ranks that a rank sends to, or receives from."""
    sites = np.unique(calls.table["site"][transfers]).tolist()
    ends = {end for site in sites for end in _ends(calls, site)}
    return ends - {calls.rank, -1}


def _earlier(rank: int, before: dict[int, int]) -> Iterator[int]:
    """Yield the ranks of the pipeline stages before a rank's, the nearest first."""
    at = before.get(rank)
    while at is not None:
        yield at
        at = before.get(at)


def _stage_before(
    every: Sequence[Calls], transfers: Mapping[int, Bool]
) -> dict[int, int] | None:
    """Return each rank's preceding pipeline stage rank.

    None if their order is cyclic, a source is unknown, or a rank computes several
    stages: it then receives activations from where gradients come from.
    """
    before: dict[int, int] = {}
    for calls in every:
        for at in np.flatnonzero(transfers[calls.rank])[:1].tolist():
            # the first transfer of a rank sends activations on, or receives them
            source, destination = _ends(calls, calls.table["site"][at])
            if source < 0:
                return None
            if destination == calls.rank:
                before[calls.rank] = source
    known = {c.rank for c in every}
    for rank in before:
        seen, at = {rank}, before.get(rank)
        while at is not None:
            if at in seen or at not in known:
                return None
            seen.add(at)
            at = before.get(at)
    for calls in every:
        mine = transfers[calls.rank]
        if not _computes_one_stage(calls, mine, before.get(calls.rank, -1)):
            return None
    return before


def _transfers(calls: Calls) -> Bool:
    """Return a mask of the transfers of activations and gradients, ``[n]``.

    Those that set up the communicators go in both directions before the first forward
    pass.  They are of another type than what the same ranks transfer later.  Groups
    that also transfer in autograd's backward pass are no pipeline (ring attention).
    """
    site, between = calls.table["site"], calls.between_stages
    started = np.logical_or.accumulate(calls.exchange)
    later = set(site[between & started].tolist())
    peers = {(calls.sites[n].group, calls.sites[n].peers) for n in later}
    inside = np.unique(site[between & calls.backward]).tolist()
    rings = {calls.sites[n].group for n in inside}
    others = [
        (n not in later and (s.group, s.peers) in peers) or s.group in rings
        for n, s in enumerate(calls.sites)
    ]
    return between & ~calls.where(others)


def _ends(calls: Calls, number: int) -> tuple[int, int]:
    """Return the source and destination ranks of a site's transfers, -1 if unknown."""
    site = calls.sites[number]
    ranks = calls.groups[site.group].ranks
    source, destination = (ranks[p] if p >= 0 else -1 for p in site.peers)
    return source, destination


def _computes_one_stage(calls: Calls, transfers: Bool, before: int) -> bool:
    """Return whether forward passes follow what the preceding stage sends, alone.

    ``transfers`` is the result of :func:`_transfers`; ``before`` is the rank of that
    stage, -1 for the first stage.
    """
    sources: set[int] = set()
    for at in np.flatnonzero(transfers | calls.exchange).tolist():
        if transfers[at]:
            source, destination = _ends(calls, calls.table["site"][at])
            if destination == calls.rank:
                sources.add(source)
            continue
        if len(sources) == 1 and bool(calls.backward[at]) == (before in sources):
            return False
        sources.clear()
    return True
