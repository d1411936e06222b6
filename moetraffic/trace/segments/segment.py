"""Segment: one rank's record of a window of steps, written atomically to a file.

Segments of all ranks are merged into a trace (``merge``).  A segment is built in memory
and written atomically, so a killed rank leaves only complete segments.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Int32, Int64, UInt8
from moetraffic.errors import TraceError
from moetraffic.files import write_whole
from moetraffic.trace.model import (
    ALL_TO_ALL,
    CLOCK,
    MOST_BYTES,
    MOST_ITERATIONS,
    PLACEMENT,
    ROUTING,
    STEP_KINDS,
    Group,
    Meta,
    Site,
)
from moetraffic.trace.storage import (
    TraceFile,
    Writer,
    meta_attributes,
    read_groups,
    read_meta,
    read_sites,
    read_table,
    write_groups,
    write_sites,
    write_table,
)

KIND = "moetraffic-segment"
VERSION = 1
PATTERN = "segment-*.h5"
MOST_WORDS = 1000  # maximum length of a text attribute, in characters

ATTRIBUTES: dict[str, type[Any]] = {
    "rank": int,
    "index": int,
    "final": bool,
    "node": str,
    "unrecorded": int,
    "shards": int,
    "ended": str,
    "left_out": str,
    "routed_k": int,
    "window": int,
    "continued": bool,
}

EVENT = np.dtype(
    [
        ("iteration", "<i8"),  # -1 if the end of the step is unknown
        ("site", "<i4"),  # index into the segment's own sites
        ("sequence", "<i8"),  # n-th collective of its group on this rank
        ("issue", "<i8"),  # ns, the rank's clock
        ("start", "<i8"),
        ("end", "<i8"),
        ("payload", "<i8"),  # row of splits or demand; bytes for other collectives
        ("transposed", "<i4"),  # 1: the row's send and receive are swapped
        ("thread", "<i4"),  # number of the thread, in the order of first calls
        ("grad", "<i4"),  # 1: autograd recorded the call; 0: it did not; -1: unknown
        ("link", "<i8"),  # equal for a forward call and its backward; -1: unknown
        ("block", "<i4"),  # twice the calling block's number, +1 in every other call
    ]
)

STEP = np.dtype(
    [
        ("iteration", "<i8"),
        ("loss", "<f8"),
        ("tokens", "<i8"),
        ("start", "<i8"),
        ("end", "<i8"),
        ("source", "|u1"),  # Source of the step's boundaries and kind
    ]
)
PANELS = {"splits": "<i8", "demand": "<i4", "choices": "|u1"}


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One rank's record of a window of steps."""

    rank: int
    index: int  # counts a rank's segments from 0
    final: bool  # last segment of the rank's capture
    node: str
    meta: Meta
    groups: tuple[Group, ...]
    sites: tuple[Site, ...]  # without slots: merging counts them
    events: npt.NDArray[Any]  # [n] EVENT
    steps: npt.NDArray[Any]  # [s] STEP
    kinds: tuple[str, ...]  # [s] kind of each step
    # negative bytes and counts are unknown; of a capture only dropped copies may be
    splits: Mapping[int, Int64]  # W -> [m, 2, W] bytes sent to and received from each
    demand: Mapping[int, Int32]  # E -> [m, 2, E] copies routed; dropped, < 0: unknown
    # E -> [m, S, B] experts of sampled tokens as bit sets, a row for each of demand;
    # of virtual ranks likewise; absent where no tokens are sampled
    choices: Mapping[int, UInt8] = field(default_factory=dict)
    placements: npt.NDArray[Any] = field(default_factory=lambda: np.zeros(0, PLACEMENT))
    clocks: npt.NDArray[Any] = field(default_factory=lambda: np.zeros(0, CLOCK))
    unrecorded: int = 0  # events lost because earlier windows could not be written
    shards: int = 0  # virtual ranks of this process, see ``shards``; 0: none
    ended: str = ""  # reason of an early end ("interrupted by SIGINT"), or ""
    left_out: str = ""  # records that were omitted so far, and why; "" for none
    routed_k: int = 0  # experts per token of all expert ids; 0: unknown, -1: differ
    continued: bool = False  # its first iteration began in the previous segment
    window: int = 0  # steps after this segment that may be lost; 0: unknown


def rank_folder(folder: Path, rank: int) -> Path:
    """Return the folder of a rank's segments."""
    return folder / f"rank-{rank:05d}"


def segment_path(folder: Path, rank: int, index: int) -> Path:
    """Return the path of a rank's segment file."""
    return rank_folder(folder, rank) / f"segment-{index:06d}.h5"


def write_segment(segment: Segment, folder: Path) -> Path:
    """Write a segment atomically into its rank's folder.

    Raises
    ------
    OSError
        If it cannot be written; no partial file is left.
    """
    target = io.BytesIO()
    attributes = {"format": KIND, "version": VERSION, **meta_attributes(segment.meta)}
    for attribute, form in ATTRIBUTES.items():
        value = getattr(segment, attribute)
        attributes[attribute] = value[:MOST_WORDS] if form is str else int(value)
    with h5py.File(target, "w", libver=("v110", "v110")) as file:
        writer = Writer(file, attributes, scales=False)
        write_groups(writer, segment.groups)
        write_sites(writer, segment.sites)
        for name, table in (
            ("placement", segment.placements),
            ("clock", segment.clocks),
            ("event", segment.events),
            ("step", segment.steps),
        ):
            write_table(writer, name, table)
        writer.put("step/kind", list(segment.kinds))
        for kind, dtype in PANELS.items():
            for width, array in getattr(segment, kind).items():
                name = f"{kind}_{width}"
                writer.put(f"{name}/{kind}", array, dtype, ("row", "side", "member"))
    path = segment_path(folder, segment.rank, segment.index)
    write_whole(path, target.getbuffer())
    return path


def read_segment(path: Path) -> Segment:
    """Read a segment file and check its consistency."""
    with TraceFile(path, KIND, VERSION) as file:
        with file.reading("a table"):
            segment = _read(file)
        for holds, rule in _rules(segment):
            if not holds:
                raise TraceError(
                    f"{path} is damaged or no segment: {rule}; take a copy that is "
                    "whole"
                )
        return segment


def _read(file: TraceFile) -> Segment:
    panels: dict[str, dict[int, Any]] = {kind: {} for kind in PANELS}
    for name in file.names():
        kind, _, width = name.partition("_")
        if kind in panels:
            panels[kind][int(width)] = file.column(f"{name}/{kind}", PANELS[kind])
    own = {name: kind(file.attributes[name]) for name, kind in ATTRIBUTES.items()}
    return Segment(
        **own,
        meta=read_meta(file),
        groups=tuple(read_groups(file)),
        sites=tuple(read_sites(file)),
        events=read_table(file, "event", EVENT),
        steps=read_table(file, "step", STEP),
        kinds=tuple(file.text("step/kind")),
        placements=read_table(file, "placement", PLACEMENT),
        clocks=read_table(file, "clock", CLOCK),
        splits=panels["splits"],
        demand=panels["demand"],
        choices=panels["choices"],
    )


def _within(values: npt.NDArray[Any], least: int, end: int) -> bool:
    """Check that all values lie in the half-open range [least, end)."""
    return not values.size or bool(least <= values.min() and values.max() < end)


def _rules(segment: Segment) -> Iterator[tuple[bool, str]]:
    """Yield whether each rule on which merging relies holds, and how it is violated."""
    rank, world, shards = segment.rank, segment.meta.world, segment.shards
    sites, events = segment.sites, segment.events
    steps = segment.steps["iteration"]
    yield (
        0 <= rank < world and segment.index >= 0,
        f"it is window {segment.index} of rank {rank} of {world}",
    )
    yield (
        all(rank in segment.groups[s.group].ranks for s in sites),
        f"rank {rank} is no member of one of its groups",
    )
    yield (
        _within(events["site"], 0, len(sites)),
        "an event is of a site that is not there",
    )
    yield (
        set(segment.kinds) <= set(STEP_KINDS) and len(segment.kinds) == len(steps),
        f"kinds of steps {sorted(set(segment.kinds))[:5]}",
    )
    if shards:
        yield len(steps) % shards == 0, f"{len(steps)} steps lack the row of a rank"
        steps = steps[::shards]
    yield _within(steps, 0, MOST_ITERATIONS), "a step has an impossible iteration"
    yield len(np.unique(steps)) == len(steps), "an iteration is there twice"
    for number in np.unique(events["site"]).tolist() if not shards else []:
        site = sites[number]
        payload = events["payload"][events["site"] == number]
        if site.operation in (ROUTING, ALL_TO_ALL):
            width = len(segment.groups[site.group].ranks)
            routed = site.operation == ROUTING
            panel = segment.demand if routed else segment.splits
            rows = len(panel.get(site.experts if routed else width, ()))
            what = f"an event has row {payload.max()} of {rows}"
            yield _within(payload, 0, rows), what
        else:
            what = f"a {site.operation} has {payload.max()} bytes"
            yield _within(payload, -1, MOST_BYTES + 1), what
