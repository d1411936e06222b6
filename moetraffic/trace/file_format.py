"""Read and write trace files of format version 1: names and types of all datasets.

``docs/format.md`` describes the format; it is frozen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from moetraffic.errors import TraceError
from moetraffic.trace.hdf5.container import Container
from moetraffic.trace.hdf5.durable import (
    DeferredErrorFile,
    replacing,
    validate_output,
    write_errors,
)
from moetraffic.trace.hdf5.image import Image
from moetraffic.trace.hdf5.tables import (
    as_text,
    meta_attributes,
    read_columns,
    read_groups,
    read_meta,
    read_sites,
    read_sources,
    read_strings,
    read_table,
    split_column,
    write_groups,
    write_sites,
    write_table,
)

from .choices import packed_bytes
from .model import (
    CLOCK,
    PLACEMENT,
    RUN,
    STEP_KINDS,
    Meta,
    Occurrences,
    Program,
    Steps,
)
from .panel import ArrayPanel, Panel
from .reading import T, TraceContents

KIND = "moetraffic"
VERSION = 1
MINOR = 5  # additions to version 1, which readers of version 1.0 ignore

OWN = {
    "format": KIND,
    "format_version": VERSION,
    "format_minor": MINOR,
    "Conventions": "CF-1.11",
    "title": "traffic of a mixture-of-experts training run",
}
OCCURRENCE = np.dtype([("iteration", "<i8"), ("site", "<i4"), ("sequence", "<i8")])
PANELS = {  # name: (type, axes after the rows, unit, meaning)
    "present": ("|u1", ("member",), "1", "0 absent, 1 told, 2 recovered, 3 unsized"),
    "issue": ("<i8", ("member",), "ns", "time of the call, the rank's own clock"),
    "start": ("<i8", ("member",), "ns", "start on the network, the rank's own clock"),
    "end": ("<i8", ("member",), "ns", "end, the rank's own clock"),
    "demand": (
        "<i4",
        ("src", "expert"),
        "1",
        "token copies a rank routed to an expert",
    ),
    "dropped": ("<i4", ("src", "expert"), "1", "token copies dropped over capacity"),
    "choices": (
        "|u1",
        ("src", "token", "expert_byte"),
        "1",
        "experts of sampled tokens: bit 7 - e % 8 of byte e // 8 for expert e",
    ),
    "wire": ("<i8", ("src", "dst"), "bytes", "bytes sent from src to dst"),
    "volume": ("<i8", ("member",), "bytes", "bytes of the member's input buffer"),
}
STEP_SOURCES = ("source", "kind_source")
STEP_CELLS = 1 << 22  # steps x ranks accepted without check: 128 MiB in memory
STEP_BYTES = 2  # minimum stored bytes per cell above STEP_CELLS (32 in memory)
COUNTS = ("demand", "dropped", "wire", "volume")
STEP_PANELS = {
    "step_loss": ("<f8", "1", "loss of the rank's own tokens"),
    "step_tokens": ("<i8", "1", "tokens that the rank trained on, -1: unknown"),
    "step_start": ("<i8", "ns", "the rank's own clock"),
    "step_end": ("<i8", "ns", "the rank's own clock"),
}
LENGTHS = {"demand": 2, "dropped": 2, "choices": 3}
"""Numbers in the names of panels that have more than W."""
PANEL_NAME = re.compile(
    rf"({'|'.join(PANELS)})_(\d{{1,7}})(?:x(\d{{1,7}}))?(?:x(\d{{1,7}}))?"
)


def save(trace: TraceContents, path: Path, *, force: bool) -> None:
    """Write a trace to a file; see :meth:`Trace.save`."""
    validate_output(path, force=force, error=TraceError, overwrite="give force=True")
    with (
        write_errors(path, error=TraceError),
        replacing(path) as temporary,
        DeferredErrorFile(temporary) as file,
    ):
        with Image(file, OWN | meta_attributes(trace.meta)) as image:
            _write(image, trace)
        file.settle()


def load(path: Path, kind: type[T]) -> T:
    """Read a trace from a file; see :meth:`Trace.open`."""
    container = Container(path, KIND, VERSION)
    try:
        meta = _meta(container)
        groups = read_groups(container)
        trace = kind(
            meta=meta,
            groups=groups,
            sites=read_sites(container),
            occurrences=Occurrences(
                **read_columns(container, "occurrence", OCCURRENCE)
            ),
            panels=_panels(container),
            steps=_steps(container, meta.world),
            programs=_programs(container),
            placements=read_table(container, "placement", PLACEMENT),
            clocks=read_table(container, "clock", CLOCK),
            runs=_runs(container),
            container=container,
        )
    except BaseException as error:
        container.close()
        raise container.translated(error) from None
    return trace


# ---- writing -------------------------------------------------------------------


def _write(image: Image, trace: TraceContents) -> None:
    world = trace.meta.world
    nodes = trace.meta.nodes or ("",) * world
    image.column("rank", np.arange(world), "<i4", about="world rank")
    image.column("rank_node", *as_text(nodes), axis="rank", about="name of its node")
    write_groups(image, trace.groups)
    write_sites(image, trace.sites)
    _write_programs(image, trace.programs)
    write_table(image, "placement", trace.placements, PLACEMENT)
    write_table(image, "clock", trace.clocks, CLOCK)
    if len(trace.runs):
        write_table(image, "run", trace.runs, RUN)
    _write_steps(image, trace.steps)
    write_table(image, "occurrence", vars(trace.occurrences), OCCURRENCE)
    _write_panels(image, trace)


def _write_panels(image: Image, trace: TraceContents) -> None:
    axes: set[str] = set()
    for name, panel in sorted(trace.panels.items()):
        kind, _, shape = name.partition("_")
        dtype, inner, unit, about = PANELS[kind]
        # times of one width share their rows; demand, wire ... have rows of their own
        rows = f"call_{shape}" if kind in ("present", "issue", "start", "end") else ""
        rows = rows or f"{kind}_row_{shape}"
        if rows not in axes:
            axes.add(rows)
            of = trace.rows_of(name)
            image.column(rows, np.flatnonzero(of >= 0), "<i8", about="occurrence")
        names = [rows]
        for axis, length in zip(inner, panel.shape[1:], strict=True):
            names.append(f"{axis}_{length}")
            if names[-1] not in axes:
                axes.add(names[-1])
                image.column(names[-1], np.arange(length), "<i4")
        image.panel(name, panel, dtype, names, unit=unit, about=about)


def _write_programs(image: Image, programs: Sequence[Program]) -> None:
    image.column("program", np.arange(len(programs)), "<i4")
    image.column("program_rank", [p.rank for p in programs], "<i4", axis="program")
    image.column("program_kind", *as_text([p.kind for p in programs]), axis="program")
    lengths = [len(p.sites) for p in programs]
    image.column("program_length", lengths, "<i4", axis="program")
    sites = [s for p in programs for s in p.sites]
    image.column("call", np.arange(len(sites)), "<i4")
    image.column("program_site", sites, "<i4", axis="call")


def _write_steps(image: Image, steps: Steps) -> None:
    image.column("step", steps.iteration, "<i8", about="iteration")
    image.column("step_kind", *as_text(steps.kind), axis="step")
    for name in STEP_SOURCES:
        image.column(f"step_{name}", getattr(steps, name), "|u1", axis="step")
    for name, (dtype, unit, about) in STEP_PANELS.items():
        data = getattr(steps, name.removeprefix("step_"))
        image.panel(
            name, ArrayPanel(data), dtype, ("step", "rank"), unit=unit, about=about
        )


# ---- reading -------------------------------------------------------------------


def _meta(container: Container) -> Meta:
    meta = read_meta(container)
    world = len(container.column("rank", "<i4"))
    if meta.world != world or not world:
        raise container.damaged(f"its metadata has {meta.world} ranks, not {world}")
    nodes = read_strings(container, "rank_node", world)
    return replace(meta, nodes=tuple(nodes) if any(nodes) else ())


def _panels(container: Container) -> dict[str, Panel]:
    found: dict[str, Panel] = {}
    for name in sorted(container.names):
        match = PANEL_NAME.fullmatch(name)
        # W, E and sampled tokens
        lengths = [int(part) for part in match.groups()[1:] if part] if match else []
        if not match or len(lengths) != LENGTHS.get(match[1], 1):
            continue
        kind, width = match[1], lengths[0]
        inner = [width, *lengths[1:], width][: len(PANELS[kind][1])]
        if kind == "choices":
            inner = [width, lengths[2], packed_bytes(lengths[1])]
        found[name] = container.panel(
            name, PANELS[kind][0], (None, *inner), counts=kind in COUNTS
        )
    return found


def _steps(container: Container, world: int) -> Steps:
    iteration = container.column("step", "<i8")
    kind = read_strings(container, "step_kind", len(iteration))
    if not set(kind) <= set(STEP_KINDS):
        raise container.damaged(f"unknown kinds of steps {sorted(set(kind))}")
    shape = (len(iteration), world)
    panels = {
        name.removeprefix("step_"): container.panel(name, dtype, shape)
        for name, (dtype, _, _) in STEP_PANELS.items()
    }
    # losses and times hardly deflate; a decompression bomb is all zeros
    stored = sum(panel.stored_bytes for panel in panels.values())
    cells = len(iteration) * world
    if cells > max(STEP_CELLS, stored // STEP_BYTES):
        raise container.damaged(
            f"{cells} steps x ranks are stored in only {stored} bytes"
        )
    read = {name: panel.read(0, len(iteration)) for name, panel in panels.items()}
    for name in STEP_SOURCES:
        sources = read_sources(container, f"step_{name}", len(iteration))
        read[name] = np.array(sources, np.uint8)
    return Steps(iteration=iteration, kind=tuple(kind), **read)


def _runs(container: Container) -> npt.NDArray[np.void] | None:
    return read_table(container, "run", RUN) if container.has("run") else None


def _programs(container: Container) -> list[Program]:
    ranks = container.column("program_rank", "<i4")
    kinds = read_strings(container, "program_kind", len(ranks))
    lengths = container.column("program_length", "<i4", len(ranks))
    parts = split_column(container, container.column("program_site", "<i4"), lengths)
    return [
        Program(rank=rank, kind=kind, sites=sites)
        for rank, kind, sites in zip(ranks.tolist(), kinds, parts, strict=True)
    ]
