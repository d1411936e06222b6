"""Segment: one rank's record of a window of steps, written atomically to a file.

Segments of all ranks are merged into a trace (``merge``).  A segment is built in memory
and written atomically, so a killed rank leaves only complete segments.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Int32, Int64, UInt8
from moetraffic.trace.choices import packed_bytes
from moetraffic.trace.consistency import (
    MOST_CHOICES,
    MOST_RANKS,
    clocks_valid,
    groups_valid,
    meta_rules,
    placements_valid,
    violated,
    within,
)
from moetraffic.trace.hdf5.container import Container
from moetraffic.trace.hdf5.durable import write_whole
from moetraffic.trace.hdf5.image import Image
from moetraffic.trace.hdf5.tables import (
    as_text,
    meta_attributes,
    read_groups,
    read_meta,
    read_sites,
    read_strings,
    read_table,
    write_groups,
    write_sites,
    write_table,
)
from moetraffic.trace.model import (
    ALL_TO_ALL,
    CLOCK,
    MOST_BYTES,
    MOST_ITERATIONS,
    MOST_ROW_BYTES,
    NONE_BEFORE,
    PLACEMENT,
    ROUTING,
    STEP_KINDS,
    Group,
    Meta,
    Site,
    Source,
)
from moetraffic.trace.panel import ArrayPanel

KIND = "moetraffic-segment"
VERSION = 1
PATTERN = "segment-*.h5"
MOST_WORDS = 1000  # maximum length of a text attribute, in characters
MOST_PANEL_BYTES = 64 << 20  # panel size accepted without check
MOST_PANEL_RATIO = 32  # largest plausible compression ratio of counts

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
LATER: dict[str, Any] = {"ended": "", "left_out": "", "routed_k": 0} | {
    "window": 0,
    "continued": False,
}
"""Attributes that the first release did not write, and their values in its files."""

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
        ("source", "|u1"),  # Source of the step's boundaries
        ("kind_source", "|u1"),  # Source of its kind
    ]
)
STEP_SOURCES = ("source", "kind_source")
"""Columns that earlier releases did not write."""


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
    attributes = meta_attributes(segment.meta) | {
        "format": KIND,
        "format_version": VERSION,
    }
    for attribute, form in ATTRIBUTES.items():
        value = getattr(segment, attribute)
        attributes[attribute] = value[:MOST_WORDS] if form is str else value
    with Image(target, attributes) as image:
        write_groups(image, segment.groups)
        write_sites(image, segment.sites)
        write_table(image, "placement", segment.placements, PLACEMENT)
        write_table(image, "clock", segment.clocks, CLOCK)
        write_table(image, "event", segment.events, EVENT)
        write_table(image, "step", segment.steps, STEP)
        image.column("step_kind", *as_text(segment.kinds), axis="step")
        panels: Sequence[tuple[str, Mapping[int, npt.NDArray[Any]], str, str]] = (
            ("splits", segment.splits, "<i8", "side"),
            ("demand", segment.demand, "<i4", "side"),
            ("choices", segment.choices, "|u1", "token"),
        )
        for kind, arrays, dtype, second in panels:
            for width, array in arrays.items():
                name = f"{kind}_{width}"
                axes = [f"{name}_{axis}" for axis in ("row", second, "member")]
                for axis, length in zip(axes, array.shape, strict=True):
                    image.column(axis, np.arange(length), "<i8")
                image.panel(name, ArrayPanel(array), dtype, axes)
    path = segment_path(folder, segment.rank, segment.index)
    write_whole(path, target.getbuffer())
    return path


def read_segment(path: Path) -> Segment:
    """Read a segment file and check its consistency."""
    with Container(path, KIND, VERSION) as container:
        try:
            segment = _read(container)
        except Exception as error:
            raise container.translated(error) from None
        if broken := violated(_rules(segment)):
            raise container.damaged(broken)
        return segment


def _read(container: Container) -> Segment:
    attributes = LATER | container.attributes
    steps = read_table(container, "step", STEP, optional=STEP_SOURCES)
    panels: dict[str, dict[int, Any]] = {"splits": {}, "demand": {}, "choices": {}}
    for name in container.names:
        kind, _, width = name.partition("_")
        if kind in panels and width.isdigit():
            dtype = {"splits": "<i8", "demand": "<i4", "choices": "|u1"}[kind]
            sampled = kind == "choices"
            inner = (None, packed_bytes(int(width))) if sampled else (2, int(width))
            shape = (None, *inner)
            panel = container.panel(name, dtype, shape, counts=kind == "splits")
            size = math.prod(panel.shape) * panel.dtype.itemsize
            if size > max(MOST_PANEL_BYTES, MOST_PANEL_RATIO * panel.stored_bytes):
                raise container.damaged(f"{name} inflates to {size} bytes")
            panels[kind][int(width)] = panel.read(0, panel.shape[0])
    own = {name: kind(attributes[name]) for name, kind in ATTRIBUTES.items()}
    return Segment(
        **own,
        meta=read_meta(container),
        groups=tuple(read_groups(container)),
        sites=tuple(read_sites(container)),
        events=read_table(container, "event", EVENT, optional=("block",)),
        steps=steps,
        kinds=tuple(read_strings(container, "step_kind", len(steps))),
        splits=panels["splits"],
        demand=panels["demand"],
        choices=panels["choices"],
        placements=read_table(container, "placement", PLACEMENT),
        clocks=read_table(container, "clock", CLOCK),
    )


def _rules(segment: Segment) -> Iterator[tuple[object, str]]:
    """Yield whether each rule on which merging relies holds, and how it is violated.

    Indices lie within the arrays that they index; a rank is a member of its groups;
    sums of iterations, bytes and times do not overflow; a step has a kind, and occurs
    once (once per rank for virtual ranks).  Later rules rely on earlier ones.
    """
    rank, world, shards = segment.rank, segment.meta.world, segment.shards
    groups, sites, events = segment.groups, segment.sites, segment.events
    number, payload = events["site"], events["payload"]
    steps = segment.steps["iteration"]
    yield (
        0 <= rank < world <= MOST_RANKS and segment.index >= 0,
        f"it is window {segment.index} of rank {rank} of {world}",
    )
    yield from meta_rules(segment.meta)
    yield groups_valid(groups, world), "a group has no ranks, or impossible ones"
    yield all(0 <= s.group < len(groups) for s in sites), "a site is of no group"
    yield (
        all(rank in groups[s.group].ranks for s in sites),
        f"rank {rank} is no member of one of its groups",
    )
    yield (
        all(0 <= s.row_bytes <= MOST_ROW_BYTES and s.experts >= 0 for s in sites),
        "a site has an impossible number of experts or bytes of a row",
    )
    yield (
        all(
            within(rows[:, 0], 0, 1 << 31)
            and within(rows[:, 1], 0 if shards else NONE_BEFORE, 1 << 31)
            for rows in segment.demand.values()
        ),
        "a count of token copies is below zero",
    )
    yield (
        all(
            len(bits) == len(segment.demand.get(experts, ()))
            and bits.shape[1] <= MOST_CHOICES
            for experts, bits in segment.choices.items()
        ),
        "its choices are not those of its routings",
    )
    yield within(number, 0, len(sites)), "an event is of a site that is not there"
    yield (
        within(events["iteration"], -1, MOST_ITERATIONS),
        "an event has an impossible iteration",
    )
    yield (
        all(within(segment.steps[n], 0, len(Source)) for n in STEP_SOURCES),
        "a step has an impossible source",
    )
    yield (
        set(segment.kinds) <= set(STEP_KINDS),
        f"kinds of steps {sorted(set(segment.kinds))[:5]}",
    )
    if shards:
        rows = [len(panel) for panel in segment.demand.values()]
        yield (
            shards == world and len(sites) % 2 == 0,
            f"it contains {shards} of {world} virtual ranks",
        )
        yield (
            not len(events)
            or (len(rows) == 1 and within(payload, 0, rows[0] - shards + 1)),
            "a routing lacks the row of a rank",
        )
        yield len(steps) % shards == 0, f"{len(steps)} steps lack the row of a rank"
        steps = steps[::shards]
    else:
        yield (
            np.isin(events["transposed"], (0, 1)).all(),
            "an event is neither transposed nor not",
        )
        for at in np.unique(number).tolist():
            site, mine = sites[at], payload[number == at]
            width = len(groups[site.group].ranks)
            if site.operation in (ROUTING, ALL_TO_ALL):
                routed = site.operation == ROUTING
                panel = (
                    segment.demand.get(site.experts, ())
                    if routed
                    else segment.splits.get(width, ())
                )
                what = f"an event has row {mine.max()} of {len(panel)}"
                yield within(mine, 0, len(panel)), what
            else:
                what = f"a {site.operation} has {mine.max()} bytes"
                yield within(mine, -1, MOST_BYTES + 1), what
    yield within(steps, 0, MOST_ITERATIONS), "a step has an impossible iteration"
    yield len(np.unique(steps)) == len(steps), "an iteration is there twice"
    yield (
        placements_valid(segment.placements, groups),
        "an expert is placed twice, or on a rank that is not in its group",
    )
    yield (
        clocks_valid(segment.clocks, world),
        "a clock is of no rank, or a hundred years off",
    )
