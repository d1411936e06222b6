"""Merge the segments of all ranks into one trace.

1. Join the events of all ranks (``segments.record``), infer what is not annotated
   (``inference``), and assemble occurrences (``assembly``).
2. Fill the panels: presence, times, demand.
3. Join and check the bytes of each call (``reconcile``).

Calls that a killed rank did not record are marked as absent.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import CaptureError, TraceError
from moetraffic.files import SEGMENTS, remove_folder
from moetraffic.trace.choices import padded
from moetraffic.trace.inference.inference import infer_schedule
from moetraffic.trace.model import (
    ROUTING,
    UNKNOWN_TIME,
    DroppedForm,
    Meta,
    Presence,
    Site,
    Source,
    Steps,
)
from moetraffic.trace.panel import ArrayPanel, Panel
from moetraffic.trace.segments.record import Record, gather_record
from moetraffic.trace.segments.segment import (
    PATTERN,
    Segment,
    read_segment,
    segment_path,
)
from moetraffic.trace.segments.store import RANKS, RECORDS, recording
from moetraffic.trace.storage import table_of
from moetraffic.trace.trace import TIMES, Trace

from .assembly import Events, assemble_events
from .reconcile import with_bytes
from .row_counts import differing_rows
from .virtual_ranks import trace_of_shards

MOST_CELLS = 1 << 20  # steps x ranks accepted without check
MOST_ABSENT = 64  # largest accepted ratio of cells to recorded cells
STEP_VALUES = frozenset(("loss", "token count", "step kind"))
"""Kinds of omitted records that are no traffic."""
_OMITTED = re.compile(r"(?:(?:^|\), )\d+ x |\); )([\w ]*\w)")


@dataclass(frozen=True, kw_only=True)
class Merged:
    """Merged trace, with the gaps, remarks and contradictions of its capture."""

    trace: Trace
    missing: tuple[str, ...]  # gaps of the capture, a sentence each
    remarks: tuple[str, ...]  # reason of an early end, and omitted records
    contradictions: tuple[str, ...]  # disagreements between two ranks' records


class NothingRecorded(CaptureError):
    """Raised if the segments of a capture contain neither steps nor calls."""


def merge(folder: Path) -> Merged:
    """Read a folder of segments, and merge them into a trace.

    ``folder`` holds ``rank-00000/segment-000000.h5`` and so on.
    """
    segments, unread = _read_all(folder)
    for own in sorted({path.parent for path in folder.glob(f"{RANKS}/{RECORDS}")}):
        rank = int(own.name.rpartition("-")[2])
        still = rank in recording(folder)
        unread.append(
            f"rank {rank} still records"
            if still
            else f"the last records of rank {rank} are not committed: they are in {own}"
        )
    return merge_segments(segments, folder.name, missing=unread)


def merge_segments(
    segments: Sequence[Segment],
    name: str,
    *,
    missing: Sequence[str] = (),
    recover: bool = False,
) -> Merged:
    """Merge segments that are in memory into a trace.

    They are sorted by rank, and by index within a rank; ``name`` is that of their
    source, for messages, and ``missing`` describes segments known to be missing, a
    sentence each.  ``recover`` reconstructs missing bytes of all-to-alls from the
    peers' records, and marks them.
    """
    if not any(len(s.steps) or len(s.events) for s in segments):
        # segments that could not be read may contain events
        raise (CaptureError if missing else NothingRecorded)(
            f"{name} holds neither a step nor a collective, so there is nothing to "
            "merge: the capture ended before its first step"
        )
    _validate_presence(segments, name)
    virtual = segments[0].shards > 0
    record = gather_record(segments)
    if not virtual:
        record = infer_schedule(record)
    ended, seen = (
        _last(table["rank"], table["iteration"])
        for table in (record.steps, record.events)
    )
    gaps = _gaps(segments, 1 if virtual else record.meta.world, ended)
    remarks = _remarks(segments, ended, seen)
    lacking = [*remarks, *missing, *gaps]
    names = {s.rank: s.node for s in segments}
    meta = replace(
        record.meta,
        complete=not (missing or gaps) and _is_complete(segments),
        missing="; ".join(lacking)[:4000],
        nodes=tuple(names.get(rank, "") for rank in range(record.meta.world)),
    )
    record = replace(record, meta=meta)
    contradictions: list[str] = []
    if virtual:
        trace = trace_of_shards(record)
    else:
        trace, contradictions = _merged(record, recover=recover)
    return Merged(
        trace=trace,
        missing=(*missing, *gaps),
        remarks=tuple(remarks),
        contradictions=tuple(contradictions),
    )


def _merged(record: Record, *, recover: bool) -> tuple[Trace, list[str]]:
    """Convert a record to a trace, and list its contradictions."""
    events = assemble_events(record)
    panels, sites = _panels(events)
    draft = Trace(
        meta=_derived(record.meta, events),
        groups=record.groups,
        sites=sites,
        occurrences=events.occurrences,
        panels=panels,
        steps=_steps(record),
        placements=record.placements,
        clocks=np.unique(np.concatenate([s.clocks for s in record.segments])),
    )
    trace, wrong = with_bytes(draft, events, recover=recover)
    contradiction = differing_rows(trace)
    return trace.replaced(meta=replace(trace.meta, contradiction=contradiction)), wrong


def merge_into(folder: Path, path: Path, *, force: bool) -> Merged:
    """Merge a folder of segments into a file, and delete the folder if complete."""
    try:
        merged = merge(folder)
    except NothingRecorded:
        remove_folder(folder)  # an empty folder would block the next capture
        raise
    write(merged, folder, path, force=force)
    return merged


def write(merged: Merged, folder: Path, path: Path, *, force: bool) -> None:
    """Save a merged trace; delete its segments if complete; see :func:`merge_into`."""
    if not len(merged.trace.steps.iteration) and path.exists():
        raise CaptureError(
            f"{folder} holds no step that has ended, and so does not replace {path}: "
            "name another output"
        )
    merged.trace.save(path, force=force)
    if not merged.missing and not merged.contradictions:
        remove_folder(folder)


def _read_all(folder: Path) -> tuple[list[Segment], list[str]]:
    if not folder.is_dir():
        there = "is a file" if folder.exists() else "does not exist"
        raise CaptureError(
            f"merge takes the folder of segments that a capture left, but {folder} "
            f"{there}: it is named like the output with {SEGMENTS} behind it"
        )
    segments, missing = [], []
    for path in sorted(folder.glob(f"rank-*/{PATTERN}")):
        try:
            segment = read_segment(path)
        except TraceError as error:
            missing.append(f"a segment is left out: {error}")
            continue
        if segment_path(folder, segment.rank, segment.index) != path:
            missing.append(
                f"a segment is left out: {path} says that it is window "
                f"{segment.index} of rank {segment.rank}"
            )
            continue
        segments.append(segment)
    if not segments:
        raise CaptureError(
            f"{folder} holds no whole segment, so there is nothing to merge: it is no "
            "folder of segments, or the capture ended before its first window"
            + "".join(f"; {m}" for m in missing[:2])
            + (f"; {len(missing) - 2} more" if len(missing) > 2 else "")
        )
    # ranks of another world are left over from a capture of more ranks
    kinds = [(s.meta.world, s.shards) for s in segments]
    usual = Counter(kinds).most_common(1)[0][0]
    kept = [s for s, kind in zip(segments, kinds, strict=True) if kind == usual]
    missing += [
        f"a segment is left out: window {s.index} of rank {s.rank} has "
        f"{s.meta.world} ranks, the others have {usual[0]}"
        for s, kind in zip(segments, kinds, strict=True)
        if kind != usual
    ]
    return kept, missing


def _validate_presence(segments: Sequence[Segment], name: str) -> None:
    """Reject segments of too few ranks: absent data would fill the memory."""
    world = segments[0].meta.world
    iterations = np.unique(np.concatenate([s.steps["iteration"] for s in segments]))
    cells = max(1, len(iterations)) * world
    there = sum(len(s.steps) for s in segments)
    if cells > max(MOST_CELLS, MOST_ABSENT * there):
        raise CaptureError(
            f"too few segments: {name} has {len(iterations)} steps of {world} ranks, "
            f"but segments of only {there} of them: gather the segments of the other "
            "ranks in it"
        )


def _last(ranks: Int64, iterations: Int64) -> dict[int, int]:
    """Return the last iteration of each rank."""
    used, at = np.unique(ranks, return_inverse=True)
    last = np.full(len(used), -1)
    np.maximum.at(last, at, iterations)
    return dict(zip(used.tolist(), last.tolist(), strict=True))


def _by_rank(segments: Sequence[Segment]) -> dict[int, list[Segment]]:
    found: dict[int, list[Segment]] = {}
    for segment in segments:
        found.setdefault(segment.rank, []).append(segment)
    return dict(sorted(found.items()))


def _gaps(segments: Sequence[Segment], ranks: int, ended: dict[int, int]) -> list[str]:
    """Describe the missing parts of the capture, a sentence each."""
    by_rank = _by_rank(segments)
    missing = []
    for first, after in pairwise([-1, *by_rank, ranks]):
        if after - first > 1:
            missing.append(f"{_span('rank', first + 1, after - 1)} recorded nothing")
    last = max(ended.values(), default=-1)
    for rank, mine in by_rank.items():
        indices = [-1, *sorted(s.index for s in mine)]
        lost = [_span("", a + 1, b - 1) for a, b in pairwise(indices) if b - a > 1]
        if lost:
            missing.append(f"rank {rank} lacks its windows [{', '.join(lost)}]")
        if mine[-1].unrecorded:
            missing.append(f"rank {rank} could not write {mine[-1].unrecorded} events")
        if not mine[-1].final:
            end, window = ended.get(rank, -1), mine[-1].window
            missing.append(
                f"rank {rank} was not closed: its record ends after iteration {end}"
                + (f", {last - end} before the last of all" if end < last else "")
                + f", and {_lost_steps(window)} lost"
            )
    return missing


def _lost_steps(window: int) -> str:
    """Describe the steps after a rank's last segment, of which ``window`` are lost."""
    if not window:
        return "an unknown number of later steps is"
    if window == 1:
        return "at most the step under way is"
    return f"up to {window} later steps are"


def _span(name: str, first: int, last: int) -> str:
    """Format a number or a range of numbers: "rank 3", "ranks 5 to 8"."""
    if first == last:
        return f"{name} {first}".strip()
    return f"{name and name + 's'} {first} to {last}".strip()


def _remarks(
    segments: Sequence[Segment], ended: dict[int, int], seen: dict[int, int]
) -> list[str]:
    """Describe why the capture ended early and which records it omitted, by ranks."""
    remarks: dict[str, list[int]] = {}
    for rank, mine in _by_rank(segments).items():
        last, end = mine[-1], ended.get(rank, -1)
        if last.ended:
            planned = _planned(last.meta)
            of = f" of {planned}" if planned else ""
            text = f"{last.ended} after {end + 1}{of} iterations"
            if (begun := seen.get(rank, -1)) > end:
                text += f", and its record of iteration {begun} is incomplete"
            remarks.setdefault(f"was {text}", []).append(rank)
    for rank, mine in _by_rank(segments).items():
        if mine[-1].left_out:
            remarks.setdefault(f"left out {mine[-1].left_out}", []).append(rank)
    return [
        f"rank {ranks[0]} {what}"
        if len(ranks) == 1
        else f"ranks {', '.join(map(str, ranks))} "
        + re.sub("^left", "each left", re.sub("^was", "were", what))
        for what, ranks in remarks.items()
    ]


def _is_complete(segments: Sequence[Segment]) -> bool:
    """Whether no rank ended early, or omitted more than values of its steps."""
    last = [mine[-1] for mine in _by_rank(segments).values()]
    kinds = [_OMITTED.findall(s.left_out) for s in last if s.left_out]
    return not any(s.ended for s in last) and all(
        found and STEP_VALUES.issuperset(found) for found in kinds
    )


def _planned(meta: Meta) -> int:
    """Return the planned number of training iterations, 0 where it is unknown."""
    try:
        planned = json.loads(meta.workload)["training"]["iterations"]
    except (ValueError, KeyError, TypeError):
        return 0  # a user's training loop has no workload description
    return planned if isinstance(planned, int) else 0


def _derived(meta: Meta, events: Events) -> Meta:
    """Set experts, ep, k and router from the segments, if there is no workload."""
    if meta.workload:
        return meta
    used = [n for n, s in enumerate(events.sites) if s.phase or s.operation == ROUTING]
    experts = {events.sites[n].experts for n in used} - {0}
    widths = {int(events.width[n]) for n in used}
    k, source = _experts_per_token(meta.k, events)
    # the first segment of a rank may be older than its first router call
    routers = ", ".join(sorted({s.meta.router for s in events.segments} - {""}))
    return replace(
        meta,
        experts=experts.pop() if len(experts) == 1 else meta.experts,
        ep=widths.pop() if len(widths) == 1 else meta.ep,
        k=k,
        router=", ".join(dict.fromkeys(routers.split(", "))),
        inferred="; ".join(filter(None, (meta.inferred, source))),
    )


def _experts_per_token(stated: int, events: Events) -> tuple[int, str]:
    """Return the experts per token, 0 if unknown, and what they were inferred from.

    ``stated`` is the user's value, 0 for none.  The expert ids of the routers take
    precedence if they have one k, of which all routed copies are a multiple: otherwise
    ids are absent (-1) for some copies, and the number of tokens is unknown.
    """
    seen = {s.routed_k for s in events.segments} - {0}
    if len(seen) > 1 or min(seen, default=0) < 0:
        return stated, "routers differ in the number of experts per token"
    k = max(seen, default=0)
    panels = (panel for s in events.segments for panel in s.demand.values())
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


def _panels(events: Events) -> tuple[dict[str, Panel], list[Site]]:
    """Build the presence, time and routing panels; mark drops and samples of sites."""
    table, every = events.table, events.occurrences
    sites, width = list(events.sites), events.width
    names = np.array([table_of(site, events.groups) for site in sites])
    panels: dict[str, Panel] = {}
    for name in np.unique(names).tolist():
        of = np.flatnonzero(names[every.site] == name)
        mine = table[names[table["site"]] == name]
        cells = (np.searchsorted(of, mine["occurrence"]), mine["member"])
        shape = (len(of), int(width[names == name][0]))
        present = np.full(shape, Presence.ABSENT, np.uint8)
        present[cells] = Presence.RECORDED
        panels[f"{name}/present"] = ArrayPanel(present)
        for column in TIMES if name.startswith("call") else TIMES[:1]:
            times = np.full(shape, UNKNOWN_TIME, np.int64)
            times[cells] = mine[column]
            panels[f"{name}/{column}"] = ArrayPanel(times)
        routings = [
            n for n in np.flatnonzero(names == name).tolist() if name[:4] != "call"
        ]
        demand, dropped, chosen = [], [], []
        for number in routings:
            routed = events.payload(number).astype(np.int32)
            lost = routed[:, :, 1]
            form = DroppedForm.STORED if lost.any() else DroppedForm.NONE
            if (lost < 0).any():
                form = DroppedForm.UNKNOWN  # settled by the bytes, or not at all
            sample = events.chosen(number)
            sites[number] = replace(
                sites[number],
                dropped=form,
                token_sample=0 if sample is None else sample.shape[2],
            )
            demand.append(routed[:, :, 0])
            dropped.append(np.maximum(lost, 0))
            empty = np.full((len(routed), shape[1], 0, 0), -1, np.int16)
            chosen.append(empty if sample is None else sample)
        if routings:
            panels[f"{name}/demand"] = ArrayPanel(np.concatenate(demand))
        if any(part.any() for part in dropped):
            panels[f"{name}/dropped"] = ArrayPanel(np.concatenate(dropped))
        if any(part.size for part in chosen):
            tokens, k = (max(part.shape[axis] for part in chosen) for axis in (2, 3))
            ids = np.concatenate([padded(part, tokens, k) for part in chosen])
            panels[f"{name}/chosen"] = ArrayPanel(ids)
    return panels, sites
