"""Number the MoE layers that the calls of a forward pass belong to.

Where the block of the model that makes a call was recorded, layers are its blocks in
the order of their first calls.  Otherwise a layer is the index of its dispatch in a
forward pass, after the layers of earlier pipeline stages.  This has premises, which are
checked: passes do not alternate, all passes of a rank's training steps have the same
number of layers, and a rank is one stage of the pipeline.  Where one fails, layers are
unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .calls import Calls
from .gradients import Reading
from .phases import UNREACHED, Unit

Key = tuple[int, int]  # block, and index within one call of it
Depth = tuple[int, int]  # MoE layers of a forward pass, and of earlier stages
ALTERNATE = (
    "layers are unknown where forward passes of several micro-batches or chunks "
    "alternate, unless a router reports its layer"
)
STAGES = (
    "layers are unknown: it is unclear which stages of the pipeline each rank computes"
)
REPORTED = "layers are unknown where no router reports them, as others do"


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Inferred layers of the forward passes of all ranks."""

    depths: Mapping[int, Depth]  # by rank, where the order implies them
    blocks: Mapping[int, Mapping[Key, int]]  # layer of each block, by rank
    keys: Mapping[tuple[int, int], tuple[Key, ...]]  # by reading and rank
    remarks: tuple[str, ...] = ()

    def of_units(self, reading: Reading, row: int) -> tuple[int, ...]:
        """Return the layers of a reading's units in a step, -1 for unknown ones."""
        rank = int(reading.program.rank[row])
        if keys := self.keys.get((id(reading), rank)):
            return tuple(self.blocks[rank][key] for key in keys)
        depth = self.depths.get(rank)
        if depth is None:
            return (-1,) * len(reading.units)
        return tuple(_layer_of(unit, reading, depth) for unit in reading.units)


def _layer_of(unit: Unit, reading: Reading, depth: Depth) -> int:
    """Return the layer of a unit by its index in its pass, -1 if unknown."""
    count, offset = depth
    if reading.interleaved or any(len(p.units) % count for p in reading.passes):
        return -1
    return offset + unit.place % count


def find_layers(
    every: Sequence[Calls], readings: Sequence[Reading], *, steps_known: bool
) -> Layers:
    """Infer the layers of all ranks' forward passes.

    The block that makes a call is a fact; where it is not recorded, or ranks are stages
    of a pipeline, the order of the calls decides.
    """
    depths, remarks = _find_depths(every, readings, steps_known=steps_known)
    if not steps_known or any(c.between_stages.any() for c in every):
        return Layers(depths=depths, blocks={}, keys={}, remarks=tuple(remarks))
    found = _keys(readings)
    alternate = {
        rank
        for reading in readings
        for rank in np.unique(reading.program.rank).tolist()
        if (of := found.get((id(reading), rank))) and not _passes(reading, of[1])
    }
    blocks: dict[int, dict[Key, int]] = {}
    keys: dict[tuple[int, int], tuple[Key, ...]] = {}
    for rank in {rank for _, rank in found} - alternate:
        mine = {which: of for (which, of_rank), of in found.items() if of_rank == rank}
        in_order = [of for _, of in sorted(mine.values(), key=lambda of: of[0])]
        blocks[rank] = _numbers(in_order)
        keys |= {(which, rank): of for which, (_, of) in mine.items()}
    if alternate and ALTERNATE not in remarks:
        remarks.append(ALTERNATE)
    # calls whose block was not recorded follow from the order, if all others do
    left = {
        rank: depth
        for rank, depth in depths.items()
        if rank not in alternate
        and all(
            tuple(_layer_of(unit, reading, depth) for unit in reading.units)
            == tuple(blocks[rank][key] for key in keys[id(reading), rank])
            for reading in readings
            if (id(reading), rank) in keys
        )
    }
    if blocks and all(k in found for k in _steps_of(readings)):
        remarks = [ALTERNATE] if alternate else []
    return Layers(depths=left, blocks=blocks, keys=keys, remarks=tuple(remarks))


def _numbers(steps: Sequence[Sequence[Key]]) -> dict[Key, int]:
    """Number the blocks of each model from 0 on, in the order of their first calls.

    Blocks that no step calls together are those of different models.
    """
    models: list[dict[Key, None]] = []
    for keys in steps:
        joined = [one for one in models if not one.keys().isdisjoint(keys)]
        apart = [one for one in models if one.keys().isdisjoint(keys)]
        before = [key for one in joined for key in one]
        models = [*apart, dict.fromkeys([*before, *keys])]
    return {key: number for model in models for number, key in enumerate(model)}


def _steps_of(readings: Sequence[Reading]) -> Iterator[tuple[int, int]]:
    for reading in readings:
        if reading.units:
            for rank in np.unique(reading.program.rank).tolist():
                yield id(reading), rank


def _passes(reading: Reading, keys: Sequence[Key]) -> bool:
    """Return whether each pass calls each block once, or is several such passes."""
    if reading.interleaved:
        return False
    at = 0
    for one in reading.passes:
        mine = list(keys[at : at + len(one.units)])
        at += len(mine)
        length = len(set(mine))
        if length < len(mine) and one.reached != UNREACHED:
            return False
        if mine != mine[:length] * (len(mine) // length):
            return False
    return True


def _keys(
    readings: Sequence[Reading],
) -> dict[tuple[int, int], tuple[int, tuple[Key, ...]]]:
    """Return the blocks of each reading's units by rank, and the step they are from."""
    found: dict[tuple[int, int], tuple[int, tuple[Key, ...]]] = {}
    for reading in readings:
        program = reading.program
        at = [unit.dispatch for unit in reading.units]
        for row in np.argsort(program.step, kind="stable").tolist():
            which = id(reading), int(program.rank[row])
            words = program.block[row, at].tolist() if at else []
            if which in found or not words or min(words) <= 0:
                continue
            keys: list[Key] = []
            before, within = -1, 0
            for word in words:
                # several layers of one call of a block
                within = within + 1 if word == before else 0
                keys.append((word >> 1, within))
                before = word
            found[which] = int(program.step[row]), tuple(keys)
    return found


def _find_depths(
    every: Sequence[Calls], readings: Sequence[Reading], *, steps_known: bool
) -> tuple[dict[int, Depth], list[str]]:
    """Infer the MoE layers per pass and layer offset of each rank, with remarks.

    Ranks whose layers are unknown, or are all reported by hooks, are left out.
    """
    units = [u for r in readings for u in r.units]
    if all(u.layer >= 0 for u in units):
        return {}, []
    lengths, unequal = _lengths(every, readings, steps_known=steps_known)
    mixed = {
        rank for r in readings if r.interleaved for rank in r.program.rank.tolist()
    }
    before = _stage_before(every)
    if before is None:
        return {}, [STAGES]
    remarks = [ALTERNATE] if mixed else []
    # an evaluation of several batches is one long pass
    counts = {rank: min(mine, default=0) for rank, mine in lengths.items()}
    for rank, mine in lengths.items():
        if rank in mixed | unequal or any(n % counts[rank] for n in mine):
            counts[rank] = 0
    found = {}
    for rank in counts:
        stages = [rank, *_earlier(rank, before)]
        if all(counts[stage] or not lengths[stage] for stage in stages):
            if counts[rank]:
                found[rank] = (counts[rank], sum(counts[s] for s in stages[1:]))
        elif rank not in mixed:
            remarks.append(
                f"layers of rank {rank} are unknown: its passes differ in length"
            )
    if not _as_reported(readings, found):
        return {}, [*remarks, REPORTED]
    return found, remarks


def _lengths(
    every: Sequence[Calls], readings: Sequence[Reading], *, steps_known: bool
) -> tuple[dict[int, set[int]], set[int]]:
    """Return the MoE layers of each rank's passes: of training steps, if it has any.

    And the ranks whose training passes differ.  The last step may be incomplete; where
    steps are unknown, so are passes that no backward pass ends.
    """
    last = {c.rank: -1 for c in every}
    for reading in readings:
        steps = zip(reading.program.rank, reading.program.step, strict=True)
        for rank, step in steps:
            last[rank] = max(last[rank], step)
    trained, other, cut = ({c.rank: set[int]() for c in every} for _ in range(3))
    for reading in readings:
        program = reading.program
        backward = any(t.direction == "backward" for t in program.word)
        early = program.step < [last[r] for r in program.rank]
        for kind, mask in ((trained if backward else other, early), (cut, ~early)):
            for rank in np.unique(program.rank[mask]).tolist():
                if backward or steps_known:
                    kind[rank].update(len(one.units) for one in reading.passes)
    unequal = {rank for rank, mine in trained.items() if len(mine) > 1}
    lengths = {rank: trained[rank] or other[rank] or cut[rank] for rank in trained}
    return lengths, unequal


def _as_reported(readings: Sequence[Reading], found: dict[int, Depth]) -> bool:
    """Return whether inferred layers agree with those that hooks report of others."""
    for reading in readings:
        for rank in np.unique(reading.program.rank).tolist():
            for unit in reading.units if rank in found else ():
                if 0 <= unit.layer != _layer_of(unit, reading, found[rank]):
                    return False
    return True


def _earlier(rank: int, before: dict[int, int]) -> Iterator[int]:
    """Yield the ranks of the pipeline stages before a rank's, the nearest first."""
    at = before.get(rank)
    while at is not None:
        yield at
        at = before.get(at)


def _stage_before(every: Sequence[Calls]) -> dict[int, int] | None:
    """Return each rank's preceding pipeline stage rank.

    None if their order is cyclic, a source is unknown, or a rank computes several
    stages: it then receives activations from where gradients come from.
    """
    before: dict[int, int] = {}
    for calls in every:
        between = np.flatnonzero(calls.between_stages)
        for at in between[:1].tolist():
            # the first transfer of a rank sends activations on, or receives them
            source, destination = _ends(calls, at)
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
    if not all(_computes_one_stage(c, before.get(c.rank, -1)) for c in every):
        return None
    return before


def _ends(calls: Calls, at: int) -> tuple[int, int]:
    """Return the source and destination ranks of a transfer, -1 if unknown."""
    site = calls.sites[calls.table["site"][at]]
    ranks = calls.groups[site.group].ranks
    source, destination = (ranks[p] if p >= 0 else -1 for p in site.peers)
    return source, destination


def _computes_one_stage(calls: Calls, before: int) -> bool:
    """Return whether forward passes follow what the preceding stage sends, alone.

    ``before`` is the rank of that stage, -1 for the first stage.
    """
    sources: set[int] = set()
    relevant = calls.between_stages | calls.exchange
    for at in np.flatnonzero(relevant).tolist():
        if calls.between_stages[at]:
            source, destination = _ends(calls, at)
            if destination == calls.rank:
                sources.add(source)
            continue
        if len(sources) == 1 and bool(calls.backward[at]) == (before in sources):
            return False
        sources.clear()
    return True
