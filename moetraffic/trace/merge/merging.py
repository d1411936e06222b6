"""Merge the segments of all ranks into one trace.

Step 1 reads every segment and puts the ranks' sites and events beside each other.
Step 2 fills the panels: who was present when, times, demand.
Step 3 checks the bytes of each site and states them as briefly as they allow.
Ranks that were killed leave ragged ends: what a rank did not record is absent there.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.errors import CaptureError, TraceError
from moetraffic.trace.hdf5.durable import SEGMENTS, remove_folder
from moetraffic.trace.inference.schedule import find_schedule
from moetraffic.trace.model import (
    ROUTING,
    UNKNOWN_TIME,
    DroppedForm,
    Group,
    Meta,
    Presence,
    Program,
    Site,
    Steps,
)
from moetraffic.trace.panel import ArrayPanel, Panel
from moetraffic.trace.segments.segment import (
    PATTERN,
    Segment,
    read_segment,
    segment_path,
)
from moetraffic.trace.trace import Trace

from .assembly import Events, Layouts, gather_events, gather_layouts
from .shards import trace_of_shards
from .wire_encoding import state_bytes

MOST_CELLS = 1 << 20  # steps x ranks that need no proof
MOST_ABSENT = 64  # of these, at most, one that is there


@dataclass(frozen=True, kw_only=True)
class Merged:
    """A merged trace, and what there is to say about it."""

    trace: Trace
    missing: tuple[str, ...]  # what should be there and is not, a sentence each
    remarks: tuple[str, ...]  # what ended the capture early, and what was left out
    contradictions: tuple[str, ...]  # where two ranks' records disagree


class NothingRecorded(CaptureError):
    """The segments of a capture hold nothing at all."""


def merge(folder: Path) -> Merged:
    """Merge a folder of segments.

    Parameters
    ----------
    folder
        Holds ``rank-00000/segment-000000.h5`` and so on.

    Raises
    ------
    CaptureError
        If there is nothing to merge.
    """
    segments, unread = _read_all(folder)
    return merge_segments(segments, folder.name, missing=unread)


def merge_segments(
    segments: Sequence[Segment],
    name: str,
    *,
    missing: Sequence[str] = (),
    recover: bool = False,
) -> Merged:
    """Merge segments that are in memory.

    Parameters
    ----------
    segments
        By rank, and by index within a rank.
    name
        What they came from, for messages.
    missing
        What is known not to be among them, a sentence each.
    recover
        Take what a rank did not record of an all-to-all from its peers, and mark it.

    Raises
    ------
    CaptureError
        If there is nothing to merge.
    """
    if not any(len(s.steps) or len(s.events) for s in segments):
        # a segment that could not be read may hold something
        raise (CaptureError if missing else NothingRecorded)(
            f"{name} holds neither a step nor a collective, so there is nothing to "
            "merge: the capture ended before its first step"
        )
    _refuse_mostly_absent(segments, name)
    segments = find_schedule(segments)
    first = segments[0].meta
    virtual = segments[0].shards > 0
    ranks = range(1 if virtual else first.world)
    missing = [*missing, *_ragged(segments, ranks)]
    remarks = _remarks(segments)
    if virtual:
        meta = _meta(segments, [*remarks, *missing])
        return Merged(
            trace=trace_of_shards(segments, meta),
            missing=tuple(missing),
            remarks=tuple(remarks),
            contradictions=(),
        )
    layouts = gather_layouts(segments)
    events = gather_events(segments, layouts)
    steps = _steps(segments, first.world)
    panels, sites = _panels(events, layouts.groups)
    placements = _placements(segments, layouts)
    draft = Trace(
        meta=_derived(_meta(segments, [*remarks, *missing]), sites, layouts.groups),
        groups=layouts.groups,
        sites=sites,
        occurrences=events.occurrences,
        panels=panels,
        steps=steps,
        programs=_programs(events, steps),
        placements=placements,
        clocks=np.unique(np.concatenate([s.clocks for s in segments])),
    )
    trace, contradictions = state_bytes(draft, events, recover=recover)
    return Merged(
        trace=trace,
        missing=tuple(missing),
        remarks=tuple(remarks),
        contradictions=tuple(contradictions),
    )


def merge_into(folder: Path, path: Path, *, force: bool) -> Merged:
    """Merge a folder of segments into a file, and remove it if nothing is missing.

    Raises
    ------
    CaptureError
        If there is nothing to merge, or nothing that is worth the file it would
        replace.
    TraceError
        If the file cannot be written.
    """
    try:
        merged = merge(folder)
    except NothingRecorded:
        remove_folder(folder)  # it would only stand in the way of the next capture
        raise
    write(merged, folder, path, force=force)
    return merged


def write(merged: Merged, folder: Path, path: Path, *, force: bool) -> None:
    """Write what was merged, and remove its folder; see :func:`merge_into`."""
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
    kinds = Counter((s.meta.world, s.shards) for s in segments)
    world, shards = kinds.most_common(1)[0][0]
    strange = [s for s in segments if (s.meta.world, s.shards) != (world, shards)]
    missing += [
        f"a segment is left out: window {s.index} of rank {s.rank} tells of "
        f"{s.meta.world} ranks, the others of {world}"
        for s in strange
    ]
    kept = [s for s in segments if (s.meta.world, s.shards) == (world, shards)]
    return kept, missing


def _refuse_mostly_absent(segments: Sequence[Segment], name: str) -> None:
    """Refuse a world of which next to nothing is there: absence would fill memory."""
    world = segments[0].meta.world
    iterations = np.unique(np.concatenate([s.steps["iteration"] for s in segments]))
    cells = max(1, len(iterations)) * world
    told = sum(len(s.steps) for s in segments)
    if cells > max(MOST_CELLS, MOST_ABSENT * told):
        raise CaptureError(
            f"a trace has the greater part of its steps, but {name} tells of "
            f"{len(iterations)} steps of {world} ranks and holds {told} of them: "
            "gather the segments of the other ranks in it"
        )


def _ragged(segments: Sequence[Segment], ranks: range) -> list[str]:
    """What is missing of each rank that wrote, a sentence each."""
    told = []
    last = max(
        (int(s.steps["iteration"].max()) for s in segments if len(s.steps)), default=-1
    )
    by_rank = _by_rank(segments)
    for first, after in pairwise([-1, *sorted(by_rank), ranks.stop]):
        # ranks between two that wrote
        if after - first == 2:
            told.append(f"rank {first + 1} recorded nothing")
        elif after - first > 2:
            told.append(f"ranks {first + 1} to {after - 1} recorded nothing")
    for rank, mine in sorted(by_rank.items()):
        gaps = _gaps([s.index for s in mine])
        if gaps:
            told.append(f"rank {rank} lacks its windows [{gaps}]")
        if mine[-1].unrecorded:
            told.append(f"rank {rank} could not write {mine[-1].unrecorded} events")
        if not mine[-1].final:
            end = _last_step(mine)
            lost = mine[-1].window
            told.append(
                f"rank {rank} ended without a last word after iteration {end}"
                + (f", {last - end} before the last of all" if end < last else "")
                + (f", and lost up to {lost} steps that came after" if lost else "")
            )
    return told


def _by_rank(segments: Sequence[Segment]) -> dict[int, list[Segment]]:
    found: dict[int, list[Segment]] = {}
    for segment in segments:
        found.setdefault(segment.rank, []).append(segment)
    return found


def _gaps(there: Sequence[int]) -> str:
    """The numbers from 0 on that are left out: "3, 5 to 8"."""
    return ", ".join(
        str(a + 1) if b - a == 2 else f"{a + 1} to {b - 1}"
        for a, b in pairwise([-1, *sorted(there)])
        if b - a > 1
    )


def _last_step(mine: Sequence[Segment]) -> int:
    """The last iteration that a rank ended, -1 for none."""
    ends = [int(s.steps["iteration"].max()) for s in mine if len(s.steps)]
    return max(ends, default=-1)


def _remarks(segments: Sequence[Segment]) -> list[str]:
    """What ended the capture early, and what was left out; ranks alike in one."""
    told: dict[str, list[int]] = {}
    left_out: dict[str, list[int]] = {}
    for rank, mine in sorted(_by_rank(segments).items()):
        if mine[-1].left_out:
            left_out.setdefault(mine[-1].left_out, []).append(rank)
        if mine[-1].ended:
            told.setdefault(_ending(mine), []).append(rank)
    ended = [
        f"rank {alike[0]} was {ending}"
        if len(alike) == 1
        else f"ranks {', '.join(map(str, alike))} were {ending}"
        for ending, alike in told.items()
    ]
    lost = [
        f"rank {alike[0]} left out {what}"
        if len(alike) == 1
        else f"ranks {', '.join(map(str, alike))} left out {what}"
        for what, alike in left_out.items()
    ]
    return ended + lost


def _ending(mine: Sequence[Segment]) -> str:
    """What ended a rank's capture, and where."""
    last = _last_step(mine)
    seen = [int(s.events["iteration"].max()) for s in mine if len(s.events)]
    planned = _planned(mine[-1].meta)
    of = f" of {planned}" if planned else ""
    text = f"{mine[-1].ended} after {last + 1}{of} iterations"
    begun = max(seen, default=-1)
    if begun > last:
        text += f", and its record of iteration {begun} is not whole"
    return text


def _planned(meta: Meta) -> int:
    """How many iterations were to be trained, 0 where that is not known."""
    try:
        planned = json.loads(meta.workload)["training"]["iterations"]
    except (ValueError, KeyError, TypeError):
        return 0  # somebody's own loop
    return planned if isinstance(planned, int) else 0


def _derived(meta: Meta, every: Sequence[Site], groups: Sequence[Group]) -> Meta:
    """What an own loop did not tell of its layout, where its calls tell it."""
    if meta.workload:
        return meta
    sites = [s for s in every if s.phase or s.operation == ROUTING]
    experts = {s.experts for s in sites if s.experts}
    widths = {len(groups[s.group].ranks) for s in sites}
    return replace(
        meta,
        experts=experts.pop() if len(experts) == 1 else meta.experts,
        ep=widths.pop() if len(widths) == 1 else meta.ep,
    )


def _meta(segments: Sequence[Segment], missing: list[str]) -> Meta:
    first = segments[0].meta
    names = {s.rank: s.node for s in segments}
    return replace(
        first,
        complete=not missing,
        missing="; ".join(missing)[:4000],
        nodes=tuple(names.get(rank, "") for rank in range(first.world)),
    )


def _steps(segments: Sequence[Segment], world: int) -> Steps:
    every = [s.steps["iteration"] for s in segments]
    iterations = np.unique(np.concatenate(every)) if every else np.zeros(0, np.int64)
    shape = (len(iterations), world)
    kinds = ["train"] * len(iterations)
    columns: dict[str, Any] = {
        "loss": np.full(shape, np.nan),
        "tokens": np.full(shape, -1, np.int64),
        "start": np.full(shape, UNKNOWN_TIME, np.int64),
        "end": np.full(shape, UNKNOWN_TIME, np.int64),
    }
    for segment in segments:
        rows = np.searchsorted(iterations, segment.steps["iteration"])
        for name, column in columns.items():
            column[rows, segment.rank] = segment.steps[name]
        for row, kind in zip(rows, segment.kinds, strict=True):
            kinds[row] = kind
    return Steps(iteration=iterations, kind=tuple(kinds), **columns)


def _placements(segments: Sequence[Segment], layouts: Layouts) -> Any:
    parts = []
    for number, segment in enumerate(segments):
        rows = segment.placements.copy()
        if len(rows):
            rows["group"] = layouts.group_of[number][rows["group"]]
            parts.append(rows)
    return np.unique(np.concatenate(parts)) if parts else None


def _programs(events: Events, steps: Steps) -> list[Program]:
    """Each rank's order of sites in its last step of every kind."""
    table, programs = events.table, []
    for rank in np.unique(table["rank"]):
        mine = table[table["rank"] == rank]
        for kind in sorted(set(steps.kind)):
            of_kind = steps.iteration[[k == kind for k in steps.kind]]
            here = mine[np.isin(mine["iteration"], of_kind)]
            if not len(here):
                continue
            last = here[here["iteration"] == here["iteration"].max()]
            order = np.argsort(last["issue"], kind="stable")
            programs.append(
                Program(
                    rank=int(rank), kind=kind, sites=tuple(last["site"][order].tolist())
                )
            )
    return programs


def _panels(
    events: Events, groups: Sequence[Group]
) -> tuple[dict[str, Panel], list[Site]]:
    """Presence, times and demand; and the sites with what is known of their drops."""
    table, every = events.table, events.occurrences
    sites = list(events.sites)
    width = np.array([len(groups[s.group].ranks) for s in sites], np.int64)
    panels: dict[str, Panel] = {}
    for w in np.unique(width):
        of = np.flatnonzero(width[every.site] == w)
        row = np.full(len(every), -1, np.int64)
        row[of] = np.arange(len(of))
        mine = table[width[table["site"]] == w]
        cells = (row[mine["occurrence"]], mine["member"])
        present = np.full((len(of), w), Presence.ABSENT, np.uint8)
        present[cells] = Presence.RECORDED
        panels[f"present_{w}"] = ArrayPanel(present)
        for name in ("issue", "start", "end"):
            times = np.full((len(of), w), UNKNOWN_TIME, np.int64)
            times[cells] = mine[name]
            panels[f"{name}_{w}"] = ArrayPanel(times)
    for number, site in enumerate(sites):
        if site.operation == ROUTING:
            missed = events.routed(number, site.experts)[:, 1]
            form = DroppedForm.STORED if missed.any() else DroppedForm.NONE
            if (missed < 0).any():
                form = DroppedForm.UNKNOWN
            sites[number] = replace(site, dropped=form)
    families = sorted(
        {(int(width[n]), s.experts) for n, s in enumerate(sites) if s.experts}
    )
    for w, experts in families:
        numbers = [
            n
            for n, s in enumerate(sites)
            if s.operation == ROUTING and (width[n], s.experts) == (w, experts)
        ]
        routed = [events.by_member(n, w, events.routed(n, experts)) for n in numbers]
        name = f"{w}x{experts}"
        panels[f"demand_{name}"] = ArrayPanel(
            np.concatenate([r[:, :, 0] for r in routed]).astype(np.int32)
        )
        dropped = [
            r[:, :, 1]
            for n, r in zip(numbers, routed, strict=True)
            if sites[n].dropped == DroppedForm.STORED
        ]
        if dropped:
            panels[f"dropped_{name}"] = ArrayPanel(
                np.concatenate(dropped).astype(np.int32)
            )
    return panels, sites
