"""Merge the segments of all ranks into one trace.

Step 1 reads every segment and puts the ranks' sites and events beside each other.
Step 2 fills the panels: who was present when, times, demand.
Step 3 checks the bytes of each site and states them as briefly as they allow.
Ranks that were killed leave ragged ends: what a rank did not record is absent there.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.errors import CaptureError, TraceError

from .assemble import Events, Layouts, gather_events, gather_layouts
from .model import (
    ROUTING,
    UNKNOWN_TIME,
    DroppedForm,
    Meta,
    Program,
    Site,
    Steps,
)
from .panel import ArrayPanel, Panel
from .segment import PATTERN, Segment, read_segment
from .shards import trace_of_shards
from .statement import state_bytes
from .trace import Trace


@dataclass(frozen=True, kw_only=True)
class Merged:
    """A merged trace, and what there is to say about it."""

    trace: Trace
    missing: tuple[str, ...]  # what was not recorded, a sentence each
    contradictions: tuple[str, ...]  # where two ranks' records disagree


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
    segments, missing = _read_all(folder)
    first = segments[0].meta
    if segments[0].shards:
        return _merge_shards(segments, missing)
    layouts = gather_layouts(segments)
    events = gather_events(segments, layouts)
    missing += _ragged(segments, range(first.world))
    steps = _steps(segments, first.world)
    panels, sites = _panels(events, layouts)
    placements = _placements(segments, layouts)
    draft = Trace(
        meta=_meta(segments, missing),
        groups=layouts.groups,
        sites=sites,
        occurrences=events.occurrences,
        panels=panels,
        steps=steps,
        programs=_programs(events, steps),
        placements=placements,
        clocks=np.unique(np.concatenate([s.clocks for s in segments])),
    )
    trace, contradictions = state_bytes(draft, events)
    return Merged(
        trace=trace, missing=tuple(missing), contradictions=tuple(contradictions)
    )


def _merge_shards(segments: list[Segment], missing: list[str]) -> Merged:
    """The trace of ranks that one process stood for."""
    missing += _ragged(segments, range(1))
    trace = trace_of_shards(segments, _meta(segments, missing))
    return Merged(trace=trace, missing=tuple(missing), contradictions=())


def merge_into(folder: Path, path: Path, *, force: bool) -> Merged:
    """Merge a folder of segments into a file, and remove it if nothing is missing.

    Raises
    ------
    CaptureError
        If there is nothing to merge.
    TraceError
        If the file cannot be written.
    """
    merged = merge(folder)
    merged.trace.save(path, force=force)
    if not merged.missing and not merged.contradictions:
        shutil.rmtree(folder)
    return merged


def _read_all(folder: Path) -> tuple[list[Segment], list[str]]:
    if not folder.is_dir():
        raise CaptureError(
            f"merge takes the folder of segments that a capture left, but there is no "
            f"folder {folder}: it is named like the output with .segments behind it"
        )
    segments, missing = [], []
    for path in sorted(folder.glob(f"rank-*/{PATTERN}")):
        try:
            segments.append(read_segment(path))
        except TraceError as error:
            missing.append(f"a segment is left out: {error}")
    if not segments:
        raise CaptureError(
            f"{folder} holds no whole segment, so there is nothing to merge: "
            "the capture ended before its first window was written"
            + "".join(f"; {m}" for m in missing)
        )
    # ranks of another world are left over from a capture of more ranks
    world = segments[0].meta.world
    return [s for s in segments if s.rank < world and s.meta.world == world], missing


def _ragged(segments: list[Segment], ranks: range) -> list[str]:
    """What is missing of each rank that wrote, a sentence each."""
    told = []
    last = max(
        (int(s.steps["iteration"].max()) for s in segments if len(s.steps)), default=-1
    )
    for rank in ranks:
        mine = [s for s in segments if s.rank == rank]
        if not mine:
            told.append(f"rank {rank} recorded nothing")
            continue
        here = {s.index for s in mine}
        gaps = sorted(set(range(max(here) + 1)) - here)
        if gaps:
            told.append(f"rank {rank} lacks its windows {gaps}")
        if mine[-1].unrecorded:
            told.append(f"rank {rank} could not write {mine[-1].unrecorded} events")
        if not mine[-1].final:
            ends = [int(s.steps["iteration"].max()) for s in mine if len(s.steps)]
            end = max(ends, default=-1)
            told.append(
                f"rank {rank} ended without a last word after iteration {end}"
                + (f", {last - end} before the last of all" if end < last else "")
            )
    return told


def _meta(segments: list[Segment], missing: list[str]) -> Meta:
    first = segments[0].meta
    names = {s.rank: s.node for s in segments}
    return replace(
        first,
        complete=not missing,
        missing="; ".join(missing)[:4000],
        nodes=tuple(names.get(rank, "") for rank in range(first.world)),
    )


def _steps(segments: list[Segment], world: int) -> Steps:
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


def _placements(segments: list[Segment], layouts: Layouts) -> Any:
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


def _panels(events: Events, layouts: Layouts) -> tuple[dict[str, Panel], list[Site]]:
    """Presence, times and demand; and the sites with what is known of their drops."""
    table, every = events.table, events.occurrences
    sites = list(layouts.sites)
    width = np.array([len(layouts.groups[s.group].ranks) for s in sites], np.int64)
    panels: dict[str, Panel] = {}
    for w in np.unique(width):
        of = np.flatnonzero(width[every.site] == w)
        row = np.full(len(every), -1, np.int64)
        row[of] = np.arange(len(of))
        mine = table[width[table["site"]] == w]
        cells = (row[mine["occurrence"]], mine["member"])
        present = np.zeros((len(of), w), np.uint8)
        present[cells] = 1
        panels[f"present_{w}"] = ArrayPanel(present)
        for name in ("issue", "start", "end"):
            times = np.full((len(of), w), UNKNOWN_TIME, np.int64)
            times[cells] = mine[name]
            panels[f"{name}_{w}"] = ArrayPanel(times)
    for number, site in enumerate(sites):
        if site.operation == ROUTING:
            none = not events.routed(number, site.experts)[:, 1].any()
            form = DroppedForm.NONE if none else DroppedForm.STORED
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
