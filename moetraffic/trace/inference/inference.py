"""Infer the steps, layers and phases of a run that was not annotated.

1. Number the steps where neither the program nor an optimizer marked them (``steps``).
2. Match gradients with their forward calls (``gradients``), and find dispatches and
   combines among the calls of each module (``units``).
3. Make evaluations iterations of their own (``evaluations``), and number layers
   (``layers``, ``routers``).

Annotations are kept.  The meta's ``schedule`` states what was inferred and what is
unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.trace.merge.rank_record import CallingModule, Record
from moetraffic.trace.model import ALL_TO_ALL, ROUTING, Site, SiteNumbers, Source

from .agreement import agree
from .calls import Calls, gather_calls
from .evaluations import annotated_units, classify_passes, with_evaluations
from .gradients import forward_calls
from .layers import Layers, number_layers
from .routers import (
    with_annotated_layers,
    with_groups,
    with_router_layers,
    without_read_routings,
)
from .steps import with_numbered_steps
from .units import COUNTS, Unit, find_roles, gather_units

LONGEST = 2000  # longest text of the remarks, in characters
INTEGERS = ("int16", "int32", "int64", "uint16", "uint32", "uint64")
GRADIENT = {"dispatch": "dispatch_grad", "combine": "combine_grad", "": ""}
INFERRED = "phases inferred from order and bytes of the all-to-alls"
DIRECTIONS = "phases are unknown where the direction of a call is unknown"
STEPS = "layers are unknown where steps are"
UNCLEAR = (
    "phases are unknown in iterations with forward passes that have no backward pass"
)
UNPLACED = (
    "phases are unknown where no module, router or annotation shows the layer of a "
    "call (register the router's class with capture.router)"
)


@dataclass(frozen=True, kw_only=True)
class Name:
    """What is inferred of a call; without a layer, the module alone is known."""

    phase: str = ""
    label: str = ""
    layer: int = -1
    module: str = ""
    stage: int = -1


class Names:
    """Numbered names, and the number of each call's name by rank, -1 for none."""

    def __init__(self, every: Sequence[Calls]) -> None:
        self.listed: list[Name] = []
        self._numbers: dict[Name, int] = {}
        self.of_call = {calls.rank: np.full(len(calls.table), -1) for calls in every}

    def number(self, name: Name) -> int:
        """Return the number of a name, a new one for a new name."""
        if name not in self._numbers:
            self._numbers[name] = len(self.listed)
            self.listed.append(name)
        return self._numbers[name]


def infer_schedule(record: Record, *, split: bool = True) -> Record:
    """Number unmarked steps and infer the phases of unannotated all-to-alls.

    The calls stay in the same order; the ``schedule`` of the metadata states what was
    inferred.  ``split``: evaluations within training iterations become their own.
    """
    record, unmatched = with_annotated_layers(without_read_routings(record))
    remarks = [unmatched]
    if record.meta.every > 1 and not len(record.steps):
        # no step ended: then all calls are recorded
        record = replace(record, meta=replace(record.meta, every=1))
    if (record.calls["iteration"] < 0).any():
        every = [gather_calls(record, rank) for rank in record.ranks]
        record, remark = with_numbered_steps(record, every)
        remarks.append(remark)
    if any(site.operation == ALL_TO_ALL for site in record.sites):
        record, more = _with_names(record, split=split)
        remarks += more
    schedule = "; ".join(r for r in dict.fromkeys(remarks) if r)[:LONGEST]
    return replace(with_groups(record), meta=replace(record.meta, schedule=schedule))


def _with_names(record: Record, *, split: bool) -> tuple[Record, list[str]]:
    """Infer evaluations, phases and layers, with remarks."""
    every = [gather_calls(record, rank) for rank in record.ranks]
    modules = {rank: r.modules for rank, r in record.ranks.items()}
    # Step 1: dispatches and combines of each module, and their gradients
    partner = {calls.rank: forward_calls(calls) for calls in every}
    units = list[Unit]()
    for calls in every:
        own = partner[calls.rank]
        gradient = np.full(len(own), len(own))
        linked = np.flatnonzero(own >= 0)[::-1]
        gradient[own[linked]] = linked  # the first one of each
        units += gather_units(calls, gradient)
    routed = any(s.operation == ROUTING for s in record.sites)
    mixture = bool(record.meta.experts or record.meta.workload or routed)
    why_not = find_roles(every, units, mixture=mixture)
    named = [unit for unit in units if unit.dispatches]
    # Step 2: evaluations
    annotated, unclear = list[Unit](), set[int]()  # iterations
    for calls in every:
        stated, facts = (
            annotated_units(calls),
            (partner[calls.rank], modules[calls.rank]),
        )
        own_units = [unit for unit in named if unit.rank == calls.rank]
        ended = record.steps["iteration"][record.steps["rank"] == calls.rank]
        unclear |= classify_passes(calls, own_units, *facts) & {*ended.tolist()}
        classify_passes(calls, own_units + stated, *facts)
        annotated += stated
    if split and len(record.steps):
        record = with_evaluations(record, every, named + annotated)
    evaluated = _evaluations_inferred(record)
    if not any(calls.bare.any() for calls in every):
        return record, evaluated
    # Step 3: layers and names
    layers = number_layers(every, modules, named)
    names = Names(every)
    if (record.calls["iteration"] < 0).any():
        layers = replace(layers, remarks=(STEPS,))
    else:
        clear = [unit for unit in named if unit.iteration not in unclear]
        _name_units(clear, modules, layers, names)
    for calls in every:
        _name_counts(calls, names)
        _name_gradients(calls, partner[calls.rank], names)
    remarks = [text for text in (why_not, *layers.remarks) if text]
    remarks += [DIRECTIONS] * any(calls.undirected.any() for calls in every)
    remarks += [UNCLEAR] * bool(unclear)
    if not remarks and _unplaced(every, units):
        remarks.append(UNPLACED)
    if differ := agree(every, names.of_call):
        remarks.append(
            f"{differ} all-to-all calls have no phase: their members' calls imply "
            "different ones"
        )
    named_any = any(name.layer >= 0 for name in names.listed)
    remarks = [INFERRED] * named_any + remarks + evaluated
    for calls in every:
        _name_modules(calls, modules[calls.rank], names)
    record = with_router_layers(record, layers.of_router)
    return _with_named_sites(record, every, names), remarks


def _evaluations_inferred(record: Record) -> list[str]:
    """Describe how many evaluations are inferred, as a remark."""
    steps = record.steps
    inferred = (steps["kind"] == "evaluation") & (steps["source"] == Source.INFERRED)
    count = len(np.unique(steps["iteration"][inferred]))
    text = f"evaluations inferred from passes without a gradient: {count}"
    return [text] if count else []


def _unplaced(every: Sequence[Calls], units: Sequence[Unit]) -> bool:
    """Return whether a forward call without annotation is of no unit."""
    placed: dict[int, set[int]] = defaultdict(set)
    for unit in units:
        placed[unit.rank].update(unit.calls)
    return any(
        not placed[calls.rank].issuperset(
            np.flatnonzero(calls.bare & ~calls.backward).tolist()
        )
        for calls in every
    )


def _name_units(
    units: Sequence[Unit],
    modules: Mapping[int, Sequence[CallingModule]],
    layers: Layers,
    names: Names,
) -> None:
    """Name the forward and recomputed calls of all units."""
    for unit in units:
        layer = layers.layer(unit)
        if layer < 0 or unit.has_several:
            continue
        module = CallingModule()
        if unit.module:
            module = modules[unit.rank][unit.module - 1]
        place = Name(layer=layer, module=module.name, stage=module.stage)
        for call, role in zip(unit.calls, unit.roles, strict=True):
            if role.phase or role.label:
                name = replace(place, phase=role.phase, label=role.label)
                names.of_call[unit.rank][call] = names.number(name)


def _name_counts(calls: Calls, names: Names) -> None:
    """Name exchanges of counts before a dispatch that the program annotates.

    They are even all-to-alls of integers of the same ranks, of which the next other
    all-to-all is the dispatch.
    """
    of_call, site_of = names.of_call[calls.rank], calls.table["site"]
    counts = calls.where([s.dtype in INTEGERS for s in calls.sites])
    counts &= calls.even & calls.bare
    following = Site(group=-1, operation=ALL_TO_ALL)
    for call in np.flatnonzero(calls.exchange)[::-1].tolist():
        site = calls.sites[site_of[call]]
        if not counts[call]:
            following = site
        elif (
            following.phase == "dispatch"
            and following.layer >= 0
            and (following.group, following.direction) == (site.group, site.direction)
            and of_call[call] < 0
        ):
            name = Name(label=COUNTS, layer=following.layer)
            of_call[call] = names.number(name)


def _name_gradients(calls: Calls, partner: Int64, names: Names) -> None:
    """Name gradients as the calls that they are of."""
    of_call = names.of_call[calls.rank]
    for call in np.flatnonzero((partner >= 0) & calls.bare).tolist():
        number = int(of_call[partner[call]])
        site = calls.sites[calls.table["site"][partner[call]]]
        name = Name(phase=site.phase, layer=site.layer if site.phase else -1)
        if number >= 0:
            name = names.listed[number]
        if name.layer >= 0:
            name = replace(name, phase=GRADIENT[name.phase])
            of_call[call] = names.number(name)


def _name_modules(calls: Calls, modules: Sequence[CallingModule], names: Names) -> None:
    """Name the module of calls of which nothing else is known."""
    of_call, number = names.of_call[calls.rank], calls.table["module_call"] >> 1
    for place in np.unique(number[number > 0]).tolist():
        module = modules[place - 1]
        name = names.number(Name(module=module.name, stage=module.stage))
        of_call[(number == place) & (of_call < 0)] = name


def _with_named_sites(record: Record, every: Sequence[Calls], names: Names) -> Record:
    """Give calls the sites with their inferred names."""
    sites, table = SiteNumbers(record.sites), record.calls.copy()

    def named(number: int, name_number: int) -> int:
        site = sites.sites[number]
        if name_number < 0:
            return number
        name = names.listed[name_number]
        site = replace(site, module=name.module, stage=name.stage)
        if name.layer >= 0 and not site.phase:
            stated = site.layer >= 0 and site.source == Source.ANNOTATED
            site = replace(
                site,
                phase=name.phase,
                layer=site.layer if stated else name.layer,
                label=site.label or name.label,
                source=Source.INFERRED,
            )
        return sites.add(site)

    for calls in every:
        pairs, row = np.unique(
            np.stack([table["site"][calls.place], names.of_call[calls.rank]]),
            axis=1,
            return_inverse=True,
        )
        new = [named(*pair) for pair in pairs.T.tolist()]
        table["site"][calls.place] = np.array(new, np.int64)[row.reshape(-1)]
    return replace(record, calls=table, sites=tuple(sites.sites))
