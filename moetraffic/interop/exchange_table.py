"""Import all-to-all byte counts and routed token counts from CSV files.

:mod:`moetraffic.interop.write.tables` writes these files.  A row holds the bytes
that one rank sent to another, or the tokens that it routed to an expert; the header
lists the columns, in any order.

=========  ==============================================================
exchanges  ``iteration,layer,phase,source,destination,bytes``
demands    ``iteration,layer,rank,expert,tokens``
either     ``micro_batch`` (0), ``group`` (all ranks: ``ep 0-3``)
exchanges  ``row_bytes``, ``dtype``, ``label``, ``direction`` (by phase)
both       ``call_source`` and ``step_source``, such as ``annotated`` or ``inferred``
demands    ``dropped`` (unknown)
=========  ==============================================================

Ranks are world ranks.  A pair that is not listed sends nothing.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from moetraffic.errors import TraceError
from moetraffic.trace import (
    ALL_TO_ALL,
    DIRECTIONS,
    PHASES,
    ROUTING,
    UNKNOWN_TIME,
    Group,
    Source,
)
from moetraffic.trace.model import TRANSPOSED_PHASES
from moetraffic.trace.provenance import SOURCES
from moetraffic.units import rank_span

from .imported_call import ImportedCall, ImportedRank
from .importer import ImportedFiles, Importer, ImportOptions, too_few_ranks
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
from .model_properties import with_model

EXCHANGES = ("iteration", "layer", "phase", "source", "destination", "bytes")
DEMANDS = ("iteration", "layer", "rank", "expert", "tokens")
EITHER = {"micro_batch", "group", "call_source", "step_source"}
MORE = {"row_bytes", "dtype", "label", "direction"}
DROPPED = "dropped"
BY_ROW_BYTES = (
    "exchanges from routed tokens and --row-bytes, each rank with a contiguous block "
    "of experts"
)
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
    stage: int  # 0: routing; the phases; others
    phase: str
    direction: str
    label: str
    group: str
    dtype: str
    row_bytes: int
    call_source: str  # of layer, phase and label; "": the file states them
    step_source: str


Calls = dict[ExchangeKey, dict[tuple[int, int], tuple[int, int]]]
"""Of each call: bytes and 0 by source and destination, or tokens and dropped tokens
(-1: unknown) by rank and expert."""


def read(files: Sequence[Path], options: ImportOptions) -> ImportedFiles:
    """Read the rows of all files as the calls of all ranks."""
    calls: Calls = {}
    for file in files:
        _add_rows(file, calls)
    groups = {key.group: _group(key.group) for key in calls}
    ranks = [r for group in groups.values() for r in group.ranks]
    experts = [options.experts]
    for key, pairs in calls.items():
        ranks += [a for a, _ in pairs]
        (ranks if key.stage else experts).extend(
            b + bool(not key.stage) for _, b in pairs
        )
    least = max(ranks, default=-1) + 1
    if least and options.ranks and options.ranks < least:
        raise too_few_ranks(least, options)
    world = options.ranks if least and options.ranks else least
    if not world:
        raise wrong(
            files[0],
            "it holds no line but the names of its columns",
            "write a line for each pair",
        )
    everyone = tuple(range(world))
    groups = {
        name: Group(kind=group.kind, ranks=group.ranks or everyone)
        for name, group in groups.items()
    }
    placed: dict[tuple[int, Group], Sequence[int]] = {}
    inferred: tuple[str, ...] = ()
    if options.row_bytes:
        placed, own = _add_exchanges(calls, groups, max(experts), options.row_bytes)
        inferred += (BY_ROW_BYTES,) * bool(placed)
        if own:
            layers = f"layer{'s' * (len(own) > 1)} {rank_span(own)}"
            inferred += (
                f"--row-bytes adds no exchanges to {layers}: the table has its own",
            )
    records = [ImportedRank(rank=rank, source=files[0].name) for rank in range(world)]
    for key in sorted(calls):
        group = groups[key.group]
        for rank, call in zip(
            group.ranks, _calls(key, group, calls[key], max(experts)), strict=True
        ):
            records[rank].calls.append(call)
    iterations = sorted({key.iteration for key in calls})
    sources: dict[int, Source] = {}
    for key in calls:
        if key.step_source:
            stated = Source[key.step_source.upper()]
            sources[key.iteration] = min(stated, sources.get(key.iteration, stated))
    for record in records:
        record.steps += [(i, UNKNOWN_TIME, UNKNOWN_TIME) for i in iterations]
        record.step_sources = sources
    return with_model(
        ImportedFiles(
            records=records,
            world=world,
            world_by="the highest rank in the table",
            experts=max(experts),
            placed=placed,
            inferred=inferred,
        ),
        options,
    )


def _add_exchanges(
    calls: Calls, groups: Mapping[str, Group], experts: int, row_bytes: int
) -> tuple[dict[tuple[int, Group], Sequence[int]], list[int]]:
    """Add the four exchanges of each routing, with contiguous blocks of experts.

    A layer and group of which the files hold exchanges, or whose group has exchanges of
    an unknown layer, gets none.  Returns the placement: the ranks of the experts by
    layer and group; and the layers that get none.
    """
    placed: dict[tuple[int, Group], Sequence[int]] = {}
    own: set[int] = set()
    held_by = {(k.layer, frozenset(groups[k.group].ranks)) for k in calls if k.stage}
    for key, pairs in [item for item in calls.items() if not item[0].stage]:
        group = groups[key.group]
        members = frozenset(group.ranks)
        if held_by & {(key.layer, members), (-1, members)}:
            own.add(key.layer)
            continue
        held, rest = divmod(experts, len(group.ranks))
        if rest or not held:
            raise TraceError(
                "--row-bytes of routed tokens needs the same number of experts on each "
                f"rank, but there are {experts} experts on {len(group.ranks)} ranks: "
                "change --experts, or leave --row-bytes out"
            )
        placed[key.layer, group] = [rank for rank in group.ranks for _ in range(held)]
        sent: dict[tuple[int, int], int] = {}
        for (rank, expert), (tokens, dropped) in pairs.items():
            to = (rank, placed[key.layer, group][expert])
            sent[to] = sent.get(to, 0) + (tokens - max(0, dropped)) * row_bytes
        for stage, phase in enumerate(PHASES, 1):
            turned = phase in TRANSPOSED_PHASES
            exchange = key._replace(
                stage=stage,
                phase=phase,
                direction="backward" if "grad" in phase else "forward",
                row_bytes=row_bytes,
                call_source="inferred",
            )
            calls[exchange] = {
                (b, a) if turned else (a, b): (n, 0) for (a, b), n in sent.items()
            }
    return placed, sorted(own)


def _add_rows(path: Path, into: Calls) -> None:
    """Add the rows of a CSV file to the calls that they belong to."""
    try:
        rows = csv.reader(lines(path), strict=True)
        header = [name.strip() for name in next(rows, [])]
        demands = set(DEMANDS) <= set(header)
        need = set(DEMANDS if demands else EXCHANGES)
        odd = set(header) - need - EITHER - ({DROPPED} if demands else MORE)
        if odd or need - set(header) or len(set(header)) < len(header):
            raise wrong(
                path,
                f"its columns are {', '.join(header)[:200]}",
                f"name them {','.join(EXCHANGES)} or {','.join(DEMANDS)}",
            )
        for row in rows:
            if row and len(row) != len(header):
                raise wrong(
                    path,
                    f"line {rows.line_num} has {len(row)} values in {len(header)} "
                    "columns",
                    "write one value for each column",
                )
            if row:
                cells = dict(zip(header, (c.strip() for c in row), strict=True))
                _add_row(path, rows.line_num, cells, demands, into)
    except csv.Error as error:
        raise wrong(path, f"it is no CSV ({error})") from None


def _add_row(
    path: Path, line: int, cells: Mapping[str, str], demands: bool, into: Calls
) -> None:
    def count(name: str, least: int = 0, default: int | None = None) -> int:
        text = cells.get(name, "")
        found = default if not text else whole(text, least)
        if found is None or found > MOST.get(name, MOST_RANKS):
            most = MOST.get(name, MOST_RANKS)
            raise wrong(
                path,
                f"line {line} has {text[:40]!r} for {name}",
                f"write an integer from {least} to {most:,}",
            )
        return found

    phase = cells.get("phase", "")
    direction = cells.get("direction", "") or (
        "backward" if "grad" in phase else "forward"
    )
    direction = "" if direction == "unknown" else direction
    if (phase and phase not in PHASES) or direction not in (*DIRECTIONS, ""):
        raise wrong(
            path,
            f"line {line} has phase {phase[:40]!r} and direction {direction[:40]!r}",
            f"a phase is one of {', '.join(PHASES)}, or empty",
        )
    key = ExchangeKey(
        iteration=count("iteration"),
        micro_batch=count("micro_batch", 0, 0),
        layer=count("layer", -1),
        stage=0 if demands else 1 + ([*PHASES, ""].index(phase)),
        phase=phase,
        direction=direction,
        label=words(cells.get("label")),
        group=cells.get("group", ""),
        dtype=words(cells.get("dtype"), 20),
        row_bytes=count("row_bytes", 0, 0),
        call_source=cells.get("call_source", ""),
        step_source=cells.get("step_source", ""),
    )
    if odd := {key.call_source, key.step_source} - {"", *SOURCES}:
        raise wrong(
            path,
            f"line {line} has the source {min(odd)[:40]!r}",
            f"a source is one of {', '.join(SOURCES)}, or empty",
        )
    if demands:
        names = ("rank", "expert")
        value = (count("tokens"), count(DROPPED, 0, -1))
        most = (MOST_MEMBERS, MOST_EXPERTS)
        if value[1] > value[0]:
            raise wrong(
                path,
                f"line {line} has {value[1]} dropped of {value[0]} tokens",
                "count those that are dropped among the tokens",
            )
    else:
        names, value = ("source", "destination"), (count("bytes"), 0)
        most = (MOST_MEMBERS, MOST_MEMBERS)
    pair = (count(names[0]), count(names[1]))
    if pair[0] >= most[0] or pair[1] >= most[1]:
        raise wrong(
            path,
            f"line {line} has {pair}, which is beyond {most}",
            "number them from 0",
        )
    values = into.setdefault(key, {})
    if pair in values:
        raise wrong(
            path,
            f"line {line} has {' and '.join(names)} {pair} of the same call again",
            "write one line for each, and number calls in the column micro_batch",
        )
    values[pair] = value


def _calls(
    key: ExchangeKey,
    group: Group,
    pairs: Mapping[tuple[int, int], tuple[int, int]],
    experts: int,
) -> list[ImportedCall]:
    """Build the call of each member of a group from the values of its pairs."""
    members = {rank: member for member, rank in enumerate(group.ranks)}
    if outside := {r for a, b in pairs for r in ((a, b) if key.stage else (a,))} - set(
        members
    ):
        raise TraceError(
            f"an exchange is between the ranks of its group, but rank {min(outside)} "
            f"is not one of {list(group.ranks)[:20]}: change the column group"
        )
    table = np.zeros(
        (2, len(members), len(members) if key.stage else experts), np.int64
    )
    for (rank, other), value in pairs.items():
        table[:, members[rank], members[other] if key.stage else other] = value
    given, other_side = table
    if key.stage:
        other_side = given.T
    elif (other_side < 0).any():
        other_side[:] = -1
    return [
        ImportedCall(
            operation=ALL_TO_ALL if key.stage else ROUTING,
            group=group,
            dtype=key.dtype,
            row_bytes=key.row_bytes,
            phase=key.phase,
            layer=key.layer,
            label=key.label,
            direction=key.direction,
            named_by=Source[key.call_source.upper() or "ANNOTATED"],
            iteration=key.iteration,
            sent=given[member],
            received=other_side[member],
        )
        for member in members.values()
    ]


def _group(text: str) -> Group:
    """Parse a group such as ``ep 0-3 8``; without ranks it is of all ranks."""
    kind, ranks = "", list[int]()
    for part in text.split():
        first, _, last = part.partition("-")
        begin, end = whole(first), whole(last or first)
        if begin is None and not kind and not ranks:
            kind = part[:20]
        elif begin is None or end is None or not begin <= end < MOST_MEMBERS:
            ranks = []
            break
        else:
            ranks += range(begin, end + 1)
    if text and (not ranks or len(set(ranks)) < len(ranks)):
        raise TraceError(
            f"a group is its kind and its ranks, such as 'ep 0-3', not {text[:40]!r}: "
            "change the column group"
        )
    return Group(kind=kind or "ep", ranks=tuple(ranks))


def matches(beginning: str) -> bool:
    """Return whether a file begins with a header that has a column iteration."""
    header = beginning.partition("\n")[0].replace(" ", "")
    return "iteration" in header.strip().split(",")


IMPORTER = Importer(
    name="csv",
    what="iteration,layer,phase,source,destination,bytes",
    matches=matches,
    read=read,
)
