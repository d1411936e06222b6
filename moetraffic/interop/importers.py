"""Registry of import formats, format detection, and the import functions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from moetraffic import __version__
from moetraffic.errors import TraceError
from moetraffic.spelling import check_choice
from moetraffic.trace import ALL_TO_ALL, ROUTING, Group, Meta, Trace
from moetraffic.trace.merge.merging import Merged, merge_records
from moetraffic.trace.model import Presence
from moetraffic.units import rank_span

from . import (
    chakra,
    exchange_table,
    execution_trace,
    kineto,
    megatron_router_trace,
    nccl_inspector,
    traffic_matrix,
)
from .imported_call import rank_records
from .importer import (
    BY_OPTION,
    ImportedFiles,
    Importer,
    ImportOptions,
    too_few_ranks,
)
from .json_reader import MOST_RANKS, opened, words, wrong
from .model_properties import validate_model
from .process_group import UNKNOWN
from .unread_communication import describe

IMPORTERS: dict[str, Importer] = {
    one.name: one
    for one in (
        kineto.IMPORTER,
        execution_trace.IMPORTER,
        megatron_router_trace.IMPORTER,
        nccl_inspector.IMPORTER,
        traffic_matrix.IMPORTER,
        exchange_table.IMPORTER,
        chakra.IMPORTER,
    )
}
"""The formats by name, in the order in which they are tried on a file."""

FORMATS = {name: one.what for name, one in IMPORTERS.items()}
"""Descriptions of the formats by name."""

BEGINNING = 1 << 16  # characters
EMPTY = re.compile(r"router_trace_rank\d+\.jsonl")  # of a rank without experts
MOST_FILES = 100_000
MOST_CELLS = 1 << 28  # total cells of matrices: 2 GiB


def choose(paths: Sequence[Path], format: str) -> tuple[str, list[Path]]:
    """List the files to import, and detect their common format."""
    check_choice("a format", format, ("", *FORMATS), TraceError)
    files: list[Path] = []
    found: set[str] = set()
    for path in paths:
        folder = path.is_dir()
        inside = sorted(f for f in path.rglob("*") if f.is_file())
        if len(inside) > MOST_FILES:
            raise TraceError(
                f"{path} holds {len(inside)} files, more than {MOST_FILES}: name them"
            )
        named = [f for f in inside if not f.name.startswith(".")]
        for file in named if folder else [path]:
            # files of other formats in a folder are ignored
            told = format if format and not folder else detect(file)
            if file.is_file() and not file.stat().st_size:
                if EMPTY.fullmatch(file.name):
                    told = megatron_router_trace.IMPORTER.name
                elif not folder:
                    raise wrong(file, "it is empty", "name a file with a run")
            if not told and ".csv" in file.suffixes and not folder:
                told = exchange_table.IMPORTER.name  # which describes its columns
            if told and (not format or told == format):
                files.append(file)
                found.add(told)
            elif not folder:
                if _is_trace(file):
                    raise TraceError(
                        f"{path.name} is a moetraffic trace, which needs no import: "
                        f"use it as it is (moetraffic info {path})"
                    )
                raise TraceError(
                    f"the format of {path.name} is not known: name its format with "
                    f"--from ({', '.join(FORMATS)}), or write its transfers as a CSV "
                    f"table with the columns {', '.join(exchange_table.EXCHANGES)}"
                )
    if not files:
        what = f" of format {format}" if format else " of a known format"
        raise TraceError(
            f"there is no file{what} in {', '.join(map(str, paths))[:200]}: the "
            f"formats are {', '.join(FORMATS)}"
        )
    if len(found) > 1:
        raise TraceError(
            f"files of one format are imported at a time, but these are of "
            f"{' and '.join(sorted(found))}: choose with --from"
        )
    return found.pop(), list(dict.fromkeys(files))


def _is_trace(path: Path) -> bool:
    """Whether a file is a trace, which needs no import."""
    try:
        with Trace.open(path):
            return True
    except TraceError:
        return False


def detect(path: Path) -> str:
    """Detect the format of a file; "" if it is unknown."""
    with opened(path) as text:
        beginning = text.read(BEGINNING).lstrip()
    return next((n for n, one in IMPORTERS.items() if one.matches(beginning)), "")


def import_files(
    paths: Sequence[Path],
    *,
    format: str = "",
    options: ImportOptions | None = None,
    keep: bool = True,
) -> tuple[str, Merged]:
    """Read the files of all ranks, in one format, into a trace with diagnostics.

    Parameters and errors are those of :func:`import_trace`.  Returns the format, and
    the trace with descriptions of missing calls, and of contradictions between calls or
    ranks.
    """
    options = options or ImportOptions()
    format, files = choose(paths, format)
    validate_model(options)
    read = IMPORTERS[format].read(files, options)
    world, world_by = _world(read, options)
    meta = Meta(
        origin="imported",
        world=world,
        experts=read.experts or options.experts,
        k=read.k or options.k,
        moetraffic=__version__,
        source=words(", ".join(f.name for f in files), 1000),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )
    cells = sum(
        len(c.group.ranks) ** (2 if c.operation == ALL_TO_ALL else 1)
        for r in read.records
        for c in r.calls
    )
    if cells > MOST_CELLS * min(64, world):
        raise TraceError(
            f"matrices of at most {MOST_CELLS} values are imported at once, but these "
            f"files have {cells}: import fewer steps"
        )
    if not any(r.calls for r in read.records):
        seen = sum((r.seen for r in read.records), Counter[str]())
        why = describe(seen, [what for r in read.records for what in r.left_out])
        raise TraceError(
            f"{meta.source[:200]} has no collective that can be imported: {why[:600]}"
        )
    merged = merge_records(
        rank_records(read.records, meta, read.placed),
        meta.source[:200],
        missing=read.remarks,
        recover=True,
    )
    said = _recovered(merged, {r.rank for r in read.records})
    own = [c for r in read.records for c in r.contradictions]
    contradictions = (*own, *merged.contradictions)
    if contradictions and not keep:
        first, *others = contradictions
        more = f" (and {len(others)} more)" if others else ""
        raise TraceError(
            f"the files contradict each other, {first}{more}: leave out what is of "
            "another run, or write the trace in spite of it with --keep"
        )
    inferred = "; ".join(_inferences(read, world, world_by))[:2000]
    missing = "; ".join(p for p in (merged.trace.meta.missing, *said) if p)[:4000]
    told = replace(
        merged.trace.meta, missing=missing, complete=not missing, inferred=inferred
    )
    return format, replace(
        merged,
        trace=merged.trace.replaced(meta=told),
        missing=(*merged.missing, *said),
        contradictions=contradictions,
    )


def import_trace(
    paths: Path | str | Sequence[Path | str],
    *,
    format: str = "",
    options: ImportOptions | None = None,
    keep: bool = False,
) -> Trace:
    """Convert profiles, execution traces, router traces, matrices or CSV to a trace.

    Parameters
    ----------
    paths
        Files of all ranks of one run, or folders of them.
    format
        One of :data:`FORMATS`; detected if empty.
    options
        Properties of the run that the files do not contain.
    keep
        Return the trace even if files contradict each other.

    Returns
    -------
    Trace
        In memory; ``trace.save(path)`` writes it.

    Raises
    ------
    TraceError
        If a file is damaged, of another format or of another run, or if files
        contradict each other and ``keep`` is false.
    """
    files = [paths] if isinstance(paths, Path | str) else paths
    return import_files(
        [Path(p) for p in files], format=format, options=options, keep=keep
    )[1].trace


def _world(read: ImportedFiles, options: ImportOptions) -> tuple[int, str]:
    """Return the number of ranks, and what it is from."""
    highest = max((r.rank for r in read.records), default=0) + 1
    told = max(read.world, highest)
    if told > MOST_RANKS:
        raise TraceError(
            f"a run has at most {MOST_RANKS} ranks, but a file is of rank {told - 1}: "
            "take a whole copy of it"
        )
    if options.ranks and options.ranks < told:
        raise too_few_ranks(told, options)
    if options.ranks:
        return options.ranks, BY_OPTION
    by = read.world_by if read.world_by and read.world == told else ""
    return told, by or "the highest rank in the files"


def _inferences(read: ImportedFiles, world: int, world_by: str) -> list[str]:
    """Describe what an import inferred, and from what, a sentence each."""
    ranks = "rank" if world == 1 else "ranks"
    said = [f"{world} {ranks}, from {world_by}", *read.inferred]
    counts: Counter[tuple[Group, str]] = Counter()
    for record in read.records:
        counts += record.inferred
    for (group, reason), count in counts.items():
        members = rank_span(group.ranks)
        of = f"group of {count} calls inferred as {group.kind} {members}"
        if group.kind == UNKNOWN:
            of = f"group of {count} calls unknown within ranks {members}"
        said.append(f"{of}: {reason}")
    return said


def _recovered(merged: Merged, here: set[int]) -> list[str]:
    """Describe recovered and unknown byte counts, one sentence each."""
    trace, said = merged.trace, []
    rows: dict[int, int] = {}
    unsized = 0
    for number, site in enumerate(trace.sites):
        if site.operation == ROUTING:
            continue
        of = np.flatnonzero(trace.occurrences.site == number)
        ranks = trace.groups[site.group].ranks
        presence = trace.presence(of)
        for member, count in enumerate((presence == Presence.RECOVERED).sum(axis=0)):
            rows[ranks[member]] = rows.get(ranks[member], 0) + int(count)
        unsized += int((presence == Presence.UNSIZED).sum())
    for rank, count in sorted(rows.items()):
        if count:
            but = "" if rank in here else ", but for what it kept for itself"
            said.append(
                f"{count} rows of rank {rank} are recovered from what its peers "
                f"received{but}"
            )
    if unsized:
        said.append(f"{unsized} calls have unknown byte counts")
    return said
