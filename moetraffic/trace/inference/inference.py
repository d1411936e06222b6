"""Infer the steps, layers and phases of a run that was not annotated.

1. Number the steps where neither the program nor an optimizer marked them (``period``).
2. Match gradients with their forward calls (``gradients``), and find dispatches and
   combines among the calls of each module (``units``).
3. Make evaluations iterations of their own (``evaluations``), and number layers
   (``layers``, ``routers``).

Annotations are kept.  The meta's ``schedule`` states what was inferred and what is
unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.trace.merge.rank_record import RANK_STEP, CallingModule, Record
from moetraffic.trace.model import (
    ALL_TO_ALL,
    ROUTING,
    Site,
    SiteNumbers,
    Source,
)

from .agreement import agree
from .calls import Calls, gather_calls, time_span
from .evaluations import (
    annotated_units,
    trained_units,
    unclear_iterations,
    with_evaluations,
)
from .gradients import forward_calls
from .layers import Layers, number_layers
from .period import number_steps
from .routers import (
    with_annotated_layers,
    with_groups,
    with_router_layers,
    without_read_routings,
)
from .units import COUNTS, Unit, find_roles, gather_units

LONGEST = 2000  # longest text of the remarks, in characters
INTEGERS = ("int16", "int32", "int64", "uint16", "uint32", "uint64")
GRADIENT = {"dispatch": "dispatch_grad", "combine": "combine_grad", "": ""}
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


@dataclass
class _Names:
    """Numbered names, and the name of each call by rank, -1 for none."""

    names: dict[Name, int] = field(default_factory=dict)
    of_call: dict[int, Int64] = field(default_factory=dict)

    def number(self, name: Name) -> int:
        return self.names.setdefault(name, len(self.names))


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
    exchanged = any(s.operation == ALL_TO_ALL for s in record.sites)
    if (record.calls["iteration"] < 0).any():
        record, remark = _with_numbered_steps(record)
        remarks.append(remark)
    if exchanged:
        record, more = _with_names(record, split=split)
        remarks += more
    schedule = "; ".join(r for r in dict.fromkeys(remarks) if r)[:LONGEST]
    return replace(with_groups(record), meta=replace(record.meta, schedule=schedule))


def _with_numbered_steps(record: Record) -> tuple[Record, str]:
    """Number the steps of a run without marks, with a remark."""
    every = [gather_calls(record, rank) for rank in record.ranks]
    numbered = number_steps(every)
    if numbered is None:
        return record, "steps could not be inferred from the order of the calls"
    table, rows = record.calls.copy(), list[Any]()
    for calls in every:
        steps, whole = numbered[calls.rank]
        table["iteration"][calls.place] = steps
        # what precedes the first call of a pass is set-up, and no part of a step
        of_pass = calls.exchange | calls.routing | calls.backward
        set_up = np.arange(len(steps)) < np.argmax(of_pass)
        for number in range(int(steps.max(initial=-1)) + whole):
            own = calls.table[(steps == number) & ~set_up]
            made = (Source.INFERRED, "train", calls.rank)
            rows.append((number, np.nan, -1, *time_span(own), *made))
    record = replace(record, calls=table, steps=np.array(rows, RANK_STEP))
    return record, "steps inferred from the period of the calls"


def _with_names(record: Record, *, split: bool) -> tuple[Record, list[str]]:
    """Infer evaluations, phases and layers, with remarks."""
    every = [gather_calls(record, rank) for rank in record.ranks]
    modules = {rank: r.modules for rank, r in record.ranks.items()}
    partner = {calls.rank: forward_calls(calls) for calls in every}
    units, annotated, trained = list[Unit](), list[Unit](), dict[int, bool]()
    unclear = set[int]()  # iterations
    for calls in every:
        own = partner[calls.rank]
        gradient = np.full(len(own), len(own))
        linked = np.flatnonzero(own >= 0)[::-1]
        gradient[own[linked]] = linked  # the first one of each
        units += gather_units(calls, gradient)
    routed = any(s.operation == ROUTING for s in record.sites)
    mixture = bool(record.meta.experts or record.meta.workload or routed)
    why_not = find_roles(every, units, mixture=mixture)
    for calls in every:
        stated = annotated_units(calls)
        own_units = [u for u in units if u.rank == calls.rank and u.dispatches]
        annotated += stated
        facts = partner[calls.rank], modules[calls.rank]
        trained |= trained_units(calls, own_units + stated, *facts)
        ended = record.steps["iteration"][record.steps["rank"] == calls.rank]
        unclear |= unclear_iterations(own_units, *facts, trained) & set(ended.tolist())
    named = [unit for unit in units if unit.dispatches]
    if split and len(record.steps):
        record = with_evaluations(record, every, named + annotated, trained)
    if not any(calls.bare.any() for calls in every):
        return record, _evaluations_inferred(record)
    layers = number_layers(every, modules, named, trained)
    clear = [unit for unit in named if unit.iteration not in unclear]
    if (record.calls["iteration"] < 0).any():
        names = _name_units(every, modules, [], layers)
        layers = replace(layers, remarks=(STEPS,))
    else:
        names = _name_units(every, modules, clear, layers)
    _name_counts(every, names)
    _name_gradients(every, partner, names)
    remarks = [text for text in (why_not, *layers.remarks) if text]
    if any(
        calls.where([not s.direction for s in calls.sites]).any() for calls in every
    ):
        remarks.append(DIRECTIONS)
    if unclear:
        remarks.append(UNCLEAR)
    if not remarks and _unplaced(every, units):
        remarks.append(UNPLACED)
    if differ := agree(every, names.of_call):
        remarks.append(
            f"{differ} all-to-all calls have no phase: their members' calls imply "
            "different ones"
        )
    remarks += _evaluations_inferred(record)
    remarks = [*_kinds_named(every, names), *remarks]
    _name_modules(every, modules, names)
    record = with_router_layers(record, layers.of_router)
    return _with_sites(record, every, names), remarks


def _evaluations_inferred(record: Record) -> list[str]:
    """Describe how many evaluations are inferred, as a remark."""
    steps = record.steps
    inferred = (steps["kind"] == "evaluation") & (steps["source"] == Source.INFERRED)
    count = len(np.unique(steps["iteration"][inferred]))
    text = f"evaluations inferred from passes without a gradient: {count}"
    return [text] if count else []


def _unplaced(every: Sequence[Calls], units: Sequence[Unit]) -> bool:
    """Return whether a forward call without annotation is of no unit."""
    placed = {(unit.rank, call) for unit in units for call in unit.calls}
    return any(
        (calls.rank, call) not in placed
        for calls in every
        for call in np.flatnonzero(calls.bare & ~calls.backward).tolist()
    )


def _name_units(
    every: Sequence[Calls],
    modules: Mapping[int, Sequence[CallingModule]],
    units: Sequence[Unit],
    layers: Layers,
) -> _Names:
    """Name the forward and recomputed calls of all units."""
    names = _Names()
    for calls in every:
        names.of_call[calls.rank] = np.full(len(calls.table), -1)
    for unit in units:
        layer = layers.layer(unit)
        if layer < 0 or unit.has_several:
            continue
        number = unit.module
        module = modules[unit.rank][number - 1] if number else CallingModule()
        place = Name(layer=layer, module=module.name, stage=module.stage)
        for call, role in zip(unit.calls, unit.roles, strict=True):
            if role.phase or role.label:
                name = replace(place, phase=role.phase, label=role.label)
                names.of_call[unit.rank][call] = names.number(name)
    return names


def _name_counts(every: Sequence[Calls], names: _Names) -> None:
    """Name exchanges of counts before a dispatch that the program annotates.

    They are even all-to-alls of integers of the same ranks, of which the next other
    all-to-all is the dispatch.
    """
    for calls in every:
        of_call, site_of = names.of_call[calls.rank], calls.table["site"]
        integer = calls.where([s.dtype in INTEGERS for s in calls.sites])
        following: Site | None = None
        for call in np.flatnonzero(calls.exchange)[::-1].tolist():
            site = calls.sites[site_of[call]]
            if not (integer[call] and calls.even[call] and calls.bare[call]):
                following = site
            elif (
                following is not None
                and following.phase == "dispatch"
                and following.layer >= 0
                and following.direction == site.direction
                and following.group == site.group
                and of_call[call] < 0
            ):
                name = Name(label=COUNTS, layer=following.layer)
                of_call[call] = names.number(name)


def _name_modules(
    every: Sequence[Calls],
    modules: Mapping[int, Sequence[CallingModule]],
    names: _Names,
) -> None:
    """Name the module of calls of which nothing else is known."""
    for calls in every:
        of_call, module_call = names.of_call[calls.rank], calls.table["module_call"]
        for call in np.unique(module_call[module_call > 0]).tolist():
            module = modules[calls.rank][(call >> 1) - 1]
            number = names.number(Name(module=module.name, stage=module.stage))
            of_call[(module_call == call) & (of_call < 0)] = number


def _name_gradients(
    every: Sequence[Calls], partner: Mapping[int, Int64], names: _Names
) -> None:
    """Name gradients as the calls that they are of."""
    listed = list(names.names)
    for calls in every:
        of_call = names.of_call[calls.rank]
        own = np.flatnonzero((partner[calls.rank] >= 0) & calls.bare)
        for call in own.tolist():
            number = int(of_call[partner[calls.rank][call]])
            site = calls.sites[calls.table["site"][partner[calls.rank][call]]]
            if number >= 0:
                name = listed[number]
            elif site.phase and site.layer >= 0:
                name = Name(phase=site.phase, layer=site.layer)
            else:
                continue
            name = replace(name, phase=GRADIENT[name.phase])
            of_call[call] = names.number(name)


def _kinds_named(every: Sequence[Calls], names: _Names) -> list[str]:
    """Describe how many all-to-alls have an inferred phase, as remarks.

    Each member of a group counts for its share of a call.
    """
    listed, kinds = list(names.names), dict[str, None]()
    known = np.array([n.layer >= 0 for n in listed] + [False], bool)
    named = left = 0.0
    for calls in every:
        share = np.array([1 / len(calls.groups[s.group].ranks) for s in calls.sites])
        shares = share[calls.table["site"]]
        of_call = names.of_call[calls.rank]
        named += float(shares[calls.bare & known[of_call]].sum())
        left += float(shares[calls.bare & ~known[of_call]].sum())
        for number in np.unique(of_call[known[of_call]]).tolist():
            kinds.setdefault(listed[number].phase or listed[number].label)
    remarks = []
    if named:
        remarks.append(
            f"{', '.join(kinds)} inferred from order and bytes of the all-to-alls"
        )
    if left:
        total = max(1, round(named + left))
        remarks.append(
            f"phase unknown for {max(1, round(left))} of {total} all-to-alls without "
            "annotation"
        )
    return remarks


def _with_sites(record: Record, every: Sequence[Calls], names: _Names) -> Record:
    """Give calls the sites with their inferred names."""
    sites, table = SiteNumbers(record.sites), record.calls.copy()
    listed = list(names.names)
    for calls in every:
        current = table["site"][calls.place]
        pairs, place = np.unique(
            np.stack([current, names.of_call[calls.rank]]), axis=1, return_inverse=True
        )
        numbers = []
        for number, name_number in pairs.T.tolist():
            if name_number < 0:
                numbers.append(number)
                continue
            name, site = listed[name_number], sites.sites[number]
            stated = site.layer >= 0 and site.source == Source.ANNOTATED
            site = replace(site, module=name.module, stage=name.stage)
            if name.layer >= 0 and not site.phase:
                site = replace(
                    site,
                    phase=name.phase,
                    layer=site.layer if stated else name.layer,
                    label=site.label or name.label,
                    source=Source.INFERRED,
                )
            numbers.append(sites.add(site))
        table["site"][calls.place] = np.array(numbers, np.int64)[place.reshape(-1)]
    return replace(record, calls=table, sites=tuple(sites.sites))
