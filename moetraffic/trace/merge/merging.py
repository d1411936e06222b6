"""Merge the records of all ranks into one trace.

1. Join the calls of all ranks (``rank_record``), infer what is not annotated
   (``inference``), and assemble occurrences (``assembly``).
2. Fill the panels: presence, times, demand.
3. Join the bytes of each call from both ends (``reconcile``), and check those of each
   layer (``layer_checks``, ``row_counts``).

Calls that a killed rank did not record are marked as absent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.errors import CaptureError
from moetraffic.files import LOGS, remove_folder
from moetraffic.trace.inference.inference import infer_schedule
from moetraffic.trace.model import (
    ROUTING,
    UNKNOWN_TIME,
    Meta,
    Presence,
    Source,
    Steps,
)
from moetraffic.trace.panel import ArrayPanel, Panel
from moetraffic.trace.storage import table_of
from moetraffic.trace.trace import TIMES, Trace

from .assembly import Assembly, assemble
from .completeness import gaps, is_complete, omitted_calls, remarks
from .groups import number_groups
from .layer_checks import check_layers
from .log_folder import recording
from .log_format import ranks_of
from .rank_log import read_rank
from .rank_record import RankRecord, Record, join_ranks, no_record
from .reconcile import with_bytes
from .routings import expert_placements, fill_routings
from .row_counts import differing_rows

MOST_CELLS = 1 << 20  # steps x ranks accepted without check
MOST_ABSENT = 64  # largest accepted ratio of cells to recorded cells
MOST_TEXT = 4000  # longest description of what is missing, in characters


@dataclass(frozen=True, kw_only=True)
class Merged:
    """Merged trace, with the gaps, remarks and contradictions of its capture."""

    trace: Trace
    missing: tuple[str, ...]  # gaps of the capture, a sentence each
    remarks: tuple[str, ...]  # reason of an early end, and omitted records
    contradictions: tuple[str, ...]  # disagreements between two ranks' records


class NothingRecorded(CaptureError):
    """Raised if the logs of a capture contain neither steps nor calls."""


# ---- folders of logs -----------------------------------------------------------------


def merge(folder: Path) -> Merged:
    """Read a folder of logs, and merge them into a trace.

    Raises
    ------
    CaptureError
        If nothing can be merged.
    """
    missing: list[str] = []
    return merge_records(_read_all(folder, missing), folder.name, missing=missing)


def merge_into(folder: Path, path: Path, *, force: bool) -> Merged:
    """Merge a folder of logs into a file, and delete the folder if complete."""
    try:
        merged = merge(folder)
    except NothingRecorded:
        remove_folder(folder)  # an empty folder would block the next capture
        raise
    write(merged, folder, path, force=force)
    return merged


def write(merged: Merged, folder: Path, path: Path, *, force: bool) -> None:
    """Save a merged trace; delete its logs if complete; see :func:`merge_into`."""
    if not len(merged.trace.steps.iteration) and path.exists():
        raise CaptureError(
            f"{folder} holds no step that has ended, and so does not replace {path}: "
            "name another output"
        )
    merged.trace.save(path, force=force)
    if not merged.missing and not merged.contradictions:
        remove_folder(folder)


def _read_all(folder: Path, missing: list[str]) -> list[RankRecord]:
    """Read the logs of the ranks of one capture; state what is left out."""
    if not folder.is_dir():
        there = "is a file" if folder.exists() else "does not exist"
        raise CaptureError(
            f"merge takes the folder of logs that a capture left, but {folder} "
            f"{there}: it is named like the output with {LOGS} behind it"
        )
    busy, records, unread = recording(folder), list[RankRecord](), dict[int, str]()
    for rank in ranks_of(folder):
        try:
            record = read_rank(folder, rank)
        except CaptureError as error:
            unread[rank] = f"rank {rank} is left out: {error}"
        else:
            records.append(replace(record, recording=rank in busy))
    if not records:
        nothing = (
            f"{folder} holds no log that can be read, so there is nothing to merge: it "
            "is no folder of logs, or the capture ended at its start"
        )
        raise CaptureError("; ".join([nothing, *list(unread.values())[:2]]))
    # logs of an earlier capture, of more ranks
    captures = [(record.meta.world, record.capture) for record in records]
    usual = Counter(captures).most_common(1)[0][0]
    missing += [
        f"rank {record.rank} is left out: its log is of another capture, of "
        f"{record.meta.world} ranks"
        for record, capture in zip(records, captures, strict=True)
        if capture != usual
    ]
    records = [r for r, c in zip(records, captures, strict=True) if c == usual]
    meta = records[0].meta
    records += [no_record(rank, meta, damage) for rank, damage in unread.items()]
    return sorted(records, key=lambda record: record.rank)


# ---- records -------------------------------------------------------------------------


def merge_records(
    records: Sequence[RankRecord],
    name: str,
    *,
    missing: Sequence[str] = (),
    recover: bool = False,
    split: bool = True,
) -> Merged:
    """Merge the records of ranks into a trace.

    Parameters
    ----------
    records
        One of each rank at most, sorted by rank.
    name
        Name of their source, for messages.
    missing
        Parts that are known to be missing, a sentence each.
    recover
        Whether missing bytes of all-to-alls are reconstructed from the peers' records,
        and marked.
    split
        Whether evaluations within training iterations become their own iterations.
    """
    if not any(len(r.steps) or len(r.calls) for r in records):
        unread = missing or any(r.damage or r.recording for r in records)
        raise (CaptureError if unread else NothingRecorded)(
            f"{name} holds neither a step nor a collective, so there is nothing to "
            "merge: the capture ended before its first step"
        )
    _validate_presence(records, name)
    record = join_ranks(number_groups(records))
    del records  # the largest arrays, if the caller keeps none
    record = infer_schedule(record, split=split)
    lacking, said = [*missing, *gaps(record)], remarks(record)
    nodes = {number: rank.node for number, rank in record.ranks.items()}
    meta = replace(
        record.meta,
        complete=not missing and is_complete(record),
        missing="; ".join([*said, *lacking])[:MOST_TEXT],
        omitted=omitted_calls(record),
        nodes=tuple(nodes.get(rank, "") for rank in range(record.meta.world)),
    )
    tables: dict[str, Any] = {
        "groups": record.groups,
        "steps": _steps(record),
        "placements": expert_placements(record),
        "clocks": np.unique(np.concatenate([r.clocks for r in record.ranks.values()])),
    }
    assembly = assemble(record)
    del record
    meta = _derived(meta, assembly)
    sites, routings, before_drops = fill_routings(assembly)
    draft = Trace(
        meta=meta,
        sites=sites,
        occurrences=assembly.occurrences,
        panels=_call_panels(assembly) | routings,
        **tables,
    )
    trace, unequal = with_bytes(draft, assembly, recover=recover)
    trace, differing = check_layers(trace, before_drops)
    meta = replace(trace.meta, contradiction=differing_rows(trace))
    return Merged(
        trace=trace.replaced(meta=meta),
        missing=tuple(lacking),
        remarks=tuple(said),
        contradictions=(*unequal, *differing),
    )


def _validate_presence(records: Sequence[RankRecord], name: str) -> None:
    """Reject records of too few ranks: absent data would fill the memory."""
    world = records[0].meta.world
    iterations = np.unique(np.concatenate([r.steps["iteration"] for r in records]))
    cells = max(1, len(iterations)) * world
    recorded = sum(len(r.steps) for r in records)
    if cells > max(MOST_CELLS, MOST_ABSENT * recorded):
        raise CaptureError(
            f"too few ranks: {name} has {len(iterations)} steps of {world} ranks, but "
            f"records of only {recorded} of them: gather those of the other ranks in it"
        )


def _derived(meta: Meta, assembly: Assembly) -> Meta:
    """Set experts, ep, k and router from the calls, if there is no workload."""
    if meta.workload:
        return meta
    sites = assembly.sites
    used = [n for n, s in enumerate(sites) if s.phase or s.operation == ROUTING]
    experts = {sites[n].experts for n in used} - {0}
    widths = {int(assembly.width[n]) for n in used}
    ranks = assembly.ranks.values()
    k, source = _experts_per_token(meta.k, list(ranks))
    routers = ", ".join(sorted({r.meta.router for r in ranks} - {""}))
    return replace(
        meta,
        experts=experts.pop() if len(experts) == 1 else meta.experts,
        ep=widths.pop() if len(widths) == 1 else meta.ep,
        k=k,
        router=", ".join(dict.fromkeys(routers.split(", "))),
        inferred="; ".join(filter(None, (meta.inferred, source))),
    )


def _experts_per_token(stated: int, ranks: Sequence[RankRecord]) -> tuple[int, str]:
    """Return the experts per token, 0 if unknown, and what they were inferred from.

    ``stated`` is the user's value, 0 for none.  The expert ids of the routers take
    precedence if they have one k, of which all routed copies are a multiple: otherwise
    ids are absent (-1) for some copies, and the number of tokens is unknown.
    """
    routed = {rank.routed_k for rank in ranks} - {0}
    if len(routed) > 1 or min(routed, default=0) < 0:
        return stated, "routers differ in the number of experts per token"
    k = max(routed, default=0)
    panels = (panel for rank in ranks for panel in rank.demand.values())
    if not k or any((panel[:, 0].sum(axis=-1) % k).any() for panel in panels):
        return stated, ""
    if stated not in (0, k):
        return k, f"expert ids have {k} a token, but k={stated} was given: {k} is used"
    return k, "" if stated else f"k={k} from the expert ids of the routers"


def _steps(record: Record) -> Steps:
    table = record.steps
    iterations, row = np.unique(table["iteration"], return_inverse=True)
    shape = (len(iterations), record.meta.world)
    kinds = np.full(len(iterations), "train", table["kind"].dtype)
    kinds[row] = table["kind"]
    columns: dict[str, Any] = {
        "loss": np.full(shape, np.nan),
        "tokens": np.full(shape, -1, np.int64),
        "start": np.full(shape, UNKNOWN_TIME, np.int64),
        "end": np.full(shape, UNKNOWN_TIME, np.int64),
    }
    for name, column in columns.items():
        column[row, table["rank"]] = table[name]
    columns["source"] = np.full(len(iterations), max(Source), np.uint8)
    np.minimum.at(columns["source"], row, table["source"])
    return Steps(iteration=iterations, kind=tuple(kinds.tolist()), **columns)


def _call_panels(assembly: Assembly) -> dict[str, Panel]:
    """Build the panels of presence and times of all tables."""
    calls, every = assembly.table, assembly.occurrences
    names = np.array([table_of(site, assembly.groups) for site in assembly.sites])
    panels: dict[str, Panel] = {}
    for name in np.unique(names).tolist():
        occurrences = np.flatnonzero(names[every.site] == name)
        own = calls[names[calls["site"]] == name]
        cells = (np.searchsorted(occurrences, own["occurrence"]), own["member"])
        shape = (len(occurrences), int(assembly.width[names == name][0]))
        present = np.full(shape, Presence.ABSENT, np.uint8)
        present[cells] = Presence.RECORDED
        panels[f"{name}/present"] = ArrayPanel(present)
        for column in TIMES if name.startswith("call") else TIMES[:1]:
            times = np.full(shape, UNKNOWN_TIME, np.int64)
            times[cells] = own[column]
            panels[f"{name}/{column}"] = ArrayPanel(times)
    return panels
