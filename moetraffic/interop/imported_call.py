"""Imported calls of a rank, and their conversion into records to merge.

An importer converts each file to an :class:`ImportedRank`: the ordered calls of one
rank.  Those of all ranks become a :class:`RankRecord` each.  A value that the files do
not contain is -1, "" or UNKNOWN_TIME; merging infers it (steps, layers, phases, byte
counts recorded by a peer) or leaves it unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from moetraffic.arrays import Int32, Int64
from moetraffic.errors import TraceError
from moetraffic.trace.merge.rank_record import CALL, STEP, RankRecord, narrow
from moetraffic.trace.model import (
    ALL_TO_ALL,
    PLACEMENT,
    ROUTING,
    UNKNOWN_TIME,
    Group,
    Meta,
    Site,
    SiteNumbers,
    Source,
)

from .json_reader import MOST_BYTES

Numbers = Sequence[int] | Int64 | Int32


@dataclass(kw_only=True, slots=True)
class ImportedCall:
    """One rank's part of an imported call, in bytes; negative values are unknown."""

    operation: str
    group: Group
    dtype: str = ""
    row_bytes: int = -1
    sent: Numbers = ()  # all-to-all: to each member; routing: copies by expert
    received: Numbers = ()  # all-to-all: from each member; routing: dropped
    volume: int = -1  # of the input buffer, of other collectives
    peers: tuple[int, int] = (-1, -1)
    phase: str = ""
    layer: int = -1
    label: str = ""
    direction: str = "forward"
    named_by: Source = Source.ANNOTATED  # source of layer, phase and label, if known
    iteration: int = -1
    sequence: int = -1  # n-th collective of its group; -1: by call order
    counted: bool = True  # whether the calls of its group are known to be its calls
    issue: int = UNKNOWN_TIME
    start: int = UNKNOWN_TIME
    end: int = UNKNOWN_TIME
    thread: int = 0
    link: int = -1


@dataclass(kw_only=True)
class ImportedRank:
    """Imported calls and steps of one rank from one file."""

    rank: int
    source: str  # name of the file
    calls: list[ImportedCall] = field(default_factory=list)
    steps: list[tuple[int, int, int]] = field(default_factory=list)  # iteration, times
    tokens: dict[int, int] = field(default_factory=dict)  # by iteration
    step_sources: Mapping[int, Source] = field(default_factory=dict)
    node: str = ""
    stated: int = 0  # number of ranks of the run according to the file
    widest: int = 0  # size of the largest group of a call
    seen: Counter[str] = field(default_factory=Counter)  # communication, by name
    left_out: Counter[str] = field(default_factory=Counter)
    inferred: Counter[tuple[Group, str]] = field(default_factory=Counter)
    contradictions: list[str] = field(default_factory=list)

    def add(self, call: ImportedCall) -> None:
        """Append a call, unless its byte counts are implausible."""
        sizes = [call.volume, call.row_bytes, *call.sent, *call.received]
        if max(sizes) > MOST_BYTES:
            self.left_out[f"{call.operation} of more than {MOST_BYTES} bytes"] += 1
            return
        self.calls.append(call)

    def note(self, group: Group | None, reason: str) -> None:
        """Count a call whose group is inferred, unless it is None."""
        if group is not None:
            self.inferred[group, reason] += 1

    def contradict(self, number: int, operation: str, what: str) -> None:
        """Record that the values of a call are inconsistent."""
        self.contradictions.append(
            f"{self.source}: call {number} of rank {self.rank} ({operation}): {what}"
        )

    def begins(self) -> tuple[int, int]:
        """Return the first iteration and time, by which a rank's files are sorted."""
        iterations = [c.iteration for c in self.calls if c.iteration >= 0]
        times = [c.issue for c in self.calls if c.issue != UNKNOWN_TIME]
        return min(iterations, default=-1), min(times, default=UNKNOWN_TIME)


Placed = Mapping[tuple[int, Group], Sequence[int]]
"""World rank that holds each expert, by layer and group."""


def rank_records(
    imported: Iterable[ImportedRank], meta: Meta, placed: Placed | None = None
) -> list[RankRecord]:
    """Convert imported files to one record for each rank, sorted by rank.

    Several files of a rank are joined in the order of their first calls.  ``placed`` is
    the expert placement, where it is known.
    """
    ordered = sorted(imported, key=lambda part: (part.rank, part.begins()))
    _settle_rows(ordered)
    for part in ordered:
        if not 0 <= part.rank < meta.world:
            raise TraceError(
                f"{part.source} is of rank {part.rank}, but the run has "
                f"{meta.world} ranks: leave it out"
            )
    return [
        _joined(list(parts), meta, placed or {})
        for _, parts in groupby(ordered, key=lambda part: part.rank)
    ]


def _joined(parts: Sequence[ImportedRank], meta: Meta, placed: Placed) -> RankRecord:
    """Join the files of a rank."""
    groups: dict[Group, int] = {}
    sites = SiteNumbers()
    splits: dict[int, list[Any]] = {}
    demand: dict[int, list[Any]] = {}
    counts: Counter[Group] = Counter()
    calls = np.zeros(sum(len(part.calls) for part in parts), CALL)
    every = (call for part in parts for call in part.calls)
    for row, call in zip(calls, every, strict=True):
        site = Site(
            group=groups.setdefault(call.group, len(groups)),
            operation=call.operation,
            phase=call.phase,
            layer=call.layer,
            direction=call.direction,
            dtype=call.dtype,
            row_bytes=max(0, call.row_bytes),
            label=call.label,
            peers=call.peers,
            experts=len(call.sent) if call.operation == ROUTING else 0,
            source=call.named_by
            if call.layer >= 0 or call.phase or call.label
            else Source.UNKNOWN,
        )
        row["site"] = sites.add(site)
        if call.operation in (ROUTING, ALL_TO_ALL):
            panel = demand if call.operation == ROUTING else splits
            rows = panel.setdefault(len(call.sent), [])
            row["payload"] = len(rows)
            rows.append((call.sent, call.received))
        else:
            row["payload"] = call.volume
        for name in ("iteration", "issue", "start", "end", "thread", "link"):
            row[name] = getattr(call, name)
        row["sequence"] = _sequence(call, counts)
    steps = np.array([step for part in parts for step in _steps(part)], STEP)
    # calls before the first marked step are of that step
    when = calls["iteration"]
    marked = np.concatenate([when[when >= 0], steps["iteration"]])
    if len(marked):
        when[when < 0] = marked.min()
    placements = [
        (groups[group], layer, expert, 0, rank, 0)
        for (layer, group), holders in placed.items()
        if group in groups
        for expert, rank in enumerate(holders)
    ]
    return RankRecord(
        rank=parts[0].rank,
        node=parts[-1].node,
        meta=meta,
        groups=tuple(groups),
        sites=tuple(sites.sites),
        calls=calls,
        steps=steps,
        splits={w: narrow(np.array(r, np.int64)) for w, r in splits.items()},
        demand={e: narrow(np.array(r, np.int64)) for e, r in demand.items()},
        placements=np.array(placements, PLACEMENT),
        omitted=sum((part.left_out for part in parts), Counter[str]()),
    )


def _steps(part: ImportedRank) -> list[tuple[Any, ...]]:
    """Return the rows of a table of steps."""
    return [
        (
            *(iteration, np.nan, part.tokens.get(iteration, -1), start, end),
            part.step_sources.get(iteration, Source.ANNOTATED),
            "train",
        )
        for iteration, start, end in part.steps
    ]


def _sequence(call: ImportedCall, counts: Counter[Group]) -> int:
    """Return the sequence number of a call in its group, -1 if not a collective."""
    if call.operation == ROUTING or call.peers != (-1, -1) or not call.counted:
        return -1
    if call.sequence >= 0:
        return call.sequence
    counts[call.group] += 1
    return counts[call.group] - 1


def _settle_rows(records: Sequence[ImportedRank]) -> None:
    """Copy the row size of an all-to-all to ranks that exchanged no rows.

    Without it, merging could not match the call to those of its peers.
    """
    told: dict[tuple[Group, int], tuple[str, int]] = {}
    waiting = []
    for record in records:
        counts: Counter[Group] = Counter()
        for call in record.calls:
            if call.operation != ALL_TO_ALL:
                continue
            key = (call.group, counts[call.group])
            counts[call.group] += 1
            if call.row_bytes > 0:
                told[key] = (call.dtype, call.row_bytes)
            else:
                waiting.append((key, call))
    for key, call in waiting:
        if key in told:
            dtype, call.row_bytes = told[key]
            call.dtype = call.dtype or dtype
