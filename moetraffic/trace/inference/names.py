"""Infer phase, layer and label of all-to-alls, consistently on all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from moetraffic.trace.model import Int64

from .calls import Calls
from .gradients import Reading
from .numbering import Shared
from .period import NumberedSteps
from .phases import experts_sorts
from .programs import EXCHANGE, gather_programs

Name = tuple[str, int, str]  # phase, layer, label
Depth = tuple[int, int]  # MoE layers of a forward pass, and of earlier stages
UNNAMED: Name = ("", -1, "")


@dataclass(frozen=True, kw_only=True)
class Naming:
    """Inferred phase, layer and label of each call, by rank."""

    names: tuple[Name, ...]
    of_call: dict[int, Int64]  # by rank: [n] index into names, -1: as annotated
    remarks: tuple[str, ...]  # descriptions of unknown names, a sentence each


def find_names(
    every: Sequence[Calls], numbered: Mapping[int, NumberedSteps], *, mixture: bool
) -> Naming:
    """Infer phase, layer and label of the all-to-alls of all ranks.

    ``mixture``: the run is known to have experts.
    """
    programs = gather_programs(every, numbered)
    experts = experts_sorts(programs, mixture=mixture)
    readings = [Reading(p, experts) for p in programs]
    remarks = [experts.why_not] if experts.why_not else []
    layers, unknown = _layers(every, readings)
    remarks += unknown
    names: dict[Name, int] = {UNNAMED: 0}
    of_call = {c.rank: np.full(len(c.table), -1, np.int64) for c in every}
    for reading in readings:
        program = reading.program
        by_depth: dict[Depth | None, Int64] = {}
        for rank, place in zip(program.rank.tolist(), program.place, strict=True):
            depth = layers.get(rank)
            if depth not in by_depth:
                found = [_name(reading, at, depth) for at in range(len(program.word))]
                numbers = [names.setdefault(n, len(names)) if n else -1 for n in found]
                by_depth[depth] = np.array(numbers, np.int64)
            of_call[rank][place] = by_depth[depth]
    if unlike := _agree(every, of_call):
        remarks.append(
            f"{unlike} all-to-all calls have no phase: their members' calls imply "
            "different ones"
        )
    return Naming(names=tuple(names), of_call=of_call, remarks=tuple(remarks))


def _name(reading: Reading, at: int, depth: Depth | None) -> Name | None:
    """Return a call's inferred name, None where it keeps its annotation.

    ``depth`` is None where hooks report all layer indices.
    """
    token, call = reading.program.word[at], reading.calls.get(at)
    if token.kind != EXCHANGE or token.phase or call is None or call.unit is None:
        return None
    unit = call.unit
    if unit.layer < 0 and unit.again is not None:
        unit = unit.again
    layer = unit.layer
    if layer < 0 and depth and unit in reading.units and not reading.interleaved:
        layer = depth[1] + unit.place % depth[0]
    if layer < 0:
        return None
    if token.layer >= 0:
        layer = token.layer
    return (call.phase, layer, token.label or call.label)


def _layers(
    every: Sequence[Calls], readings: Sequence[Reading]
) -> tuple[dict[int, Depth], list[str]]:
    """Infer the MoE layers per pass and layer offset of each rank, with remarks."""
    if all(u.layer >= 0 for r in readings for u in r.units):
        return {}, []
    # lengths of passes in steps with a backward, without one, and truncated
    trained, other, cut = ({c.rank: Counter[int]() for c in every} for _ in range(3))
    last = dict.fromkeys(trained, 0)
    for reading in readings:
        steps = zip(reading.program.rank, reading.program.step, strict=True)
        for rank, step in steps:
            last[rank] = max(last[rank], step)
    mixed: set[int] = set()
    for reading in readings:
        program = reading.program
        if reading.interleaved:
            mixed.update(program.rank.tolist())
        backward = any(t.direction == "backward" for t in program.word)
        early = program.step < [last[r] for r in program.rank]
        for kind, mask in ((trained if backward else other, early), (cut, ~early)):
            for rank in np.unique(program.rank[mask]).tolist():
                kind[rank].update(len(one.units) for one in reading.passes)
    remarks = []
    if mixed:
        remarks.append(
            "layers are unknown where forward passes of several micro-batches or "
            "chunks alternate, unless a router reports its layer"
        )
    counts = {}
    lengths = {rank: trained[rank] or other[rank] or cut[rank] for rank in trained}
    for rank, mine in lengths.items():
        # an evaluation of several batches is one long pass
        least = min(mine, default=0)
        equal = len(mine) == 1 or not trained[rank]
        regular = equal and all(n % least == 0 for n in mine) and rank not in mixed
        counts[rank] = least if regular else 0
    before = _stage_before(every)
    if before is None:
        return {}, [
            *remarks,
            "layers are unknown: the order of the pipeline's stages is unclear",
        ]
    found = {}
    for rank, count in counts.items():
        offset, at = 0, before.get(rank)
        while at is not None and count:
            if not counts[at] and (trained[at] or cut[at]):
                count = 0
            offset += counts[at]
            at = before.get(at)
        if count:
            found[rank] = (count, offset)
        elif lengths[rank] and rank not in mixed:
            remarks.append(
                f"layers of rank {rank} are unknown: its passes differ in length"
            )
    return found, remarks


def _stage_before(every: Sequence[Calls]) -> dict[int, int] | None:
    """Return each rank's preceding pipeline stage rank; None if cyclic."""
    before: dict[int, int] = {}
    for calls in every:
        between = np.flatnonzero(calls.between_stages)
        if not len(between):
            continue
        # the first transfer of a rank sends activations on, or receives them
        site = calls.sites[calls.table["site"][between[0]]]
        source, destination = (calls.groups[site.group].ranks[p] for p in site.peers)
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
    return before


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
