"""Files made to deceive, one function each; its docstring says what the danger is.

A function makes its file in a folder and returns it.  The decorator says how the
reader must take it: ``refused``, ``right`` (the danger is none, all numbers are read),
or ``another trace`` (a sound file that says something else).  Files are resealed:
whoever means harm can compute a CRC-32.
"""

from __future__ import annotations

import functools
import os
import shutil
import struct
import traceback
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import judge
import mutations
import numpy as np
from conftest import make_trace

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
    checksums,
    chunk_shape,
    column_checksum,
)
from moetraffic.trace.model import CLOCK, PLACEMENT
from moetraffic.trace.panel import ArrayPanel
from moetraffic.trace.segments.segment import (
    EVENT,
    STEP,
    Segment,
    rank_folder,
    segment_path,
    write_segment,
)

HEAVY = {"million_groups", "bomb", "two_thousand_million_rows"}
"""Their files take a second or more to make."""

CRAFTED: list[Callable[[Path], judge.Judged]] = []
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


def put_panel(file: h5py.File, name: str, values: Any, dtype: str) -> None:
    """A panel as the format wants it, in the place of one of this name."""
    if name in file:
        del file[name]
    array = np.asarray(values, dtype)
    file.create_dataset(
        name,
        data=array,
        chunks=chunk_shape(array.shape, array.dtype.itemsize),
        maxshape=(None, *array.shape[1:]),
        shuffle=True,
        compression="gzip",
        compression_opts=1,
    )
    put_column(file, f"{name}_crc32", checksums(array), "<u4")


def hostile(
    expected: str,
    *,
    read: Callable[[Path, Any], str] = judge.trace_file,
    sealed: bool = True,
    said: str = "",
) -> Callable[[Callable[[Path], Path]], Callable[[Path], judge.Judged]]:
    """Enter a crafted file; ``as expected`` is its verdict where all is well."""

    def entered(make: Callable[[Path], Path]) -> Callable[[Path], judge.Judged]:
        @functools.wraps(make)
        def crafted(folder: Path) -> judge.Judged:
            own = folder / make.__name__
            own.mkdir()
            path = _made(make, own, sealed=sealed)
            found = judge.judged(read, path, make_trace())
            outcome = found.outcome
            if outcome == "altered" and sealed:
                outcome = "another trace"
            if outcome == expected and said in found.said:
                outcome = "as expected"
            return replace(found, outcome=outcome)

        CRAFTED.append(crafted)
        return crafted

    return entered


def _made(make: Callable[[Path], Path], folder: Path, *, sealed: bool) -> Path:
    """Make a file in a process of its own, whose memory is not the reader's."""
    child = os.fork()
    if child == 0:
        try:
            shutil.copy(_sound(folder.parent), folder / "crafted.h5")
            path = make(folder / "crafted.h5")
            if sealed:
                reseal(path)
            (folder / "name").write_text(str(path))
            os._exit(0)
        finally:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"{make.__name__} could not be made"
    return Path((folder / "name").read_text())


def _sound(folder: Path) -> Path:
    """A sound trace."""
    if not (folder / "sound.h5").exists():
        make_trace().save(folder / "sound.h5")
    return folder / "sound.h5"


def _sound_segments(folder: Path) -> Path:
    """A folder of sound segments."""
    there = folder / "sound.h5.segments"
    if not there.exists():
        for segment in segments():
            rank_folder(there, segment.rank).mkdir(parents=True, exist_ok=True)
            write_segment(segment, there)
    return there


def changing(change: Callable[[h5py.File], None]) -> Callable[[Path], Path]:
    """A crafted file that is a sound one, rewritten."""

    @functools.wraps(change)
    def make(path: Path) -> Path:
        return rewritten(path, change)  # type: ignore[arg-type]

    return make


def forged(path: Path, mark: bytes, old: bytes, new: bytes) -> None:
    """Replace bytes in a piece of HDF5's metadata, and its checksum."""
    data = path.read_bytes()
    for start, stop, place in mutations.metadata(data):
        block = bytearray(data[start:stop])
        if block[:4] == mark and old in block:
            at = block.index(old)
            block[at : at + len(old)] = new
            block[place : place + 4] = struct.pack(
                "<I", mutations.lookup3(bytes(block[:place]))
            )
            path.write_bytes(data[:start] + bytes(block) + data[stop:])
            return
    raise LookupError("the file has no such metadata")


# ---- what a pipe, a disk and a name can be ----------------------------------------


@hostile("refused", sealed=False)
def named_pipe(path: Path) -> Path:
    """Opening a pipe waits for a writer that never comes."""
    os.mkfifo(path.with_name("pipe.h5"))
    return path.with_name("pipe.h5")


@hostile("refused", sealed=False)
def endless_device(path: Path) -> Path:
    """A device can be read for ever."""
    return Path("/dev/zero")


@hostile("refused", sealed=False)
def nothing_in_it(path: Path) -> Path:
    """An empty file is what a full disk leaves."""
    path.write_bytes(b"")
    return path


@hostile("refused", sealed=False)
def signature_alone(path: Path) -> Path:
    """Eight right bytes and nothing behind them."""
    path.write_bytes(b"\x89HDF\r\n\x1a\n")
    return path


@hostile("refused", sealed=False)
def user_block(path: Path) -> Path:
    """HDF5 may begin behind any 512 bytes, which may be a program."""
    path.write_bytes(b"#!/bin/sh\n".ljust(512, b"\n") + path.read_bytes())
    return path


@hostile("right", sealed=False)
def something_behind(path: Path) -> Path:
    """Data behind the end of HDF5 can be anything; it is never read."""
    path.write_bytes(path.read_bytes() + os.urandom(4096))
    return path


def _read_while(path: Path, change: Callable[[Path], None]) -> str:
    with Trace.open(path) as trace:
        change(path)
        truth = make_trace()
        for name, panel in trace.panels.items():
            there = panel.read(0, panel.shape[0])
            if not np.array_equal(there, truth.panels[name].read(0, panel.shape[0])):
                return "altered"
    return "right"


@hostile(
    "refused",
    sealed=False,
    read=lambda path, _: _read_while(path, lambda p: os.truncate(p, 9000)),
)
def shrinks_while_open(path: Path) -> Path:
    """A file can be cut off between opening and reading it."""
    return path


# ---- elsewhere, and round in circles ----------------------------------------------


@hostile("refused")
@changing
def external_storage(file: h5py.File) -> None:
    """A dataset's bytes may lie in any file of the reader."""
    rows = len(file["step"])
    del file["step"]
    file.create_dataset("step", (rows,), "<i8", external=[("/etc/passwd", 0, 8 * rows)])


@hostile("refused")
@changing
def virtual_dataset(file: h5py.File) -> None:
    """A dataset put together from other files reads as fill values without them."""
    shape = file["demand_4x8"].shape
    del file["demand_4x8"]
    layout = h5py.VirtualLayout(shape, "<i4")
    layout[:] = h5py.VirtualSource("elsewhere.h5", "d", shape)
    file.create_virtual_dataset("demand_4x8", layout)


@hostile("refused")
@changing
def loop_of_soft_links(file: h5py.File) -> None:
    """Soft links can lead round in a circle."""
    del file["step"]
    file["step"] = h5py.SoftLink("/other")
    file["other"] = h5py.SoftLink("/step")


@hostile("refused")
@changing
def external_link(file: h5py.File) -> None:
    """A link into another file opens that file, whatever it is."""
    del file["site_layer"]
    file["site_layer"] = h5py.ExternalLink("/dev/stdin", "/site_layer")


@hostile("refused", sealed=False)
@changing
def one_column_twice(file: h5py.File) -> None:
    """Two names for one dataset: each column is sound, and one is the wrong one."""
    del file["placement_layer"]
    file["placement_layer"] = file["placement_expert"]


# ---- kinds of elements ------------------------------------------------------------


def _typed(dtype: Any, name: str = "site_layer") -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        rows = len(file[name])
        plain = not isinstance(dtype, np.dtype) or not dtype.metadata
        del file[name]
        file.create_dataset(
            name, (rows,), dtype, chunks=(rows,), maxshape=(None,), fletcher32=plain
        )

    return change


@hostile("refused")
@changing
def texts_of_any_length(file: h5py.File) -> None:
    """Variable-length text lies in the global heap, where a flipped bit hangs HDF5."""
    _typed(h5py.string_dtype(), "site_label")(file)


@hostile("refused")
@changing
def references(file: h5py.File) -> None:
    """A reference is an address to follow."""
    _typed(h5py.ref_dtype)(file)


@hostile("refused")
@changing
def floats_for_counts(file: h5py.File) -> None:
    """Token copies as floating point."""
    put_panel(file, "demand_4x8", np.full((80, 4, 8), 0.5), "<f4")


# ---- attributes -------------------------------------------------------------------


@hostile("refused")
@changing
def attribute_of_any_length(file: h5py.File) -> None:
    """Variable-length text in an attribute."""
    file.attrs["model"] = "of variable length"


@hostile("refused")
@changing
def version_to_come(file: h5py.File) -> None:
    """A file of a later release."""
    file.attrs["format_version"] = np.int64(99)


# ---- sizes ------------------------------------------------------------------------


@hostile("refused", sealed=False)
@changing
def bomb(file: h5py.File) -> None:
    """A chunk that inflates to a thousand times its bytes."""
    data = zlib.compress(bytes(1 << 28))
    file["demand_4x8"].id.write_direct_chunk((0, 0, 0), data)


@hostile("refused", sealed=False)
@changing
def small_bomb(file: h5py.File) -> None:
    """A chunk of a plausible size that inflates to more than it may."""
    data = zlib.compress(bytes(1 << 20))
    file["demand_4x8"].id.write_direct_chunk((0, 0, 0), data)


@hostile("refused", sealed=False)
@changing
def short_chunk(file: h5py.File) -> None:
    """A chunk that inflates to fewer bytes: HDF5 reads past its buffer."""
    data = zlib.compress(os.urandom(600))
    file["demand_4x8"].id.write_direct_chunk((0, 0, 0), data)


@hostile("refused", sealed=False)
@changing
def chunk_of_zeros(file: h5py.File) -> None:
    """All of a chunk and its Fletcher-32 are zero, which is a sound Fletcher-32."""
    made = file["occurrence_sequence"]
    made.id.write_direct_chunk((0,), bytes(made.chunks[0] * 8 + 4))


@hostile("refused")
@changing
def plugin(file: h5py.File) -> None:
    """A filter that HDF5 would load a library for, from a folder of the environment."""
    del file["demand_4x8"]
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((256, 4, 8))
    plist.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (3,))
    space = h5py.h5s.create_simple((80, 4, 8), (h5py.h5s.UNLIMITED, 4, 8))
    h5py.h5d.create(file.id, b"demand_4x8", h5py.h5t.STD_I32LE, space, plist)


@hostile("refused")
@changing
def two_thousand_million_rows(file: h5py.File) -> None:
    """Chunks of one row: HDF5 looks for 2^31 of them, and finds the last."""
    del file["step"]
    made = file.create_dataset(
        "step", (2**31,), "<i8", chunks=(1,), maxshape=(None,), fletcher32=True
    )
    made[-1] = 1


@hostile("refused")
@changing
def claimed_rows(file: h5py.File) -> None:
    """A shape far beyond the chunks that are there."""
    file["step"].resize((2**62,))


@hostile("refused")
@changing
def claimed_rows_of_a_panel(file: h5py.File) -> None:
    """A panel with more rows than were ever written."""
    file["issue_4"].resize((2**40, 4))
    put_column(file, "issue_4_crc32", [0], "<u4")


@hostile("another trace")
@changing
def million_groups(file: h5py.File) -> None:
    """Each group of one rank is four bytes in the file, and an object in memory."""
    count = 1_000_000
    put_column(file, "group", np.arange(count), "<i4")
    put_column(file, "group_kind", [b"ep", b"dp"] + [b"tp"] * (count - 2), "S2")
    put_column(file, "group_size", [4, 2] + [1] * (count - 2), "<i4")
    put_column(file, "group_rank", [0, 1, 2, 3, 0, 2] + [0] * (count - 2), "<i4")


# ---- numbers ----------------------------------------------------------------------


def _first(name: str, value: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        file[name][0] = value

    return change


def _entered(expected: str, danger: str, title: str, change: Any) -> None:
    def make(path: Path) -> Path:
        return rewritten(path, change)

    make.__name__, make.__doc__ = title, danger
    hostile(expected)(make)


for _title, _danger, _name, _value in (
    ("site_outside", "An occurrence of a site that is not.", "occurrence_site", 1000),
    ("site_below_zero", "An index from the end.", "occurrence_site", -1),
    ("group_outside", "A site of a group that is not.", "site_group", 9),
    ("rank_outside", "A group of a rank that is not.", "group_rank", 7),
    ("rank_below_zero", "A rank from the end.", "group_rank", -1),
    ("rank_twice", "A group with one rank twice.", "group_rank", 1),
    ("negative_size", "A group of less than none.", "group_size", -4),
    ("size_of_all", "A group of more ranks than there are.", "group_size", 2**31 - 1),
    ("form_of_wire", "A statement that is none.", "site_wire", 9),
    ("form_of_dropped", "A statement that is none.", "site_dropped", -1),
    ("program_outside", "A program of sites that are not.", "program_site", 10**6),
    ("program_too_long", "A program longer than all.", "program_length", 2**31 - 1),
    ("program_of_nobody", "A program of a rank that is not.", "program_rank", 99),
    ("placed_outside", "An expert in a group that is not.", "placement_group", 5),
    ("placed_on_nobody", "An expert on a rank that is not.", "placement_rank", 77),
    ("expert_twice", "An expert in two places at once.", "placement_expert", 1),
    ("expert_far_out", "Experts with a gap between.", "placement_expert", 2**31 - 1),
    ("replica_below_zero", "A replica below the first.", "placement_replica", -1),
    ("clock_of_nobody", "A clock of a rank that is not.", "clock_rank", -5),
    ("clock_far_off", "A clock further off than time.", "clock_offset_ns", 2**63 - 1),
    ("clock_long_ago", "A knot before all time.", "clock_local_ns", -(2**63) + 1),
    ("first_iteration", "An iteration before all.", "occurrence_iteration", -(2**63)),
    ("step_backwards", "Steps that go back.", "step", 2**62),
    ("kind_of_step", "A step of no kind.", "step_kind", b"pause"),
    ("experts_below_zero", "A routing to fewer than none.", "site_experts", -8),
    ("rows_below_zero", "Rows of fewer bytes than none.", "site_row_bytes", -1),
    ("constant_below_zero", "Fewer bytes than none.", "constant_bytes", -1),
    ("constant_beyond", "Bytes that overflow a sum.", "constant_bytes", 2**63 - 1),
):
    _entered("refused", _danger, _title, _first(_name, _value))


@hostile("refused")
@changing
def rows_that_overflow(file: h5py.File) -> None:
    """Token copies times bytes of a row beyond int64 come out as a small number."""
    file["site_row_bytes"][...] = 2**62


@hostile("refused")
@changing
def iterations_that_overflow(file: h5py.File) -> None:
    """Sites times the span of iterations beyond int64."""
    when = file["occurrence_iteration"][...].reshape(-1, 40)
    when[:, -1] = 2**63 - 1
    file["occurrence_iteration"][...] = when.ravel()


@hostile("refused")
@changing
def bytes_that_overflow(file: h5py.File) -> None:
    """Bytes whose sum is beyond int64."""
    put_panel(file, "wire_4", np.full((40, 4, 4), 2**63 - 1), "<i8")


@hostile("refused")
@changing
def negative_count(file: h5py.File) -> None:
    """Fewer token copies than none."""
    values = file["demand_4x8"][...]
    values[3, 1, 2] = -1
    put_panel(file, "demand_4x8", values, "<i4")


# ---- addresses --------------------------------------------------------------------


def _addressed(path: Path, name: str) -> tuple[int, int]:
    with h5py.File(path) as file:
        info = file[name].id.get_chunk_info(0)
    return info.byte_offset, info.size


@hostile("refused", sealed=False)
def chunks_over_each_other(path: Path) -> Path:
    """Two chunks of one panel at one place."""
    rows = 2 * 4096
    rewritten(path, lambda f: put_panel(f, "issue_4", np.zeros((rows * 2, 4)), "<i8"))
    with h5py.File(path) as file:
        made = file["issue_4"].id
        first, second = (made.get_chunk_info(n).byte_offset for n in (0, 1))
    forged(path, b"EAIB", struct.pack("<Q", second), struct.pack("<Q", first))
    return path


@hostile("refused", sealed=False)
def chunk_beyond_the_end(path: Path) -> Path:
    """A chunk outside of the file."""
    offset, _ = _addressed(path, "demand_4x8")
    forged(path, b"EAIB", struct.pack("<Q", offset), struct.pack("<Q", 1 << 40))
    return path


@hostile("right", sealed=False)
def still_open_for_writing(path: Path) -> Path:
    """The mark of a writer that died: what is there is complete, or it is not."""
    data = bytearray(path.read_bytes())
    data[11] = 1
    data[44:48] = struct.pack("<I", mutations.lookup3(bytes(data[:44])))
    path.write_bytes(bytes(data))
    return path


# ---- segments ---------------------------------------------------------------------


def _told(path: Path, number: int = 1, **fields: Any) -> Path:
    """A folder of segments, of which one says something else."""
    folder = path.with_name("run.h5.segments")
    shutil.copytree(_sound_segments(path.parent.parent), folder)
    segment = segments()[number]
    changed = replace(segment, **fields)
    aside = path.with_name("aside")
    rank_folder(aside, changed.rank).mkdir(parents=True)
    name = segment_path(folder, segment.rank, segment.index)
    write_segment(changed, aside).rename(name)
    return folder


def _merged(folder: Path, _: Any) -> str:
    """Merge; every trace that comes of it can be saved and opened."""
    from moetraffic.trace.merge.merging import merge

    merged = merge(folder)
    if any("a segment is left out" in told for told in merged.missing):
        return "left out"
    merged.trace.save(folder.with_name("merged.h5"))
    judge.trace_file(folder.with_name("merged.h5"), None)
    return "right"


in_merge = functools.partial(hostile, sealed=False, read=_merged)


def _changed(name: str, field: str, value: Any, at: Any = 0) -> Any:
    array = getattr(segments()[1], name).copy()
    array[field][at] = value
    return {name: array}


for _title, _danger, _fields in (
    ("payload_outside", "An event whose row is not.", ("events", "payload", 10**6)),
    ("payload_below", "An event whose row is from the end.", ("events", "payload", -1)),
    ("event_outside", "An event of a site that is not.", ("events", "site", 99)),
    ("neither_way", "Swapped neither yes nor no.", ("events", "transposed", 7)),
    ("long_before", "An event before all.", ("events", "iteration", -(2**63))),
    ("long_after", "An event after all.", ("events", "iteration", 2**63 - 1)),
    ("step_long_after", "A step after all.", ("steps", "iteration", 2**63 - 1)),
    ("placed_nowhere", "An expert in a group that is not.", ("placements", "group", 5)),
    ("placed_before", "A group from the end.", ("placements", "group", -1)),
    ("placed_by_nobody", "A rank that is not.", ("placements", "rank", 9)),
    ("clock_of_another", "A clock of a rank that is not.", ("clocks", "rank", 9)),
    ("step_twice", "A step twice.", ("steps", "iteration", 5)),
):

    def _make(path: Path, fields: Any = _fields) -> Path:
        return _told(path, **_changed(*fields))

    _make.__name__, _make.__doc__ = f"segment_{_title}", _danger
    in_merge("left out")(_make)

for _title, _danger, _more in (
    ("rank_below_zero", "A rank from the end.", {"rank": -1}),
    ("of_another_rank", "A segment in another rank's folder.", {"rank": 1}),
    ("far_ahead", "All windows before it would be missing.", {"index": 10**12}),
    ("of_another_window", "A window under another's name.", {"index": 2}),
    ("without_kinds", "Steps of no kind.", {"kinds": ("pause",) * 4}),
    ("without_splits", "Exchanges without their bytes.", {"splits": {}}),
    ("without_demand", "Routings without their copies.", {"demand": {}}),
    ("without_groups", "Sites of no group.", {"groups": ()}),
    (
        "strange_group",
        "A group of which the rank is none.",
        {"groups": (Group(kind="ep", ranks=(1, 2)),)},
    ),
    (
        "one_rank_twice",
        "A group with one rank twice.",
        {"groups": (Group(kind="ep", ranks=(0, 0)),)},
    ),
    ("fewer_shards", "One process that stands for fewer than none.", {"shards": -3}),
    ("more_shards", "One process that stands for all ranks.", {"shards": 2}),
    ("endless_shards", "One process that stands for too many.", {"shards": 2**40}),
    (
        "below_zero",
        "Fewer bytes than none.",
        {"splits": {2: np.full((4, 2, 2), -5, np.int64)}},
    ),
    (
        "beyond",
        "Bytes whose sum is beyond int64.",
        {"splits": {2: np.full((4, 2, 2), 2**62, np.int64)}},
    ),
):

    def _write(path: Path, fields: Any = _more) -> Path:
        return _told(path, **fields)

    _write.__name__, _write.__doc__ = f"segment_{_title}", _danger
    in_merge("left out")(_write)


@in_merge("refused")
def segments_of_a_huge_world(path: Path) -> Path:
    """Steps times ranks: two ranks of a thousand million."""
    folder = path.with_name("run.h5.segments")
    for segment in segments():
        rank_folder(folder, segment.rank).mkdir(parents=True, exist_ok=True)
        meta = replace(segment.meta, world=10**9)
        write_segment(replace(segment, meta=meta), folder)
    return folder


@in_merge("left out")
def segment_of_a_huge_world(path: Path) -> Path:
    """The first segment of all tells of a world of its own."""
    return _told(path, 0, meta=replace(segments()[0].meta, world=10**9))


@in_merge("left out")
def segment_that_is_a_pipe(path: Path) -> Path:
    """A pipe where a segment should be."""
    folder = _told(path)
    victim = rank_folder(folder, 1) / "segment-000001.h5"
    victim.unlink()
    os.mkfifo(victim)
    return folder


@in_merge("right")
def segments_with_strangers(path: Path) -> Path:
    """Files and folders of other names."""
    folder = _told(path)
    (folder / "rank-x").mkdir()
    (folder / "rank-00001" / ".segment-000009.h5.77.tmp").write_bytes(b"half")
    (folder / "notes.txt").write_text("mine")
    return folder


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
