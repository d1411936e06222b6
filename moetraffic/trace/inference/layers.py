"""Number the MoE layers that calls belong to, by the modules that make them.

A layer is a module of the model.  Layers have the numbers that routers report or, if
not all have a router, are counted from 0 on in the order of the model's definition.
Layers of a pipeline stage are counted after those of earlier stages, which torch's
pipelines state; in other pipelines only routers show the layers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
Module = tuple[int, int]  # rank, and number of the module


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Layers by rank and module, and the layers that routers report."""

    of_module: Mapping[Module, int] = field(default_factory=dict)
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
) -> Layers:
    """Number the layers of all ranks; ``modules`` are those of each rank."""
    named = [unit for unit in units if unit.dispatches]
    several = {(u.rank, u.module) for u in named if u.has_several}
    by_module: dict[Module, list[Unit]] = defaultdict(list)
    for unit in named:
        if unit.module and (unit.rank, unit.module) not in several:
            by_module[unit.rank, unit.module].append(unit)
    reported = _reported(by_module)
    remarks = [MODULES] if several else []
    models: dict[Model, list[int]] = defaultdict(list)
    for rank, module in by_module:
        models[rank, modules[rank][module - 1].model].append(module)
    for (rank, _), members in models.items():
        members.sort(key=lambda module: modules[rank][module - 1].order)
    peers = _pipeline_peers(every)
    # by model: its first layer
    first = (
        _after_stages(models, modules)
        if peers
        else _after_each_other(models, by_module)
    )
    counted = {
        (rank, module): first[rank, model] + place
        for (rank, model), members in models.items()
        for place, module in enumerate(members)
        if first
    }
    # routers may number the layers of a stage alone, as those of other stages
    of_rank: dict[int, set[int]] = defaultdict(set)
    for (rank, _), layer in reported.items():
        of_rank[rank].add(layer)
    local = any(of_rank[a] & of_rank[b] for a, b in peers if a != b)
    if not local and reported.keys() >= by_module.keys():
        return Layers(of_module=reported, remarks=tuple(remarks))
    if local or all(counted.get(m) == layer for m, layer in reported.items()):
        remarks += [STAGES] * bool(models and not first)
        of_router: dict[int, dict[int, int]] = defaultdict(dict)
        for (rank, module), layer in reported.items():
            of_router[rank][layer] = counted.get((rank, module), -1)
        return Layers(of_module=counted, of_router=of_router, remarks=tuple(remarks))
    remarks += [REPORTED] * bool(by_module)
    return Layers(of_module=reported, remarks=tuple(remarks))


def _reported(by_module: Mapping[Module, Sequence[Unit]]) -> dict[Module, int]:
    """Return the layer that a hook or router reports for each module, if the same."""
    known: dict[Module, int] = {}
    for module, units in by_module.items():
        layers = {unit.layer for unit in units if not unit.recomputed}
        if len(layers) == 1 and min(layers) >= 0:
            known[module] = layers.pop()
    # one layer is one module
    count = Counter((rank, layer) for (rank, _), layer in known.items())
    return {m: layer for m, layer in known.items() if count[m[0], layer] == 1}


def _after_each_other(
    models: Mapping[Model, Sequence[int]], by_module: Mapping[Module, Sequence[Unit]]
) -> dict[Model, int]:
    """Return the first layer of each model.

    Models that are called in one pass follow each other; others are copies, whose
    layers are counted from 0 on, such as one that trains and one that evaluates.
    """
    units = {
        (rank, model): [u for module in members for u in by_module[rank, module]]
        for (rank, model), members in models.items()
    }
    passes = {m: {(u.iteration, u.trained) for u in own} for m, own in units.items()}
    begin: dict[Model, int] = {}
    for model in sorted(models, key=lambda m: min(u.calls[0] for u in units[m])):
        ends = [
            start + len(models[before])
            for before, start in begin.items()
            if before[0] == model[0] and passes[before] & passes[model]
        ]
        begin[model] = max(ends, default=0)
    return begin


def _after_stages(
    models: Mapping[Model, Sequence[int]],
    modules: Mapping[int, Sequence[CallingModule]],
) -> dict[Model, int]:
    """Return the first layer of each model of a pipeline; none if it is unknown."""
    stages = {
        (rank, model): modules[rank][members[0] - 1].stage
        for (rank, model), members in models.items()
    }
    if min(stages.values(), default=-1) < 0:
        return {}
    depth: dict[int, int] = defaultdict(int)
    for model, stage in stages.items():
        depth[stage] = max(depth[stage], len(models[model]))
    return {
        model: sum(length for earlier, length in depth.items() if earlier < stage)
        for model, stage in stages.items()
    }


def _pipeline_peers(every: Sequence[Calls]) -> set[tuple[int, int]]:
    """Return the pairs of ranks that send to each other.

    Groups that also send in autograd's backward pass are no pipeline (ring attention).
    """
    pairs, rings = set[tuple[int, int, int]](), set[int]()
    for calls in every:
        sent = calls.between_stages
        inside = calls.table["site"][sent & calls.backward].tolist()
        rings |= {calls.sites[number].group for number in inside}
        for site in calls.sites:
            if site.peers != (-1, -1):
                ranks = calls.groups[site.group].ranks
                source, destination = (
                    ranks[p] if p >= 0 else calls.rank for p in site.peers
                )
                pairs.add((source, destination, site.group))
    return {(a, b) for a, b, group in pairs if group not in rings}
