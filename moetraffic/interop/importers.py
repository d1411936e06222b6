"""Import the files of other tools into a trace."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from moetraffic import __version__
from moetraffic.errors import TraceError
from moetraffic.trace import Trace
from moetraffic.trace.merge.merging import Merged, merge_segments
from moetraffic.trace.model import (
    ALL_TO_ALL,
    ROUTING,
    UNKNOWN_TIME,
    Group,
    Meta,
    Presence,
)
from moetraffic.trace.panel import take

from . import (
    exchange_table,
    execution_trace,
    kineto,
    megatron_router_trace,
    nccl_inspector,
    traffic_matrix,
)
from .format_detection import choose
from .imported_call import ImportedCall, Placed, RankRecord, segments
from .json_reader import MOST_RANKS, words, wrong

RANK = re.compile(r"rank[_\-.]?(\d{1,7})(?!\d)", re.I)
LAST_NUMBER = re.compile(r"(?:^|[_\-.])(\d{1,7})$")
MOST_CELLS = 1 << 28  # total cells of matrices: 2 GiB


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Properties of the run that the files do not contain; 0 and "" are unknown."""

    ranks: int = 0
    experts: int = 0
    ep: int = 0
    unit: str = "KiB"


@dataclass(frozen=True, kw_only=True)
class ImportedFiles:
    """Combined content of all imported files."""

    records: list[RankRecord]
    world: int
    placed: Placed | None = None
    experts: int = 0
    k: int = 0
    remarks: tuple[str, ...] = ()


def import_files(
    paths: Sequence[Path],
    *,
    format: str = "",
    options: ImportOptions | None = None,
    keep: bool = True,
) -> tuple[str, Merged]:
    """Read the files of all ranks, in one format, into a trace with diagnostics.

    Parameters
    ----------
    paths
        Files, or folders of them.
    format
        A name of :data:`.format_detection.FORMATS`; detected if empty.
    options
        Properties of the run that the files do not contain.
    keep
        Return the trace even if files contradict each other.

    Returns
    -------
    str
        The format.
    Merged
        The trace, with descriptions of missing calls, and of contradictions between
        calls or ranks.

    Raises
    ------
    TraceError
        If a file is damaged, of another format or of another run, or if files
        contradict each other and ``keep`` is false.
    """
    options = options or ImportOptions()
    format, files = choose(paths, format)
    names = words(", ".join(f.name for f in files), 1000)
    read = READERS[format](files, options)
    world = _world(read, options)
    meta = Meta(
        origin="imported",
        world=world,
        experts=read.experts,
        k=read.k,
        moetraffic=__version__,
        source=names,
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
        raise TraceError(
            f"{meta.source[:200]} tells of no collective that can be taken over: "
            + (_left_out(read.records) or "it was written without communication")
        )
    merged = merge_segments(
        segments(read.records, meta, read.placed),
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
    missing = "; ".join(p for p in (merged.trace.meta.missing, *said) if p)[:4000]
    told = replace(merged.trace.meta, missing=missing, complete=not missing)
    return format, replace(
        merged,
        trace=merged.trace.replace(meta=told),
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
        One of "profiler", "execution-trace", "megatron", "nccl-inspector", "matrix" and
        "csv"; detected if empty.
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


def _left_out(records: Sequence[RankRecord]) -> str:
    words = {what for r in records for what in r.left_out}
    return "it has " + ", ".join(sorted(words)) if words else ""


def _world(read: ImportedFiles, options: ImportOptions) -> int:
    told = max(read.world, max((r.rank for r in read.records), default=0) + 1)
    if told > MOST_RANKS:
        raise TraceError(
            f"a run has at most {MOST_RANKS} ranks, but a file is of rank {told - 1}: "
            "take a whole copy of it"
        )
    if options.ranks and options.ranks < told:
        raise TraceError(
            f"the files are of {told} ranks, but --ranks is {options.ranks}: raise it"
        )
    return max(told, options.ranks)


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
        name = f"present_{len(ranks)}"
        presence = take(trace.panels[name], trace.rows_of(name)[of])
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
        said.append(f"of {unsized} calls the files do not tell all bytes")
    return said


# ---- formats --------------------------------------------------------------------


def rank_in_name(path: Path) -> int | None:
    """Parse the rank from a file name: ``rank3``, or a number at its end.

    >>> rank_in_name(Path("et_rank_3.json.gz")), rank_in_name(Path("trace.json"))
    (3, None)
    """
    stem = path.name
    while "." in stem and stem.rpartition(".")[2].lower() in (
        *("json", "jsonl", "gz", "et", "trace", "pt", "log", "txt"),
    ):
        stem = stem.rpartition(".")[0]
    found = RANK.findall(stem) or LAST_NUMBER.findall(stem)
    return int(found[-1]) if found else None


def _rank_by_rank(
    reader: Callable[[Path, int | None], tuple[RankRecord, int]],
    files: Sequence[Path],
    options: ImportOptions,
) -> ImportedFiles:
    """Read files that each hold one rank, and check that they are of one run."""
    read = [reader(file, rank_in_name(file)) for file in files]
    worlds = {world: record.source for record, world in read if world}
    if len(worlds) > 1:
        (few, one), (many, other) = sorted(worlds.items())[:2]
        raise TraceError(
            f"files of one run are imported together, but {one} is of {few} ranks and "
            f"{other} of {many}: leave one of them out"
        )
    records = [record for record, _ in read]
    for rank in {r.rank for r in records}:
        mine = [r for r in records if r.rank == rank]
        spans = sorted(
            (min(i), max(i)) for r in mine if (i := [step for step, _, _ in r.steps])
        )
        apart = all(a[1] < b[0] for a, b in pairwise(spans))
        if len(mine) > 1 and (len(spans) < len(mine) or not apart):
            raise TraceError(
                f"a rank has one file, or one for each of several steps, but "
                f"{mine[0].source} and {mine[1].source} are both of rank {rank}: "
                "leave one of them out"
            )
    return ImportedFiles(records=records, world=max(worlds, default=0))


def _megatron(files: Sequence[Path], options: ImportOptions) -> ImportedFiles:
    every = [megatron_router_trace.read(f, rank_in_name(f)) for f in files]
    if len({d.rank for d in every}) < len(every):
        raise TraceError(
            "a rank has one router trace, but two of these files are of one rank: "
            "import one run at a time"
        )
    seen = megatron_router_trace.experts_of(every)
    experts, remarks = options.experts or seen, []
    if options.experts and options.experts < seen:
        raise TraceError(
            f"the files choose expert {seen - 1}, but --experts is {options.experts}: "
            "raise it"
        )
    if not options.experts:
        remarks.append(
            f"the files do not say how many experts there are, {seen} were chosen from"
        )
    world = max(options.ranks, max(d.rank for d in every) + 1)
    ep = options.ep or world
    if world % ep or (options.ep and experts % ep):
        raise TraceError(
            f"experts lie on ep ranks in equal parts, but ep is {ep}, with {world} "
            f"ranks and {experts} experts: change --ep, --experts or --ranks"
        )
    kind = "ep" if options.ep else "world"
    groups = [
        Group(kind=kind, ranks=tuple(range(first, first + ep)))
        for first in range(0, world, ep)
    ]
    records = megatron_router_trace.records(every, experts, groups)
    layers = {c.layer for r in records for c in r.calls}
    placed = {
        (layer, g): [g.ranks[e * ep // experts] for e in range(experts)]
        for g in groups
        for layer in layers
    }
    topk = {k for d in every for k in d.topk}
    return ImportedFiles(
        records=records,
        world=world,
        placed=placed if options.ep else None,
        experts=experts,
        k=topk.pop() if len(topk) == 1 else 0,
        remarks=tuple(remarks),
    )


def _nccl_inspector(files: Sequence[Path], options: ImportOptions) -> ImportedFiles:
    every = nccl_inspector.Operations()
    for file in files:
        nccl_inspector.read(file, every)
    if not every.seen:
        raise wrong(files[0], "it holds no operation")
    try:
        records, world = nccl_inspector.records(every)
    except ValueError as error:
        raise TraceError(str(error)) from None
    remark = "NCCL Inspector leaves out messages below 8192 bytes unless told to"
    return ImportedFiles(records=records, world=world, remarks=(remark,))


def _traffic_matrix(files: Sequence[Path], options: ImportOptions) -> ImportedFiles:
    if options.unit not in traffic_matrix.UNITS:
        raise TraceError(
            f"a unit is one of {', '.join(traffic_matrix.UNITS)}, not "
            f"{options.unit[:40]!r}: change --unit"
        )
    matrices = [m for f in files for m in traffic_matrix.read(f, options.unit)]
    world = len(matrices[0])
    if any(len(m) != world for m in matrices):
        raise TraceError(
            "matrices of one run have one size, but these differ: import each by itself"
        )
    group = Group(kind="world", ranks=tuple(range(world)))
    records = [RankRecord(rank=rank, source=files[0].name) for rank in range(world)]
    for iteration, matrix in enumerate(matrices):
        for rank, record in enumerate(records):
            record.steps.append((iteration, UNKNOWN_TIME, UNKNOWN_TIME))
            record.calls.append(
                ImportedCall(
                    operation=ALL_TO_ALL,
                    group=group,
                    row_bytes=0,
                    sent=matrix[rank],
                    received=matrix[:, rank],
                    iteration=iteration,
                )
            )
    return ImportedFiles(records=records, world=world)


def _exchange_table(files: Sequence[Path], options: ImportOptions) -> ImportedFiles:
    table = exchange_table.ExchangeTable()
    for file in files:
        exchange_table.read(file, table)
    world = max(options.ranks, exchange_table.world_of(table))
    experts = max(options.experts, exchange_table.experts_of(table))
    if not world:
        raise wrong(files[0], "it holds no line but the names of its columns")
    source = files[0].name
    records = exchange_table.records(table, world, source, experts)
    return ImportedFiles(records=records, world=world, experts=experts)


READERS: dict[str, Callable[[Sequence[Path], ImportOptions], ImportedFiles]] = {
    "profiler": partial(_rank_by_rank, kineto.read),
    "execution-trace": partial(_rank_by_rank, execution_trace.read),
    "megatron": _megatron,
    "nccl-inspector": _nccl_inspector,
    "matrix": _traffic_matrix,
    "csv": _exchange_table,
}
