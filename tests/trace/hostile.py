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
import socket
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

HEAVY = {  # their files take a second or more to make
    *("a_matrix_of_gigabytes", "one_large_group_among_many", "million_groups"),
    *("hundred_thousand_sites", "thousands_of_experts_each", "steps_of_a_bomb"),
    *("thousands_of_attributes", "thousands_of_attributes_beside", "bomb"),
    *("loops_and_depths_beside", "thousands_of_links", "tiny_chunks"),
    *("hundred_thousand_placements", "two_thousand_million_rows"),
}
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
def own_memory(path: Path) -> Path:
    """The file system of processes has regular files whose size is told as 0."""
    return Path("/proc/self/mem")


@hostile("refused", sealed=False)
def folder_of_that_name(path: Path) -> Path:
    """A folder opens like a file."""
    path.unlink()
    path.mkdir()
    return path


@hostile("refused", sealed=False)
def socket_of_that_name(path: Path) -> Path:
    """A socket in the file system cannot be opened."""
    path.unlink()
    here = Path.cwd()
    try:
        os.chdir(path.parent)  # the name of a socket is short
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)
    return path


@hostile("refused", sealed=False)
def link_to_itself(path: Path) -> Path:
    """A symbolic link can lead round in a circle."""
    path.unlink()
    path.symlink_to(path)
    return path


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


@hostile(
    "refused",
    sealed=False,
    read=lambda path, _: _read_while(
        path, lambda p: p.write_bytes(bytes(p.stat().st_size))
    ),
)
def wiped_while_open(path: Path) -> Path:
    """A file can be written over between opening and reading it."""
    return path


@hostile(
    "right",
    sealed=False,
    read=lambda path, _: _read_while(path, lambda p: p.unlink()),
)
def removed_while_open(path: Path) -> Path:
    """A name can vanish while its file is read."""
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
def soft_link(file: h5py.File) -> None:
    """A soft link gives one dataset for another."""
    del file["step_loss"]
    file["step_loss"] = h5py.SoftLink("/step_tokens")


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


@hostile("right")
@changing
def loops_and_depths_beside(file: h5py.File) -> None:
    """A group that holds the root, and groups in groups: walking them never ends."""
    group = file.create_group("beside")
    group["root"] = file["/"]
    for _ in range(200):
        group = group.create_group("g")


@hostile("refused")
@changing
def group_for_column(file: h5py.File) -> None:
    """A group where a dataset should be."""
    del file["step"]
    file.create_group("step")["step"] = file["/"]


@hostile("refused")
@changing
def thousands_of_links(file: h5py.File) -> None:
    """Listing a root of many links takes memory and time."""
    for number in range(5000):
        file[f"x{number}"] = h5py.SoftLink("/x")


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
def lists_of_any_length(file: h5py.File) -> None:
    """Variable-length lists lie in the global heap too."""
    _typed(h5py.vlen_dtype(np.int32))(file)


@hostile("refused")
@changing
def references(file: h5py.File) -> None:
    """A reference is an address to follow."""
    _typed(h5py.ref_dtype)(file)


@hostile("refused")
@changing
def references_to_regions(file: h5py.File) -> None:
    """A reference to a region lies in the global heap."""
    del file["site_layer"]
    file.create_dataset("site_layer", (3,), h5py.regionref_dtype, chunks=(3,))


@hostile("refused")
@changing
def committed_compound(file: h5py.File) -> None:
    """A named compound type of absurd size stands for every element."""
    file["type"] = np.dtype([("a", "<i4"), ("b", "V4000000")])
    del file["site_layer"]
    file.create_dataset("site_layer", (3,), file["type"], chunks=(1,))


@hostile("refused")
@changing
def compound_of_thousands(file: h5py.File) -> None:
    """Each member of a compound type costs many times its bytes in the file."""
    fields = np.dtype([(f"f{i}", "<i4") for i in range(1000)])
    _typed(fields)(file)


@hostile("refused")
@changing
def opaque_elements(file: h5py.File) -> None:
    """Elements without a meaning."""
    _typed("V4")(file)


@hostile("refused")
@changing
def arrays_as_elements(file: h5py.File) -> None:
    """An element that is an array makes a shape longer than it looks."""
    del file["site_layer"]
    file.create_dataset("site_layer", (3,), np.dtype("(1000,1000)<i4"), chunks=(1,))


@hostile("refused")
@changing
def named_numbers(file: h5py.File) -> None:
    """An enumeration has the width of its numbers."""
    _typed(h5py.enum_dtype({"A": 0, "B": 1}, "<i4"))(file)


@hostile("refused")
@changing
def other_end_first(file: h5py.File) -> None:
    """Big-endian numbers, read as little-endian ones."""
    _typed(">i4")(file)


@hostile("refused")
@changing
def few_bits(file: h5py.File) -> None:
    """An integer of 4 bytes of which 17 bits count, from the third on."""
    kind = h5py.h5t.STD_I32LE.copy()
    kind.set_precision(17)
    kind.set_offset(3)
    rows = len(file["site_layer"])
    del file["site_layer"]
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((rows,))
    plist.set_fletcher32()
    space = h5py.h5s.create_simple((rows,), (h5py.h5s.UNLIMITED,))
    h5py.h5d.create(file.id, b"site_layer", kind, space, plist)


@hostile("refused")
@changing
def floats_for_counts(file: h5py.File) -> None:
    """Token copies as floating point."""
    put_panel(file, "demand_4x8", np.full((80, 4, 8), 0.5), "<f4")


@hostile("refused")
@changing
def text_of_another_encoding(file: h5py.File) -> None:
    """Text that is no UTF-8."""
    rows = len(file["site_label"])
    put_column(file, "site_label", ["größe".encode("latin-1")] * rows, "S5")


@hostile("refused")
@changing
def wide_text(file: h5py.File) -> None:
    """Text of fixed width, a megabyte of it for each of few rows."""
    put_column(file, "site_label", [b"x"] * len(file["site_label"]), "S1000000")


# ---- attributes -------------------------------------------------------------------


@hostile("refused")
@changing
def thousands_of_attributes(file: h5py.File) -> None:
    """Attributes without end."""
    for number in range(3000):
        file.attrs[f"a{number}"] = number


@hostile("right")
@changing
def thousands_of_attributes_beside(file: h5py.File) -> None:
    """Attributes of a dataset are never read."""
    for number in range(3000):
        file["demand_4x8"].attrs[f"a{number}"] = number


@hostile("refused")
@changing
def attribute_of_any_length(file: h5py.File) -> None:
    """Variable-length text in an attribute."""
    file.attrs["model"] = "of variable length"


@hostile("refused")
@changing
def attribute_that_points(file: h5py.File) -> None:
    """A reference in an attribute."""
    file.attrs["source"] = file["step"].ref


@hostile("refused")
@changing
def attribute_of_nothing(file: h5py.File) -> None:
    """An attribute may have no value at all."""
    file.attrs["hidden"] = h5py.Empty("<i8")


@hostile("refused")
@changing
def attribute_of_many(file: h5py.File) -> None:
    """A list where a number should be."""
    file.attrs["hidden"] = np.arange(8000)


@hostile("refused")
@changing
def attribute_beyond_integers(file: h5py.File) -> None:
    """A number that no int64 holds."""
    file.attrs["hidden"] = np.uint64(2**64 - 1)


@hostile("refused")
@changing
def attribute_of_another_encoding(file: h5py.File) -> None:
    """An attribute that is no UTF-8."""
    file.attrs["model"] = np.bytes_("größe".encode("latin-1"))


@hostile("refused")
@changing
def version_of_another_type(file: h5py.File) -> None:
    """A version that is no number."""
    file.attrs["format_version"] = np.float64("nan")


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


@hostile("refused", sealed=False)
@changing
def unfiltered_chunk(file: h5py.File) -> None:
    """A chunk that says that filters were left out for it."""
    made = file["occurrence_sequence"]
    made.id.write_direct_chunk((0,), bytes(made.chunks[0] * 8), filter_mask=1)


@hostile("refused")
@changing
def inflated_twice(file: h5py.File) -> None:
    """Deflate twice: a million to one."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((256, 4, 8))
    plist.set_shuffle()
    plist.set_deflate(1)
    plist.set_deflate(1)
    del file["demand_4x8"]
    space = h5py.h5s.create_simple((80, 4, 8), (h5py.h5s.UNLIMITED, 4, 8))
    h5py.h5d.create(file.id, b"demand_4x8", h5py.h5t.STD_I32LE, space, plist)


def _filtered(**filters: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        values = file["demand_4x8"][...]
        del file["demand_4x8"]
        file.create_dataset("demand_4x8", data=values, chunks=(256, 4, 8), **filters)

    return change


@hostile("refused")
@changing
def lzf(file: h5py.File) -> None:
    """A filter that HDF5 has, and that is not of the format."""
    _filtered(compression="lzf", shuffle=True, maxshape=(None, 4, 8))(file)


@hostile("refused")
@changing
def scaled(file: h5py.File) -> None:
    """A filter that loses digits."""
    _filtered(scaleoffset=3, maxshape=(None, 4, 8))(file)


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


@hostile("refused")
@changing
def tiny_chunks(file: h5py.File) -> None:
    """Each chunk of one number costs hundreds of bytes of memory."""
    del file["step"]
    values = np.arange(20_000)
    file.create_dataset(
        "step", data=values, chunks=(1,), maxshape=(None,), fletcher32=True
    )


@hostile("refused")
@changing
def in_one_piece(file: h5py.File) -> None:
    """A dataset without chunks has no checksum."""
    values = file["step"][...]
    del file["step"]
    file.create_dataset("step", data=values)


@hostile("refused")
@changing
def steps_of_a_bomb(file: h5py.File) -> None:
    """30,000 steps of 4,000 ranks: a few megabytes that inflate to four gigabytes."""
    ranks, steps = 4000, 30_000
    file.attrs["world"] = np.int64(ranks)
    put_column(file, "rank", np.arange(ranks), "<i4")
    put_column(file, "rank_node", [b"n"] * ranks, "S1")
    put_column(file, "step", np.arange(steps), "<i8")
    put_column(file, "step_kind", [b"train"] * steps, "S5")
    for name, dtype in (
        ("step_loss", "<f8"),
        ("step_tokens", "<i8"),
        ("step_start", "<i8"),
        ("step_end", "<i8"),
    ):
        _zeros(file, name, (steps, ranks), dtype)


def _zeros(file: h5py.File, name: str, shape: tuple[int, ...], dtype: str) -> None:
    """A sound panel of zeros of any size, made without its bytes."""
    kind = np.dtype(dtype)
    chunk = chunk_shape(shape, kind.itemsize)
    del file[name]
    made = file.create_dataset(
        name,
        shape,
        kind,
        chunks=chunk,
        maxshape=(None, *shape[1:]),
        shuffle=True,
        compression="gzip",
        compression_opts=1,
    )
    packed = zlib.compress(bytes(int(np.prod(chunk)) * kind.itemsize), 9)
    for corner in np.ndindex(*(-(-n // c) for n, c in zip(shape, chunk, strict=True))):
        at = tuple(i * c for i, c in zip(corner, chunk, strict=True))
        made.id.write_direct_chunk(at, packed)
    one = zlib.crc32(bytes(int(np.prod(shape[1:])) * kind.itemsize))
    put_column(file, f"{name}_crc32", np.full(shape[0], one), "<u4")


def _of_ranks(file: h5py.File, ranks: int) -> None:
    """A world of many ranks, all in the first group."""
    file.attrs["world"] = np.int64(ranks)
    put_column(file, "rank", np.arange(ranks), "<i4")
    put_column(file, "rank_node", [b"n"] * ranks, "S1")
    put_column(file, "group_size", [ranks, 2], "<i4")
    put_column(file, "group_rank", [*range(ranks), 0, 2], "<i4")
    steps = len(file["step"])
    for name in ("step_loss", "step_tokens", "step_start", "step_end"):
        _zeros(file, name, (steps, ranks), file[name].dtype.str)


@hostile("refused")
@changing
def a_matrix_of_gigabytes(file: h5py.File) -> None:
    """A matrix between 12,000 ranks, 1.1 GB, in a file of a megabyte or two."""
    ranks = 12_000
    _of_ranks(file, ranks)
    rows = len(file["wire_4"])
    for name in list(file):
        if name.startswith(("issue_4", "start_4", "end_4", "present_4", "wire_4")):
            file.move(name, name.replace("_4", f"_{ranks}"))
    for name in ("issue", "start", "end", "present"):
        new = f"{name}_{ranks}"
        _zeros(file, new, (len(file[new]), ranks), file[new].dtype.str)
    _zeros(file, f"wire_{ranks}", (1, ranks, ranks), "<i8")
    assert rows > 1


@hostile("another trace")
@changing
def hundred_thousand_sites(file: h5py.File) -> None:
    """Every row of a table becomes an object."""
    _more_sites(file, 100_000)


def _more_sites(file: h5py.File, count: int) -> None:
    have = len(file["site"])
    for name in [n for n in file if n == "site" or n.startswith("site_")]:
        old = file[name][...]
        more = np.repeat(old[-1:], count - have)
        if name == "site_constants":
            more[:] = 0
        if name == "site_wire":
            more[:] = 0
        if name == "site_slot":
            more = np.arange(1, count - have + 1)
        put_column(file, name, np.concatenate([old, more]), old.dtype.str)


@hostile("another trace")
@changing
def million_groups(file: h5py.File) -> None:
    """Each group of one rank is four bytes in the file, and an object in memory."""
    count = 1_000_000
    put_column(file, "group", np.arange(count), "<i4")
    put_column(file, "group_kind", [b"ep", b"dp"] + [b"tp"] * (count - 2), "S2")
    put_column(file, "group_size", [4, 2] + [1] * (count - 2), "<i4")
    put_column(file, "group_rank", [0, 1, 2, 3, 0, 2] + [0] * (count - 2), "<i4")


@hostile("another trace")
@changing
def one_large_group_among_many(file: h5py.File) -> None:
    """A table of all groups' ranks, as wide as the widest: 50,000 x 50,000."""
    ranks = 50_000
    _of_ranks(file, ranks)
    count = 50_000
    sizes = np.ones(count, int)
    sizes[:2] = 4, 2
    sizes[2] = ranks
    put_column(file, "group", np.arange(count), "<i4")
    put_column(file, "group_kind", [b"ep"] * count, "S2")
    put_column(file, "group_size", sizes, "<i4")
    every = [0, 1, 2, 3, 0, 2, *range(ranks), *([0] * (count - 3))]
    put_column(file, "group_rank", every, "<i4")
    # the sites of the group of two become sites of the large one
    group = file["site_group"][...]
    group[group == 1] = 2
    wire = file["site_wire"][...]
    wire[group == 2] = 0
    constants = file["site_constants"][...]
    constants[:] = 0
    put_column(file, "site_group", group, "<i4")
    put_column(file, "site_wire", wire, "<i4")
    put_column(file, "site_constants", constants, "<i4")
    put_column(file, "constant_bytes", [], "<i8")
    for name in ("present", "issue", "start", "end"):
        rows, dtype = len(file[f"{name}_2"]), file[f"{name}_2"].dtype.str
        del file[f"{name}_2_crc32"]
        file.move(f"{name}_2", f"{name}_{ranks}")
        _zeros(file, f"{name}_{ranks}", (rows, ranks), dtype)
    del file["volume_2"]


@hostile("another trace")
@changing
def hundred_thousand_placements(file: h5py.File) -> None:
    """Rows of placement times groups: a product that need not be walked."""
    count = 100_000
    put_column(file, "placement", np.arange(count), "<i8")
    put_column(file, "placement_group", np.arange(count), "<i4")
    for name in ("layer", "expert", "replica", "rank"):
        put_column(file, f"placement_{name}", np.zeros(count), "<i4")
    put_column(file, "placement_valid_from", np.zeros(count), "<i8")
    put_column(file, "group", np.arange(count), "<i4")
    put_column(file, "group_kind", [b"ep"] * count, "S2")
    put_column(file, "group_size", [4, 2] + [1] * (count - 2), "<i4")
    put_column(file, "group_rank", [0, 1, 2, 3, 0, 2] + [0] * (count - 2), "<i4")


@hostile("another trace")
@changing
def thousands_of_experts_each(file: h5py.File) -> None:
    """Occurrences times kinds of routing: a product that need not be walked."""
    _more_sites(file, 20_000)
    experts = file["site_experts"][...]
    have = int(np.flatnonzero(experts == 0)[-1]) + 1
    assert have == len(experts)
    count = 100_000
    site = np.sort(np.arange(count) % 19_000 + 1000)
    site = np.concatenate([file["occurrence_site"][...], site])
    when = np.concatenate([file["occurrence_iteration"][...], np.zeros(count, int)])
    new = np.flatnonzero(np.r_[True, site[1:] != site[:-1]])
    nth = np.arange(len(site)) - np.repeat(new, np.diff(np.r_[new, len(site)]))
    when = np.where(site >= 1000, nth, when)
    put_column(file, "occurrence", np.arange(len(site)), "<i8")
    put_column(file, "occurrence_site", site, "<i4")
    put_column(file, "occurrence_iteration", when, "<i8")
    put_column(file, "occurrence_sequence", np.full(len(site), -1), "<i8")
    for name in ("present", "issue", "start", "end"):
        rows = len(file[f"{name}_4"]) + count
        _zeros(file, f"{name}_4", (rows, 4), file[f"{name}_4"].dtype.str)


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


@hostile("another trace")
@changing
def dropped_more_than_routed(file: h5py.File) -> None:
    """More copies dropped than routed: bytes below zero, had they been computed."""
    put_panel(file, "dropped_4x8", np.full((40, 4, 8), 1000), "<i4")


@hostile("refused")
@changing
def the_same_site_twice(file: h5py.File) -> None:
    """Two sites that nothing tells apart."""
    for name in [n for n in file if n.startswith("site_")]:
        values = file[name][...]
        values[-1] = values[-2]
        file[name][...] = values


@hostile("refused")
@changing
def panel_that_nothing_calls_for(file: h5py.File) -> None:
    """A panel of ranks that no group has."""
    put_panel(file, "present_9", np.ones((3, 9)), "|u1")


@hostile("another trace")
@changing
def losses_that_are_none(file: h5py.File) -> None:
    """Infinite losses, and an infinite capacity."""
    put_panel(file, "step_loss", np.full(file["step_loss"].shape, np.inf), "<f8")
    file.attrs["capacity_factor"] = np.float64("-inf")


@hostile("another trace")
@changing
def times_that_overflow(file: h5py.File) -> None:
    """Times whose differences are beyond int64."""
    shape = file["end_4"].shape
    put_panel(file, "end_4", np.full(shape, 2**63 - 1), "<i8")
    put_panel(file, "issue_4", np.full(shape, -(2**63) + 1), "<i8")


@hostile("refused")
@changing
def a_world_of_its_own(file: h5py.File) -> None:
    """A world of more ranks than are listed."""
    file.attrs["world"] = np.int64(2**62)


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


@hostile("refused", sealed=False)
def chunk_of_another(path: Path) -> Path:
    """A column whose chunk is that of another column of its size."""
    offset, _ = _addressed(path, "placement_layer")
    other, _ = _addressed(path, "placement_expert")
    forged(path, b"EAIB", struct.pack("<Q", offset), struct.pack("<Q", other))
    return path


@hostile("refused", sealed=False)
def chunk_over_the_metadata(path: Path) -> Path:
    """A chunk that is the head of the file."""
    offset, _ = _addressed(path, "demand_4x8")
    forged(path, b"EAIB", struct.pack("<Q", offset), struct.pack("<Q", 8))
    return path


@hostile("right", sealed=False)
def still_open_for_writing(path: Path) -> Path:
    """The mark of a writer that died: what is there is complete, or it is not."""
    data = bytearray(path.read_bytes())
    data[11] = 1
    data[44:48] = struct.pack("<I", mutations.lookup3(bytes(data[:44])))
    path.write_bytes(bytes(data))
    return path


@hostile("refused", sealed=False)
def older_objects(path: Path) -> Path:
    """Objects of the first HDF5 have no checksums, and trees that can be circles."""
    with h5py.File(path) as file, h5py.File(path.with_name("old.h5"), "w") as old:
        for name, value in file.attrs.items():
            old.attrs[name] = value
        for name in file:
            file.copy(name, old, name)
    return path.with_name("old.h5")


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


@in_merge("left out")
def segment_that_is_a_trace(path: Path) -> Path:
    """A trace where a segment should be."""
    folder = _told(path)
    path.rename(rank_folder(folder, 1) / "segment-000001.h5")
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
