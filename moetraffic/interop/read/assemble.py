"""From the rows of all files to a trace: ranks, tokens, records, remarks.

Byte counts alone have no noise floor, which depends on the number of tokens.  It is
stated, or follows from the rows of a dispatch: k rows for each token.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic import __version__
from moetraffic.errors import TraceError
from moetraffic.trace.merge.merging import Merged, merge_records
from moetraffic.trace.merge.rank_record import CALL, STEP, RankRecord, narrow
from moetraffic.trace.model import (
    ALL_TO_ALL,
    PLACEMENT,
    ROUTING,
    Group,
    Meta,
    Presence,
    Site,
    SiteNumbers,
    Source,
)
from moetraffic.trace.routed import contradiction_of_k
from moetraffic.trace.trace import Trace
from moetraffic.units import rank_span

from .files import MOST_BYTES, words
from .messages import join_messages
from .rows import UNNUMBERED, Contents, ImportOptions, Row, number_of_ranks

MOST_CELLS = 1 << 28  # total cells of matrices: 2 GiB
SHOWN = 8  # names in a sentence
OWN = ", but for rank-local bytes"


def assemble(
    contents: Contents,
    files: Sequence[Path],
    options: ImportOptions,
    *,
    keep: bool = True,
) -> Merged:
    """Assemble the rows of all files into a trace.

    Parameters
    ----------
    contents
        What the files contain; its rows are completed.
    files
        Where it was read, for the metadata.
    options
        Properties of the run that the files do not contain.
    keep
        Whether contradictions between files are only reported.
    """
    source = words(", ".join(file.name for file in files), 1000)
    highest = max((*contents.files, *(r.rank for r in contents.rows)), default=0) + 1
    world, world_by = contents.world, contents.world_by
    if highest > world or not world_by:
        world, world_by = max(highest, world), "the highest rank in the files"
    world, world_by = number_of_ranks(world, world_by, options)
    _leave_out_implausible(contents)
    if not contents.rows:
        raise TraceError(
            f"{source[:200]} has no collective that can be imported: "
            f"{_nothing_read(contents)[:600]}"
        )
    join_messages(contents)
    _apply_model(contents, options)
    _settle_rows(contents.rows)
    meta = Meta(
        origin="imported",
        world=world,
        experts=contents.experts or options.experts,
        k=contents.k or options.k,
        moetraffic=__version__,
        source=source,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )
    merged = merge_records(
        rank_records(contents, meta),
        source[:200],
        missing=contents.missing,
        recover=True,
    )
    contradictions = (*contents.contradictions, *merged.contradictions)
    if contradictions and not keep:
        first, *others = contradictions
        more = f" (and {len(others)} more)" if others else ""
        raise TraceError(
            f"the files contradict each other, {first}{more}: leave out what is of "
            "another run, or write the trace in spite of it with --keep"
        )
    remarks = _recovered(merged.trace, contents.files)
    missing = "; ".join(filter(None, (merged.trace.meta.missing, *remarks)))[:4000]
    ranks = f"{world} {'rank' if world == 1 else 'ranks'}, from {world_by}"
    inferred = "; ".join((ranks, *contents.inferred))[:2000]
    told = replace(
        merged.trace.meta, missing=missing, complete=not missing, inferred=inferred
    )
    return replace(
        merged,
        trace=merged.trace.replaced(meta=told),
        missing=(*merged.missing, *remarks),
        contradictions=contradictions,
    )


def _leave_out_implausible(contents: Contents) -> None:
    """Leave out rows of more bytes than a trace holds; refuse too many values."""
    kept, cells = [], 0
    for row in contents.rows:
        sizes = (row.volume, row.row_bytes)
        highest = max(*sizes, *(np.max(v, initial=0) for v in (row.sent, row.received)))
        if highest > MOST_BYTES:
            why = f"{row.operation} of more than {MOST_BYTES} bytes"
            contents.left_out[row.rank, why] += 1
            continue
        kept.append(row)
        cells += len(row.group.ranks) ** (2 if row.operation == ALL_TO_ALL else 1)
    contents.rows = kept
    if cells > MOST_CELLS * max(1, min(64, contents.world)):
        raise TraceError(
            f"matrices of at most {MOST_CELLS} values are imported at once, but these "
            f"files have {cells}: import fewer steps"
        )


def _nothing_read(contents: Contents) -> str:
    """Describe the communication of files from which no call could be imported."""
    reasons = ", ".join(sorted({why for _, why in contents.left_out}))
    named = contents.seen.most_common(SHOWN)
    if not named:
        return f"it has {reasons or 'no communication'}"
    there = ", ".join(f"{count} {name}" for name, count in named)
    if len(contents.seen) > SHOWN:
        there += f" and {len(contents.seen) - SHOWN} other names"
    nameless = "without an operator or record_param_comms that has their group"
    return f"it has {there}, but {reasons or nameless}"


# ---- what the user states -----------------------------------------------------------


def validate_options(options: ImportOptions) -> None:
    """Check that experts and k are those of a model."""
    if options.experts and options.k > options.experts:
        raise TraceError(
            f"a token is sent to distinct experts, but --k is {options.k} and "
            f"--experts {options.experts}: lower --k"
        )


def _apply_model(contents: Contents, options: ImportOptions) -> None:
    """Apply the stated row bytes and tokens, and check the stated k."""
    for row in contents.rows:
        where = f"{contents.files.get(row.rank, '')}: rank {row.rank}"
        if row.operation == ALL_TO_ALL and row.row_bytes <= 0 and options.row_bytes:
            sizes = np.concatenate([row.sent, row.received]).astype(np.int64)
            parts = sizes[(sizes > 0) & (sizes % options.row_bytes > 0)]
            if len(parts):
                raise TraceError(
                    f"{where} exchanges {parts[0]} bytes in iteration {row.iteration}, "
                    f"which are no whole rows of {options.row_bytes} bytes: change "
                    "--row-bytes"
                )
            row.row_bytes = options.row_bytes
        elif row.operation == ROUTING:
            copies = np.asarray(row.sent, np.int64)
            if wrong := contradiction_of_k(copies, options.k):
                raise TraceError(
                    f"{where}, iteration {row.iteration}: {wrong}: change --k, or "
                    "leave it out"
                )
    if not (options.tokens or options.k):
        return
    routed, dispatched = (_copies(contents.rows, op) for op in (ROUTING, ALL_TO_ALL))
    most = options.tokens * options.k
    for (rank, iteration), layers in (*routed.items(), *dispatched.items()):
        for layer, rows in layers.items():
            if most and rows > most:
                raise TraceError(
                    f"{contents.files.get(rank, '')}: rank {rank} sends {rows} rows in "
                    f"iteration {iteration}, layer {layer}, which are more than "
                    f"{options.k} for each of {options.tokens} tokens: change --tokens "
                    "or --k"
                )
    told = False
    for step in contents.steps:
        rows_of_layers = set(dispatched.get((step.rank, step.iteration), {}).values())
        if options.tokens:
            step.tokens = options.tokens
        elif len(rows_of_layers) == 1:  # the layers agree
            tokens, rest = divmod(rows_of_layers.pop(), options.k)
            step.tokens = tokens if tokens > 0 and not rest else -1
        else:
            continue
        told = told or step.tokens >= 0
    if told:
        by_rows = f"the rows of dispatch, {options.k} for each token"
        source = "--tokens" if options.tokens else by_rows
        contents.inferred.append(f"tokens of each rank and iteration from {source}")


def _copies(
    rows: Sequence[Row], operation: str
) -> Mapping[tuple[int, int], Mapping[int, int]]:
    """Sum the token copies that a rank routed or dispatched, by layer; -1: unknown.

    The result is by rank and iteration.  Recomputed calls do not count.
    """
    sums: defaultdict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    for row in rows:
        dispatches = operation == ROUTING or row.phase == "dispatch"
        if row.operation != operation or row.direction == "recompute" or not dispatches:
            continue
        layers = sums[row.rank, row.iteration]
        copy = 1 if operation == ROUTING else row.row_bytes
        before = layers.get(row.layer, 0)
        known = copy > 0 and min(row.sent) >= 0 and before >= 0
        layers[row.layer] = before + int(sum(row.sent)) // copy if known else -1
    return sums


def _settle_rows(rows: Sequence[Row]) -> None:
    """Copy the row size of an all-to-all to ranks that exchanged no rows.

    Without it, merging could not match the call to those of its peers.
    """
    stated: dict[tuple[Group, int], tuple[str, int]] = {}
    waiting = []
    counts: Counter[tuple[int, Group]] = Counter()
    for row in rows:
        if row.operation != ALL_TO_ALL:
            continue
        key = (row.group, counts[row.rank, row.group])
        counts[row.rank, row.group] += 1
        if row.row_bytes > 0:
            stated[key] = (row.dtype, row.row_bytes)
        else:
            waiting.append((key, row))
    for key, row in waiting:
        if key in stated:
            dtype, row.row_bytes = stated[key]
            row.dtype = row.dtype or dtype


# ---- records ------------------------------------------------------------------------


def rank_records(contents: Contents, meta: Meta) -> list[RankRecord]:
    """Build the record of each rank that has rows, steps or a file, by rank."""
    rank = attrgetter("rank")
    rows = {r: list(of) for r, of in groupby(sorted(contents.rows, key=rank), rank)}
    steps = {r: list(of) for r, of in groupby(sorted(contents.steps, key=rank), rank)}
    records = []
    for number in sorted({*rows, *steps, *contents.files}):
        left_out = {w: n for (r, w), n in contents.left_out.items() if r == number}
        table = np.array(
            [
                (s.iteration, np.nan, s.tokens, s.start, s.end, s.source, "train")
                for s in steps.get(number, ())
            ],
            STEP,
        )
        records.append(
            _record(
                rows.get(number, []),
                contents.placed,
                rank=number,
                node=contents.nodes.get(number, ""),
                meta=meta,
                steps=table,
                omitted=left_out,
            )
        )
    return records


def _record(
    rows: Sequence[Row],
    placed: Mapping[tuple[int, Group], Sequence[int]],
    *,
    steps: Any,
    **facts: Any,
) -> RankRecord:
    """Build the record of one rank from its rows in program order."""
    groups: dict[Group, int] = {}
    sites = SiteNumbers()
    tables: dict[str, dict[int, list[Any]]] = {ROUTING: {}, ALL_TO_ALL: {}}
    counts: Counter[Group] = Counter()
    calls = np.zeros(len(rows), CALL)
    for call, row in zip(calls, rows, strict=True):
        site = Site(
            group=groups.setdefault(row.group, len(groups)),
            operation=row.operation,
            phase=row.phase,
            layer=row.layer,
            direction=row.direction,
            dtype=row.dtype,
            row_bytes=max(0, row.row_bytes),
            label=row.label,
            peers=row.peers,
            experts=len(row.sent) if row.operation == ROUTING else 0,
            source=row.source
            if row.layer >= 0 or row.phase or row.label
            else Source.UNKNOWN,
        )
        call["site"] = sites.add(site)
        call["payload"] = row.volume
        if row.operation in tables:
            values = tables[row.operation].setdefault(len(row.sent), [])
            call["payload"] = len(values)
            values.append((row.sent, row.received))
        for name in ("iteration", "issue", "start", "end", "thread", "link"):
            call[name] = getattr(row, name)
        collective = row.operation != ROUTING and row.peers == (-1, -1)
        call["sequence"] = -1
        if collective and row.sequence != UNNUMBERED:
            call["sequence"] = row.sequence
            if row.sequence < 0:
                call["sequence"] = counts[row.group]
                counts[row.group] += 1
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
    arrays = {
        operation: {w: narrow(np.array(v, np.int64)) for w, v in of.items()}
        for operation, of in tables.items()
    }
    return RankRecord(
        groups=tuple(groups),
        sites=tuple(sites.sites),
        calls=calls,
        steps=steps,
        splits=arrays[ALL_TO_ALL],
        demand=arrays[ROUTING],
        placements=np.array(placements, PLACEMENT),
        **facts,
    )


def _recovered(trace: Trace, files: Mapping[int, str]) -> list[str]:
    """Describe recovered and unknown byte counts, one sentence each."""
    rows: Counter[int] = Counter()
    unsized = 0
    for number, site in enumerate(trace.sites):
        if site.operation == ROUTING:
            continue
        presence = trace.presence(np.flatnonzero(trace.occurrences.site == number))
        recovered = (presence == Presence.RECOVERED).sum(axis=0).tolist()
        members = trace.groups[site.group].ranks
        rows += Counter(dict(zip(members, recovered, strict=True)))
        unsized += int((presence == Presence.UNSIZED).sum())
    remarks = []
    for ranks, but in (
        ([rank for rank in sorted(rows) if rank in files], ""),
        ([rank for rank in sorted(rows) if rank not in files], OWN),
    ):
        if ranks:
            many = len(ranks) > 1
            remarks.append(
                f"{sum(rows[rank] for rank in ranks)} rows of rank{'s' * many} "
                f"{rank_span(ranks)} are recovered from what "
                f"{'their' if many else 'its'} peers received{but}"
            )
    if unsized:
        remarks.append(f"{unsized} calls have unknown byte counts")
    return remarks
