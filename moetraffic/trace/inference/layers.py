"""Number the MoE layers that the calls of a forward pass belong to.

Layers are the blocks of the model that make the calls, in the order of their first
calls, after the layers of earlier pipeline stages.  The order of the calls alone does
not determine layers: two micro-batches before their common backward pass, or two chunks
that alternate, look like one pass of twice as many layers.  Where blocks were not
recorded, or one call of a block makes several dispatches, layers are unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from moetraffic.arrays import Bool

from .calls import Calls
from .gradients import Reading
from .phases import UNREACHED

ALTERNATE = (
    "layers are unknown where several forward passes (of micro-batches, chunks or an "
    "evaluation) precede a backward pass, unless a router reports its layer"
)
BLOCKS = (
    "layers are unknown where the block of the model that calls was not recorded, or "
    "makes several dispatches, unless a router reports its layer"
)
STAGES = (
    "layers are unknown: it is unclear which stages of the pipeline each rank computes"
)
STEPS = "layers are unknown where neither steps nor backward passes were recorded"
REPORTED = "layers are unknown where no router reports them, as others do"


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Inferred layers of the forward passes of all ranks."""

    found: Mapping[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    """Layer of each unit by reading and rank, -1: unknown."""
    remarks: tuple[str, ...] = ()

    def of_units(self, reading: Reading, rank: int) -> tuple[int, ...]:
        """Return the layers of a reading's units on a rank, -1 for unknown ones."""
        unknown = (-1,) * len(reading.units)
        return self.found.get((id(reading), rank), unknown)


def find_layers(
    every: Sequence[Calls], readings: Sequence[Reading], *, steps_known: bool
) -> Layers:
    """Infer the layers of all ranks' forward passes."""
    if all(unit.layer >= 0 for reading in readings for unit in reading.units):
        return Layers()
    before = _stage_before(every)
    if before is None:
        return Layers(remarks=(STAGES,))
    own: dict[int, list[Reading]] = {c.rank: [] for c in every}
    for reading in readings:
        for rank in np.unique(reading.program.rank).tolist():
            if reading.units:
                own[rank].append(reading)
    of_rank = {rank: _of_rank(mine, rank) for rank, mine in own.items()}
    if not steps_known:
        of_rank |= {r: (None, STEPS) for r, mine in own.items() if not _trained(mine)}
    remarks = tuple(dict.fromkeys(why for _, why in of_rank.values() if why))
    layers = {rank: of for rank, (of, _) in of_rank.items() if of is not None}
    depth = {
        rank: 1 + max((n for one in of for n in one), default=-1)
        for rank, of in layers.items()
    }
    found = {}
    for rank, of in layers.items():
        stages = list(_earlier(rank, before))
        if not all(stage in depth for stage in stages):
            continue
        offset = sum(depth[stage] for stage in stages)
        for reading, numbers in zip(own[rank], of, strict=True):
            moved = tuple(n + offset if n >= 0 else -1 for n in numbers)
            found[id(reading), rank] = moved
            for unit, number in zip(reading.units, moved, strict=True):
                if unit.layer >= 0 and 0 <= number != unit.layer:
                    return Layers(remarks=(*remarks, REPORTED))
    return Layers(found=found, remarks=remarks)


def _of_rank(
    readings: Sequence[Reading], rank: int
) -> tuple[list[list[int]] | None, str]:
    """Number the layers of a rank's readings by the blocks that call, with a remark.

    Blocks are recorded of a program's first calls.  A sequence of calls that occurs
    later only has the layers that its order implies, if this holds for all others.
    Layers are those of the units of each reading, -1 for unknown; None if all are.
    """
    called = [_words(reading, rank) for reading in readings]
    known = [(reading, *c) for reading, c in zip(readings, called, strict=True) if c]
    if any(r.interleaved for r in readings):
        return None, ALTERNATE
    if (readings and not known) or not all(_one_layer(words) for *_, words in known):
        return None, BLOCKS
    if not all(_once_a_pass(r, [w >> 1 for w in words]) for r, _, words in known):
        return None, ALTERNATE
    in_order = [words for *_, words in sorted(known, key=lambda k: k[1])]
    layer = _numbers([[w >> 1 for w in words] for words in in_order])
    depth = 1 + max(layer.values(), default=-1)
    facts = [[layer[w >> 1] for w in c[1]] if c else [] for c in called]
    found = [_in_order(reading, depth) for reading in readings]
    if any(order[: len(f)] != f for f, order in zip(facts, found, strict=True)):
        found = [
            f if len(f) == len(r.units) else [-1] * len(r.units)
            for f, r in zip(facts, readings, strict=True)
        ]
    return found, BLOCKS if any(-1 in one for one in found) else ""


def _trained(readings: Sequence[Reading]) -> bool:
    """Return whether a backward pass shows where a forward pass ends."""
    return any(p.reached != UNREACHED for r in readings for p in r.passes)


def _words(reading: Reading, rank: int) -> tuple[int, list[int]] | None:
    """Return the blocks that make a rank's first dispatches, see EVENT, and the step.

    Of whole passes: of all, or of those before the search for blocks ended.
    """
    program = reading.program
    at = [unit.dispatch for unit in reading.units]
    mine = np.flatnonzero(program.rank == rank)
    blocks = program.block[mine][:, at]
    lengths = np.logical_and.accumulate(blocks > 0, axis=1).sum(axis=1)
    # the first of the steps of which most is recorded
    best = max(range(len(mine)), key=lambda n: (lengths[n], -program.step[mine[n]]))
    ends = np.cumsum([len(one.units) for one in reading.passes])
    whole = int(max(ends[ends <= lengths[best]], default=0))
    if not whole:
        return None
    return int(program.step[mine[best]]), blocks[best, :whole].tolist()


def _one_layer(words: Sequence[int]) -> bool:
    """Return whether each dispatch of a block has another input than its last one.

    Several dispatches of one call of a block are of several layers, or of chunks.
    """
    last: dict[int, int] = {}
    return not any(last.get(w >> 1) == w or last.update({w >> 1: w}) for w in words)


def _once_a_pass(reading: Reading, blocks: Sequence[int]) -> bool:
    """Return whether each pass calls each block once, or is several such passes."""
    at = 0
    for one in reading.passes:
        mine = list(blocks[at : at + len(one.units)])
        at += len(one.units)
        length = len(set(mine))
        if not mine:
            continue  # of a pass whose blocks were not recorded
        if length < len(mine) and one.reached != UNREACHED:
            return False
        if mine != mine[:length] * (len(mine) // length):
            return False
    return True


def _in_order(reading: Reading, depth: int) -> list[int]:
    """Return the layers of units by their index in their passes, -1 for unknown."""
    lengths = [len(p.units) for p in reading.passes]
    trained = [len(p.units) for p in reading.passes if p.reached != UNREACHED]
    if any(n % depth for n in lengths) or any(n != depth for n in trained):
        return [-1] * len(reading.units)
    return [unit.place % depth for unit in reading.units]


def _numbers(steps: Sequence[Sequence[int]]) -> dict[int, int]:
    """Number the blocks of each model from 0 on, in the order of their first calls.

    Blocks that no step calls together are those of different models.
    """
    models: list[dict[int, None]] = []
    for blocks in steps:
        joined = [one for one in models if not one.keys().isdisjoint(blocks)]
        apart = [one for one in models if one.keys().isdisjoint(blocks)]
        before = [block for one in joined for block in one]
        models = [*apart, dict.fromkeys([*before, *blocks])]
    return {block: number for model in models for number, block in enumerate(model)}


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
    transfers = {c.rank: _transfers(c) for c in every}
    for calls in every:
        for at in np.flatnonzero(transfers[calls.rank])[:1].tolist():
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
    for calls in every:
        mine = transfers[calls.rank]
        if not _computes_one_stage(calls, mine, before.get(calls.rank, -1)):
            return None
    return before


def _transfers(calls: Calls) -> Bool:
    """Return a mask of the transfers of activations and gradients, ``[n]``.

    Those that set up the communicators go in both directions before the first forward
    pass.  They are of another type than what the same ranks transfer later.
    """
    site, between = calls.table["site"], calls.between_stages
    started = np.logical_or.accumulate(calls.exchange)
    later = set(site[between & started].tolist())
    peers = {(calls.sites[n].group, calls.sites[n].peers) for n in later}
    setup = [
        n not in later and (s.group, s.peers) in peers
        for n, s in enumerate(calls.sites)
    ]
    return between & ~calls.where(setup)


def _ends(calls: Calls, at: int) -> tuple[int, int]:
    """Return the source and destination ranks of a transfer, -1 if unknown."""
    site = calls.sites[calls.table["site"][at]]
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
            source, destination = _ends(calls, at)
            if destination == calls.rank:
                sources.add(source)
            continue
        if len(sources) == 1 and bool(calls.backward[at]) == (before in sources):
            return False
        sources.clear()
    return True
