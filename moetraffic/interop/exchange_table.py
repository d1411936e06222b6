"""Import all-to-all byte counts and routed token counts from CSV files.

:mod:`moetraffic.interop.export.long_table` writes these files.  A row holds the bytes
that one rank sent to another, or the tokens that it routed to an expert; the header
lists the columns, in any order.

=========  ==============================================================
exchanges  ``iteration,layer,phase,source,destination,bytes``
demands    ``iteration,layer,rank,expert,tokens``
either     ``micro_batch`` (0), ``group`` (all ranks: ``ep 0-3``)
exchanges  ``row_bytes``, ``dtype``, ``label``, ``direction`` (by phase)
demands    ``dropped`` (unknown)
=========  ==============================================================

Ranks are world ranks.  A pair that is not listed sends nothing.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from moetraffic.errors import TraceError
from moetraffic.trace import ALL_TO_ALL, PHASES, ROUTING, UNKNOWN_TIME, Group

from .imported_call import ImportedCall, RankRecord
from .json_reader import (
    LARGEST,
    MOST_BYTES,
    MOST_ITERATIONS,
    MOST_LAYERS,
    MOST_RANKS,
    MOST_TOKENS,
    lines,
    whole,
    words,
    wrong,
)

EXCHANGES = ("iteration", "layer", "phase", "source", "destination", "bytes")
DEMANDS = ("iteration", "layer", "rank", "expert", "tokens")
EITHER = ("micro_batch", "group")
MORE = ("row_bytes", "dtype", "label", "direction")
DROPPED = "dropped"
DIRECTIONS = ("forward", "backward", "recompute")
MOST_MEMBERS = 1 << 13
MOST_EXPERTS = 1 << 16
MOST = {
    "iteration": MOST_ITERATIONS,
    "layer": MOST_LAYERS,
    "bytes": MOST_BYTES,
    "row_bytes": MOST_BYTES,
    "tokens": MOST_TOKENS,
    DROPPED: MOST_TOKENS,
    "source": LARGEST,
    "destination": LARGEST,
    "rank": LARGEST,
    "expert": LARGEST,
}


class ExchangeKey(NamedTuple):
    """Sort key that identifies the call to which a table row belongs."""

    iteration: int
    micro_batch: int
    layer: int
    stage: int  # routing, the phases, others
    phase: str
    direction: str
    label: str
    group: str
    dtype: str
    row_bytes: int


@dataclass(kw_only=True)
class ExchangeTable:
    """Rows of all imported CSV files, grouped by call."""

    sent: dict[ExchangeKey, dict[tuple[int, int], int]] = field(default_factory=dict)
    routed: dict[ExchangeKey, dict[tuple[int, int], tuple[int, int]]] = field(
        default_factory=dict
    )


def read(path: Path, into: ExchangeTable) -> None:
    """Read the rows of a CSV file into an exchange table.

    Raises
    ------
    UnreadableFile
        If the columns or the values of a line are invalid.
    """
    try:
        rows = csv.reader(lines(path), strict=True)
        header = [name.strip() for name in next(rows, [])]
        demands = set(DEMANDS) <= set(header)
        need = DEMANDS if demands else EXCHANGES
        allowed = {*need, *EITHER, *((DROPPED,) if demands else MORE)}
        odd = sorted(set(header) - allowed) or sorted(set(need) - set(header))
        if odd or len(set(header)) < len(header):
            raise wrong(
                path,
                f"its columns are {', '.join(header)[:200]}",
                f"name them {','.join(EXCHANGES)} or {','.join(DEMANDS)}",
            )
        for row in rows:
            if row:
                told = dict(zip(header, (c.strip() for c in row), strict=False))
                told["columns"] = str(len(row) == len(header))
                _add(path, rows.line_num, told, demands, into)
    except csv.Error as error:
        raise wrong(path, f"it is no CSV ({error})") from None


def _add(
    path: Path, line: int, told: dict[str, str], demands: bool, into: ExchangeTable
) -> None:
    def count(name: str, least: int = 0, default: int | None = None) -> int:
        text = told.get(name, "")
        found = default if not text else whole(text, least)
        if found is None or found > MOST.get(name, MOST_RANKS):
            raise wrong(path, f"line {line} has {text[:40]!r} for {name}")
        return found

    if told["columns"] != "True":
        raise wrong(path, f"line {line} has more or fewer values than columns")
    phase = told.get("phase", "")
    direction = told.get("direction", "") or (
        "backward" if "grad" in phase else "forward"
    )
    if (phase and phase not in PHASES) or direction not in DIRECTIONS:
        raise wrong(
            path,
            f"line {line} has phase {phase[:40]!r} and direction {direction[:40]!r}",
            f"a phase is one of {', '.join(PHASES)}, or empty",
        )
    stage = 0 if demands else 1 + (PHASES.index(phase) if phase else len(PHASES))
    place = ExchangeKey(
        iteration=count("iteration"),
        micro_batch=count("micro_batch", 0, 0),
        layer=count("layer", -1),
        stage=stage,
        phase=phase,
        direction=direction,
        label=words(told.get("label")),
        group=told.get("group", ""),
        dtype=words(told.get("dtype"), 20),
        row_bytes=count("row_bytes", 0, 0),
    )
    values: dict[tuple[int, int], Any]
    if demands:
        values = into.routed.setdefault(place, {})
        pair = (count("rank"), count("expert"))
        value: Any = (count("tokens"), count(DROPPED, 0, -1))
        most = (MOST_MEMBERS, MOST_EXPERTS)
    else:
        values = into.sent.setdefault(place, {})
        pair, value = (count("source"), count("destination")), count("bytes")
        most = (MOST_MEMBERS, MOST_MEMBERS)
    if pair[0] >= most[0] or pair[1] >= most[1]:
        raise wrong(path, f"line {line} has {pair}, which is beyond {most}")
    if pair in values:
        raise wrong(path, f"line {line} tells {pair} of the same call again")
    values[pair] = value


def world_of(table: ExchangeTable) -> int:
    """Return the number of ranks: one more than the largest rank in the table."""
    ranks = [r for pairs in table.sent.values() for pair in pairs for r in pair]
    ranks += [r for pairs in table.routed.values() for r, _ in pairs]
    ranks += [r for p in (*table.sent, *table.routed) for r in _members(p.group)[1]]
    return max(ranks, default=-1) + 1


def records(
    table: ExchangeTable, world: int, source: str, experts: int = 0
) -> list[RankRecord]:
    """Convert an exchange table to the calls of all ranks.

    Raises
    ------
    TraceError
        If a line names a rank outside its group.
    """
    found = [RankRecord(rank=rank, source=source) for rank in range(world)]
    for place in sorted([*table.sent, *table.routed]):
        kind, ranks = _members(place.group)
        everyone = tuple(range(world))
        group = Group(kind=kind or "ep", ranks=ranks or everyone)
        if place in table.sent:
            calls = _exchange(place, group, table.sent[place])
        else:
            calls = _routing(place, group, table.routed[place], experts)
        for rank, call in zip(group.ranks, calls, strict=True):
            found[rank].calls.append(call)
    iterations = sorted({p.iteration for p in (*table.sent, *table.routed)})
    for record in found:
        record.steps += [(i, UNKNOWN_TIME, UNKNOWN_TIME) for i in iterations]
    return found


def _call(place: ExchangeKey, group: Group, operation: str) -> ImportedCall:
    return ImportedCall(
        operation=operation,
        group=group,
        dtype=place.dtype,
        row_bytes=place.row_bytes,
        phase=place.phase,
        layer=place.layer,
        label=place.label,
        direction=place.direction,
        iteration=place.iteration,
    )


def _exchange(
    place: ExchangeKey, group: Group, pairs: dict[tuple[int, int], int]
) -> Iterator[ImportedCall]:
    matrix = np.zeros((len(group.ranks),) * 2, np.int64)
    for (source, destination), sent in pairs.items():
        matrix[_member(group, source), _member(group, destination)] = sent
    for member in range(len(group.ranks)):
        call = _call(place, group, ALL_TO_ALL)
        call.sent, call.received = matrix[member], matrix[:, member]
        yield call


def _routing(
    place: ExchangeKey,
    group: Group,
    pairs: dict[tuple[int, int], tuple[int, int]],
    experts: int,
) -> Iterator[ImportedCall]:
    demand = np.zeros((2, len(group.ranks), experts), np.int64)
    for (rank, expert), told in pairs.items():
        demand[:, _member(group, rank), expert] = told
    if (demand[1] < 0).any():
        demand[1] = -1
    for member in range(len(group.ranks)):
        call = _call(place, group, ROUTING)
        call.sent, call.received = demand[0, member], demand[1, member]
        yield call


def experts_of(table: ExchangeTable) -> int:
    """Return the number of experts: one more than the largest expert in the table."""
    return max((e for p in table.routed.values() for _, e in p), default=-1) + 1


def _member(group: Group, rank: int) -> int:
    if rank not in group.ranks:
        raise TraceError(
            f"an exchange is between the ranks of its group, but rank {rank} is not "
            f"one of {list(group.ranks)[:20]}: change the column group"
        )
    return group.ranks.index(rank)


def _members(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse the kind and ranks of a group such as ``ep 0-3 8``.

    Raises
    ------
    TraceError
        If the text is not a valid group.
    """
    kind, ranks = "", list[int]()
    for part in text.split():
        first, _, last = part.partition("-")
        begin, end = whole(first), whole(last or first)
        if begin is None and not kind and not ranks:
            kind = part[:20]
        elif begin is None or end is None or not begin <= end < MOST_MEMBERS:
            ranks = [-1]
            break
        else:
            ranks += range(begin, end + 1)
    if text and (not ranks or min(ranks) < 0 or len(set(ranks)) < len(ranks)):
        raise TraceError(
            f"a group is its kind and its ranks, such as 'ep 0-3', not {text[:40]!r}: "
            "change the column group"
        )
    return kind, tuple(ranks)
