"""Infer phase, layer and label of all-to-alls, consistently on all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Int64

from .calls import Calls
from .gradients import Reading
from .layers import find_layers
from .numbering import Shared
from .period import NumberedSteps
from .phases import Unit, experts_sorts
from .programs import EXCHANGE, gather_programs

Name = tuple[str, int, str]  # phase, layer, label
UNNAMED: Name = ("", -1, "")


@dataclass(frozen=True, kw_only=True)
class Naming:
    """Inferred phase, layer and label of each call, by rank."""

    names: tuple[Name, ...]
    of_call: dict[int, Int64]  # by rank: [n] index into names, -1: as annotated
    remarks: tuple[str, ...]  # descriptions of unknown names, a sentence each


def find_names(
    every: Sequence[Calls],
    numbered: Mapping[int, NumberedSteps],
    *,
    mixture: bool,
    steps_known: bool,
) -> Naming:
    """Infer phase, layer and label of the all-to-alls of all ranks.

    ``mixture``: the run is known to have experts; ``steps_known``: ``numbered`` are not
    all calls as one step.
    """
    programs = gather_programs(every, numbered)
    experts = experts_sorts(programs, mixture=mixture)
    readings = [Reading(p, experts) for p in programs]
    remarks = [experts.why_not] if experts.why_not else []
    if not all(p.order for p in programs):
        remarks.append(
            "phases are inferred from the order of a step's all-to-alls, which is "
            "unknown if several threads, or an unknown one, issue them"
        )
    layers = find_layers(every, readings, steps_known=steps_known)
    remarks += layers.remarks
    names: dict[Name, int] = {UNNAMED: 0}
    of_call = {c.rank: np.full(len(c.table), -1, np.int64) for c in every}
    for reading in readings:
        program = reading.program
        by_layers: dict[tuple[int, ...], Int64] = {}
        for rank, place in zip(program.rank.tolist(), program.place, strict=True):
            mine = layers.of_units(reading, rank)
            if mine not in by_layers:
                of_unit = dict(zip(reading.units, mine, strict=True))
                found = [_name(reading, at, of_unit) for at in range(len(program.word))]
                numbers = [names.setdefault(n, len(names)) if n else -1 for n in found]
                by_layers[mine] = np.array(numbers, np.int64)
            of_call[rank][place] = by_layers[mine]
    if unlike := _agree(every, of_call):
        remarks.append(
            f"{unlike} all-to-all calls have no phase: their members' calls imply "
            "different ones"
        )
    return Naming(names=tuple(names), of_call=of_call, remarks=tuple(remarks))


def _name(reading: Reading, at: int, of_unit: Mapping[Unit, int]) -> Name | None:
    """Return a call's inferred name, None where it keeps its annotation.

    ``of_unit`` holds the inferred layers, -1 for unknown ones.
    """
    token, call = reading.program.word[at], reading.calls.get(at)
    if token.kind != EXCHANGE or token.phase or call is None or call.unit is None:
        return None
    unit = call.unit
    if unit.layer < 0 and unit.again is not None:
        unit = unit.again
    layer = unit.layer
    if layer < 0:
        layer = of_unit.get(unit, -1)
    if layer < 0:
        return None
    if token.layer >= 0:
        layer = token.layer
    return (call.phase, layer, token.label or call.label)


def _agree(every: Sequence[Calls], of_call: dict[int, Int64]) -> int:
    """Copy names to unnamed calls of other members; return the number of conflicts.

    A record that ends early may determine less.  Calls with conflicting names are left
    unnamed.
    """
    names, conflicts = Shared(), Shared()
    differ = 0
    for calls in every:
        mine = np.where(calls.exchange, of_call[calls.rank], -1)
        before = names.values(calls)
        wrong = (before >= 0) & (mine >= 0) & (before != mine)
        differ += int(wrong.sum())
        names.add(calls, mine)
        conflicts.add(calls, np.where(wrong, 1, -1))
    for calls in every:
        mine = of_call[calls.rank]
        bare = calls.exchange & calls.where(
            [not s.phase and not s.label for s in calls.sites]
        )
        theirs = names.values(calls)
        mine[:] = np.where(bare & (mine < 0), theirs, mine)
        mine[conflicts.values(calls) >= 0] = -1
    return differ
