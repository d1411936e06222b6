"""Sound traces and segments, and random changes to the data sets of a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from moetraffic.trace import (
    PHASES,
    ROUTING,
    DroppedForm,
    Group,
    Meta,
    Occurrences,
    Site,
    Steps,
    Trace,
    WireForm,
)
from moetraffic.trace.hdf5.codec import (
    COLUMN_ROWS,
    attributes_checksum,
    column_checksum,
)
from moetraffic.trace.model import CLOCK, PLACEMENT
from moetraffic.trace.panel import ArrayPanel
from moetraffic.trace.segments.segment import (
    EVENT,
    STEP,
    Segment,
)

REWRITES: list[Callable[[h5py.File, np.random.Generator], None]] = []
LIBVER = ("v110", "v110")


# ---- sound things to start from ---------------------------------------------------


def wide_trace() -> Trace:
    """A layer between 600 ranks: a matrix is stored in pieces."""
    ranks, count = 600, 2
    rng = np.random.default_rng(3)
    shape = (count, ranks)
    sites = [
        Site(group=0, operation=ROUTING, experts=ranks, dropped=DroppedForm.NONE),
        Site(group=0, operation="all_to_all", wire=WireForm.STORED),
    ]
    panels = {
        f"demand_{ranks}x{ranks}": rng.integers(0, 3, (count, ranks, ranks), "<i4"),
        f"wire_{ranks}": rng.integers(0, 9, (count, ranks, ranks)),
        f"present_{ranks}": np.ones((4, ranks), np.uint8),
    }
    panels |= {f"{n}_{ranks}": np.zeros((4, ranks), int) for n in ("issue", "start")}
    panels[f"end_{ranks}"] = rng.integers(0, 1 << 40, (4, ranks))
    return Trace(
        meta=Meta(world=ranks, ep=ranks, experts=ranks),
        groups=[Group(kind="ep", ranks=tuple(range(ranks)))],
        sites=sites,
        occurrences=Occurrences(
            iteration=np.tile(np.arange(count), 2),
            site=np.repeat(np.arange(2), count).astype(np.int32),
            sequence=np.tile(np.arange(count), 2),
        ),
        panels={name: ArrayPanel(array) for name, array in panels.items()},
        steps=Steps(
            iteration=np.arange(count),
            kind=("train",) * count,
            loss=rng.random(shape),
            tokens=np.full(shape, 64),
            start=np.zeros(shape, np.int64),
            end=np.ones(shape, np.int64),
        ),
    )


def segments() -> list[Segment]:
    """Two ranks, three windows each: a routing and its four exchanges a step."""
    row, window, windows = 32, 4, 3
    sites = [Site(group=0, operation=ROUTING, layer=1, experts=4)]
    sites += [
        Site(
            group=0,
            operation="all_to_all",
            phase=phase,
            layer=1,
            direction="backward" if "grad" in phase else "forward",
            dtype="float32",
            row_bytes=row,
        )
        for phase in PHASES
    ]
    made = []
    for rank, index in np.ndindex(2, windows):
        events = np.zeros(5 * window, EVENT)
        for name in {"link", "thread"} & set(EVENT.names or ()):
            events[name] = -1 if name == "link" else 0
        splits, demand = [], []
        for at in range(window):
            step = index * window + at
            counts = np.random.default_rng(step).integers(0, 9, (2, 4))
            between = counts.reshape(2, 2, 2).sum(axis=2) * row
            demand.append([counts[rank], np.zeros(4)])
            splits.append([between[rank], between[:, rank]])
            for place in range(5):
                event = events[5 * at + place]
                event["iteration"], event["site"] = step, place
                event["sequence"] = 4 * step + place - 1 if place else -1
                event["issue"] = 100 * step + place
                event["start"], event["end"] = event["issue"], event["issue"] + 1
                event["payload"], event["transposed"] = at, place in (2, 4)
        steps = np.zeros(window, STEP)
        steps["iteration"] = range(index * window, (index + 1) * window)
        steps["loss"], steps["tokens"] = 1.0, 16
        placements = np.zeros(4, PLACEMENT)
        placements["layer"], placements["expert"] = 1, range(4)
        placements["rank"] = [0, 0, 1, 1]
        made.append(
            Segment(
                rank=int(rank),
                index=int(index),
                final=bool(index == windows - 1),
                node="node",
                meta=Meta(world=2, ep=2, dp=2, experts=4, k=1, dispatch="dropless"),
                groups=(Group(kind="ep", ranks=(0, 1)),),
                sites=tuple(sites),
                events=events,
                steps=steps,
                kinds=("train",) * window,
                splits={2: np.array(splits, np.int64)},
                demand={4: np.array(demand, np.int32)},
                placements=placements,
                clocks=np.array([(rank, 10, 5, 2), (rank, 900, 6, 2)], CLOCK),
            )
        )
    return made


# ---- means ------------------------------------------------------------------------


def rewritten(path: Path, change: Callable[[h5py.File], None]) -> Path:
    """Let HDF5 change a file in its place."""
    with h5py.File(path, "r+", libver=LIBVER) as file:
        change(file)
    return path


def reseal(path: Path) -> Path:
    """Compute the checksums that a changed file must have."""
    with h5py.File(path, "r+", libver=LIBVER) as file:
        told: dict[str, Any] = {}
        for name, value in file.attrs.items():
            try:
                told[name] = (
                    value.decode() if isinstance(value, bytes) else value.item()
                )
            except (AttributeError, UnicodeDecodeError, ValueError):
                continue
        try:
            sums = {"": attributes_checksum(told)}
        except (TypeError, OverflowError, ValueError):
            sums = {"": 0}
        for name in list(file):
            if name in ("checksum", "checksum_crc32"):
                continue
            try:
                made = file[name]
                if made.ndim == 1 and made.size < 1 << 24:
                    sums[name] = column_checksum(name, made[...])
            except (AttributeError, OSError, LookupError, RuntimeError, ValueError):
                continue  # what cannot be read needs no checksum
        names = [name.encode() for name in sums]
        put_column(file, "checksum", names, f"S{max(map(len, names))}")
        put_column(file, "checksum_crc32", list(sums.values()), "<u4")
    return path


def put_column(file: h5py.File, name: str, values: Any, dtype: str) -> None:
    """A column as the format wants it, in the place of one of this name."""
    if name in file:
        del file[name]
    array = np.asarray(values, dtype)
    file.create_dataset(
        name,
        data=array,
        chunks=(max(1, min(COLUMN_ROWS, len(array))),),
        maxshape=(None,),
        fletcher32=True,
    )


# ---- random rewriting -------------------------------------------------------------


def _any(file: h5py.File, rng: np.random.Generator) -> str:
    names = sorted(n for n in file if not n.startswith("checksum"))
    return names[int(rng.integers(len(names)))]


def extreme_value(file: h5py.File, rng: np.random.Generator) -> None:
    """An element becomes an extreme one."""
    made = file[_any(file, rng)]
    if not made.size or made.dtype.kind not in "iufS":
        return
    at = tuple(int(rng.integers(n)) for n in made.shape)
    if made.dtype.kind == "S":
        made[at] = rng.bytes(made.dtype.itemsize).replace(b"\0", b"x")
    elif made.dtype.kind == "f":
        made[at] = rng.choice([np.nan, np.inf, -1e308])
    else:
        info = np.iinfo(made.dtype)
        near = int(rng.integers(-3, 10))
        choices = [info.min, info.max, max(near, int(info.min)), info.max // 2]
        made[at] = choices[int(rng.integers(4))]


def another_attribute(file: h5py.File, rng: np.random.Generator) -> None:
    """A root attribute gets another value, or another type."""
    names = sorted(file.attrs)
    name = names[int(rng.integers(len(names)))]
    values = [np.int64(-1), np.int64(2**63 - 1), np.float64("nan"), np.bytes_(b"\xff")]
    values += [np.bytes_(b"x" * 5000), np.int64(rng.integers(100)), np.uint8(3)]
    file.attrs[name] = values[int(rng.integers(len(values)))]


def removed(file: h5py.File, rng: np.random.Generator) -> None:
    """A dataset, or an attribute, is gone."""
    if rng.random() < 0.2:
        del file.attrs[sorted(file.attrs)[int(rng.integers(len(file.attrs)))]]
    else:
        del file[_any(file, rng)]


def renamed(file: h5py.File, rng: np.random.Generator) -> None:
    """Two datasets change their names."""
    a, b = _any(file, rng), _any(file, rng)
    if a != b:
        file.move(a, "aside")
        file.move(b, a)
        file.move("aside", b)


def resized(file: h5py.File, rng: np.random.Generator) -> None:
    """A dataset loses rows or gets empty ones."""
    made = file[_any(file, rng)]
    if made.shape:
        rows = int(rng.choice([0, 1, made.shape[0] + 1, 2 * made.shape[0], 10**5]))
        made.resize(rows, axis=0)


def retyped(file: h5py.File, rng: np.random.Generator) -> None:
    """A dataset's elements become those of another type."""
    name = _any(file, rng)
    values, chunks = file[name][...], file[name].chunks
    del file[name]
    kind = ["<i8", "<i4", ">i8", "<u2", "<f8", "S3"][int(rng.integers(6))]
    file.create_dataset(
        name,
        data=np.zeros(values.shape, kind) if values.dtype.kind == "S" else values,
        dtype=kind if values.dtype.kind != "S" or kind == "S3" else None,
        chunks=chunks,
        maxshape=(None, *values.shape[1:]),
        fletcher32=values.ndim == 1,
    )


def relinked(file: h5py.File, rng: np.random.Generator) -> None:
    """A dataset becomes a link."""
    name, other = _any(file, rng), _any(file, rng)
    link: Any = [
        h5py.SoftLink(f"/{other}"),
        h5py.ExternalLink("elsewhere.h5", f"/{other}"),
        file[other],
    ][int(rng.integers(3))]
    del file[name]
    if name != other:
        file[name] = link


def shuffled(file: h5py.File, rng: np.random.Generator) -> None:
    """A column's values in another order."""
    made = file[_any(file, rng)]
    if made.ndim == 1 and made.size:
        values = made[...]
        rng.shuffle(values)
        made[...] = values


REWRITES += [
    extreme_value,
    another_attribute,
    removed,
    renamed,
    resized,
    retyped,
    relinked,
    shuffled,
]
