"""Write and read trace files of format version 2 with h5py (``docs/format.md``).

One group per table.  Every dataset is shuffled, deflated and has a Fletcher-32
checksum, so that damage is an error; its axes have dimension scales.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import h5py
import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Bool, Int64
from moetraffic.errors import TraceError
from moetraffic.files import DeferredErrorFile, replacing, validate_output, write_errors

from .model import (
    CLOCK,
    PLACEMENT,
    ROUTING,
    RUN,
    DroppedForm,
    Group,
    Meta,
    Occurrences,
    Site,
    Source,
    Steps,
)
from .panel import ArrayPanel, DistinctRows, Panel, take

if TYPE_CHECKING:
    from .trace import Trace

T = TypeVar("T", bound="Trace")

KIND, VERSION = "moetraffic", 2
CHUNK_BYTES = 256 << 10
TEXT = ""
SITE: dict[str, str] = {
    **dict.fromkeys(("operation", "phase", "direction", "label", "dtype"), TEXT),
    "module": TEXT,
    **dict.fromkeys(("group", "layer", "stage", "experts", "token_sample"), "<i4"),
    **dict.fromkeys(("dropped", "source"), "|u1"),
    "row_bytes": "<i8",
    **dict.fromkeys(("micro_batch", "source_rank", "destination_rank"), "<i4"),
}
"""Columns of sites, and their types."""
CALL_COLUMNS = ("site", "iteration", "sequence", "matrix", "transposed")
STEP_VALUES = {"loss": "<f8", "tokens": "<i8", "start": "<i8", "end": "<i8"}
PANELS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "present": ("|u1", ("member",), ""),
    "issue": ("<i8", ("member",), "ns"),
    "start": ("<i8", ("member",), "ns"),
    "end": ("<i8", ("member",), "ns"),
    "demand": ("<i4", ("src", "expert"), ""),
    "dropped": ("<i4", ("src", "expert"), ""),
    "chosen": ("<i2", ("src", "token", "k"), ""),
    "wire": ("<i8", ("src", "dst"), "bytes"),
    "volume": ("<i8", ("member",), "bytes"),
}
"""Panels: type, axes after the first, and unit."""


class OtherVersionError(TraceError):
    """Raised for a file of the right kind whose format version is unsupported."""


def table_of(site: Site, groups: Sequence[Group]) -> str:
    """Return the table of a site's calls: ``call_W`` or ``routing_WxE``."""
    width = len(groups[site.group].ranks)
    if site.operation == ROUTING:
        return f"routing_{width}x{site.experts}"
    return f"call_{width}"


# ---- writing ------------------------------------------------------------------------


class Writer:
    """Writer of datasets into an HDF5 file, with the SHA-256 of all that it wrote."""

    def __init__(self, file: h5py.File, attributes: Mapping[str, Any]) -> None:
        self._file = file
        self.sum = hashlib.sha256()
        for name, value in attributes.items():
            self.attribute(name, value)

    def attribute(self, name: str, value: Any) -> None:
        """Write an attribute of the root group; text has a fixed size."""
        if isinstance(value, str):
            self._file.attrs[name] = np.bytes_(value.encode() or b"\0")
        else:
            kind = "<f8" if isinstance(value, float) else "<i8"
            self._file.attrs.create(name, value, dtype=kind)
        self.sum.update(f"{name}={value!r};".encode())

    def put(
        self,
        name: str,
        data: Any,
        dtype: str = "",
        axes: Sequence[str] = (),
        unit: str = "",
    ) -> None:
        """Write an array or a panel; ``axes`` name its dimensions.

        By default these are the table's rows, and those of the panel.  A dimension
        scale of each name, with the numbers 0, 1 ..., is in the group.
        """
        if isinstance(data, list | tuple) and not dtype:
            data, dtype = _as_text(data)
        if not hasattr(data, "read"):
            data = ArrayPanel(np.asarray(data, dtype))
        table = name.partition("/")[0].partition("_")[0]
        column = name.rpartition("/")[2] if table in ("call", "routing") else ""
        made = _dataset(self._file, name, data.shape, dtype)
        step = made.chunks[0] * 16
        for start in range(0, data.shape[0], step):
            self._extend(made, data.read(start, min(start + step, len(made))), start)
        inner = axes[1:] or PANELS.get(column, ("", (), ""))[1]
        if table == "routing":
            inner = tuple("src" if axis == "member" else axis for axis in inner)
        self._scales(made, (axes[0] if axes else table, *inner), unit)

    def distinct(self, name: str, panel: Panel, rows: Int64) -> tuple[Int64, Bool]:
        """Write the distinct ones of some rows of a panel of bytes, each once.

        Returns for each row its number in the file, and whether it is transposed.
        """
        dtype, inner, unit = PANELS[name.rpartition("/")[2]]
        made = _dataset(self._file, name, (0, *panel.shape[1:]), dtype)
        known, count = DistinctRows(), 0
        numbers, transposed = np.zeros(len(rows), np.int64), np.zeros(len(rows), bool)
        step = made.chunks[0] * 16
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            numbers[part], transposed[part], new = known.add(take(panel, rows[part]))
            self._extend(made, new, count)
            count += len(new)
        self._scales(made, ("matrix" if len(inner) == 2 else "vector", *inner), unit)
        return numbers, transposed

    def _extend(self, made: h5py.Dataset, rows: npt.NDArray[Any], start: int) -> None:
        """Write rows from ``start`` on."""
        if not len(rows):
            return
        self.sum.update(np.ascontiguousarray(rows).view(np.uint8).data)
        if start + len(rows) > made.shape[0]:
            made.resize(start + len(rows), axis=0)
        made[start : start + len(rows)] = rows

    def _scales(self, made: h5py.Dataset, axes: Sequence[str], unit: str) -> None:
        self.sum.update(f"{made.name}{made.shape};".encode())
        for dimension, axis, length in zip(made.dims, axes, made.shape, strict=False):
            if axis not in made.parent:
                scale = _dataset(made.parent, axis, (length,), "<i4")
                scale[...] = np.arange(length)
                scale.make_scale(axis)
            dimension.attach_scale(made.parent[axis])
        if unit:
            made.attrs["units"] = np.bytes_(unit.encode())


def _dataset(
    group: h5py.Group, name: str, shape: tuple[int, ...], dtype: str
) -> h5py.Dataset:
    """Create a dataset, which can grow if it has no rows yet."""
    row = int(np.prod(shape[1:])) * np.dtype(dtype).itemsize
    rows = max(1, CHUNK_BYTES // max(1, row))
    inner = [max(1, length) for length in shape[1:]]
    if row > 4 * CHUNK_BYTES and len(inner) > 1:  # split a large matrix by source
        inner[0] = max(1, inner[0] * CHUNK_BYTES // row)
    return group.create_dataset(
        name,
        shape=shape,
        dtype=dtype,
        maxshape=shape if shape[0] else (None, *shape[1:]),
        chunks=(min(rows, shape[0]) or rows, *inner),
        shuffle=True,
        compression="gzip",
        compression_opts=1,
        fletcher32=True,
    )


def save(trace: Trace, path: Path, *, force: bool) -> None:
    """Write a trace to a file; see :meth:`Trace.save`."""
    validate_output(path, force=force, error=TraceError, overwrite="give force=True")
    attributes = {"format": KIND, "version": VERSION, **trace.meta.as_dict()}
    del attributes["nodes"]  # a table
    with (
        write_errors(path, error=TraceError),
        replacing(path) as temporary,
        DeferredErrorFile(temporary) as target,
    ):
        with h5py.File(target, "w", libver=("v110", "v110")) as file:
            writer = Writer(file, attributes)
            _write(writer, trace)
            writer.attribute("digest", writer.sum.hexdigest())
        target.settle()


def _write(writer: Writer, trace: Trace) -> None:
    writer.put("rank/node", trace.meta.nodes or ("",) * trace.meta.world)
    groups, sites, steps = trace.groups, trace.sites, trace.steps
    writer.put("group/kind", [g.kind for g in groups])
    writer.put("group/number", [g.number for g in groups], "<i4")
    writer.put("group/size", [len(g.ranks) for g in groups], "<i4")
    members = [rank for g in groups for rank in g.ranks]
    writer.put("group/member_rank", members, "<i4", ("group_member",))
    for name, kind in SITE.items():
        writer.put(f"site/{name}", [_site_value(s, name) for s in sites], kind)
    tables = {"placement": trace.placements, "clock": trace.clocks, "run": trace.runs}
    for table, rows in tables.items():
        for name in (rows.dtype.names or ()) if len(rows) else ():
            writer.put(f"{table}/{name}", rows[name], rows.dtype[name].str)
    writer.put("step/iteration", steps.iteration, "<i8")
    writer.put("step/kind", steps.kind)
    writer.put("step/source", steps.source, "|u1")
    for name, kind in STEP_VALUES.items():
        unit = "ns" if name in ("start", "end") else ""
        writer.put(f"step/{name}", getattr(steps, name), kind, ("step", "rank"), unit)
    for number, table in enumerate(trace.tables):
        _write_calls(writer, trace, table, np.flatnonzero(trace.table == number))


def _site_value(site: Site, column: str) -> Any:
    """Return the value of a column of sites."""
    source, destination = site.peers
    others = {"micro_batch": site.slot, "source_rank": source}
    others["destination_rank"] = destination
    return others[column] if column in others else getattr(site, column)


def _write_calls(writer: Writer, trace: Trace, table: str, calls: Int64) -> None:
    """Write the table of all calls of one shape."""
    of = trace.occurrences[calls]
    layer, slot = (
        np.array([getattr(s, name) for s in trace.sites], np.int64)[of.site]
        for name in ("layer", "slot")
    )
    writer.put(f"{table}/site", of.site, "<i4")
    writer.put(f"{table}/layer", layer, "<i4")
    writer.put(f"{table}/micro_batch", slot, "<i4")
    writer.put(f"{table}/iteration", of.iteration, "<i8")
    for name, panel in sorted(trace.panels.items()):
        own, _, column = name.partition("/")
        if own == table and column not in ("wire", "volume"):
            kind, _, unit = PANELS[column]
            writer.put(name, panel, kind, unit=unit)
    if table.startswith("call"):
        number = np.full(len(of), -1, np.int64)
        transposed = np.zeros(len(of), bool)
        square = trace.square[of.site]
        for column, mask in (("wire", square), ("volume", ~square)):
            calls_of = np.flatnonzero(mask & (of.matrix >= 0))
            rows, which = np.unique(of.matrix[calls_of], return_inverse=True)
            if len(rows):
                panel = trace.panels[f"{table}/{column}"]
                row, turned = writer.distinct(f"{table}/{column}", panel, rows)
                number[calls_of] = row[which]
                transposed[calls_of] = of.transposed[calls_of] ^ turned[which]
        writer.put(f"{table}/sequence", of.sequence, "<i8")
        writer.put(f"{table}/bytes_row", number, "<i4")
        writer.put(f"{table}/transposed", transposed, "|u1")


def _as_text(values: Sequence[str]) -> tuple[npt.NDArray[Any], str]:
    """Encode strings as fixed-width UTF-8, unencodable characters as "?"."""
    raw = [v.encode(errors="replace") for v in values]
    width = max([1, *map(len, raw)])
    return np.array(raw, f"S{width}"), f"S{width}"


# ---- reading ------------------------------------------------------------------------


class TraceFile:
    """Open HDF5 file of one kind and version; errors name the file and dataset."""

    def __init__(self, path: Path, kind: str = KIND, version: int = VERSION) -> None:
        self.path = path
        self._file: h5py.File | None = None
        if not os.path.exists(path):
            raise TraceError(f"there is no file {path}: check the path")
        if not os.path.isfile(path):
            raise TraceError(f"{path} is not a file: name a trace file")
        with self.reading("its structure"):
            with path.open("rb") as raw:
                start = raw.read(8)
            if start != b"\x89HDF\r\n\x1a\n":
                raise TraceError(
                    f"{path} is not an HDF5 file: name a trace that moetraffic wrote"
                )
            self._file = h5py.File(path, "r")
            self.attributes = {k: _plain(v) for k, v in self._file.attrs.items()}
        stated = self.attributes.get("version", self.attributes.get("format_version"))
        if self.attributes.get("format") != kind:
            self.close()
            raise TraceError(
                f"{path} is an HDF5 file of another kind, not {kind}: name a file that "
                "moetraffic wrote"
            )
        if stated != version:
            self.close()
            raise OtherVersionError(
                f"{path} has format version {stated}, and this moetraffic reads "
                f"version {version}: use the release that wrote it"
            )

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def digest(self) -> str:
        """SHA-256 of all that was written: the same for equal contents."""
        return str(self.attributes.get("digest", ""))

    def close(self) -> None:
        """Close the file; its panels cannot be read afterwards."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """Raise what prevents reading as an error that names the file and ``what``."""
        try:
            yield
        except (TraceError, MemoryError):
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise TraceError(
                f"{self.path} is damaged or no trace: {what} cannot be read "
                f"({reason}); take a copy that is whole"
            ) from None

    def file(self) -> h5py.File:
        """Return the open HDF5 file."""
        if self._file is None:
            raise TraceError(
                f"{self.path} is closed: read it before the end of its with block, or "
                "open it again"
            )
        return self._file

    def names(self, group: str = "/") -> list[str]:
        """List the members of a group; none if there is no such group."""
        with self.reading(f"the list of {group}"):
            return list(self.file()[group]) if group in self.file() else []

    def column(self, name: str, dtype: str) -> npt.NDArray[Any]:
        """Read a whole dataset of the given type."""
        with self.reading(f"/{name}"):
            data = self.file()[name]
            if data.dtype != np.dtype(dtype):
                raise ValueError(f"its type is {data.dtype}, not {dtype}")
            return np.asarray(data[()])

    def text(self, name: str) -> list[str]:
        """Read a text column."""
        with self.reading(f"/{name}"):
            raw = self.file()[name][()].tolist()
            return [sys.intern(each.decode()) for each in raw]

    def panel(self, name: str, dtype: str, shape: tuple[int | None, ...]) -> Panel:
        """Open a panel whose axes have the given lengths (None: any)."""
        with self.reading(f"/{name}"):
            data = self.file()[name]
            lengths = zip(shape, data.shape, strict=True)
            if not all(n in (None, m) for n, m in lengths) or not np.can_cast(
                data.dtype, dtype
            ):
                raise ValueError(
                    f"it is {data.dtype} {data.shape}, not {dtype} {shape}"
                )
            return FilePanel(self, name, data, np.dtype(dtype))


class FilePanel:
    """Panel in a file."""

    def __init__(
        self, file: TraceFile, name: str, data: h5py.Dataset, dtype: np.dtype[Any]
    ) -> None:
        self._file, self._name, self._data, self.dtype = file, name, data, dtype
        self.shape: tuple[int, ...] = data.shape

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Read rows of the half-open range [start, stop)."""
        self._file.file()
        with self._file.reading(f"/{self._name}"):
            return np.asarray(self._data[start:stop], self.dtype)


def load(path: Path, kind: type[T]) -> T:
    """Read a trace from a file; see :meth:`Trace.open`."""
    file = TraceFile(path)
    try:
        with file.reading("a table"):
            return _read(file, kind)
    except BaseException:
        file.close()
        raise


def _read(file: TraceFile, kind: type[T]) -> T:
    names = {field.name: field.type for field in fields(Meta)}
    about = {name: file.attributes[name] for name in names if name in file.attributes}
    about |= {n: bool(about[n]) for n, t in names.items() if t == "bool" and n in about}
    nodes = file.text("rank/node")
    panels: dict[str, Panel] = {}
    parts = [dict.fromkeys(CALL_COLUMNS, np.zeros(0, np.int64))]
    for table in file.names():
        if table.startswith(("call_", "routing_")):
            columns, own = _read_calls(file, table)
            parts.append(columns)
            panels |= own
    joined = {name: np.concatenate([p[name] for p in parts]) for name in CALL_COLUMNS}
    order = np.lexsort((joined["iteration"], joined["site"]))
    joined = {name: column[order] for name, column in joined.items()}
    return kind(
        meta=Meta(**about, nodes=tuple(nodes) if any(nodes) else ()),
        groups=_read_groups(file),
        sites=_read_sites(file),
        occurrences=Occurrences(
            iteration=joined["iteration"],
            site=joined["site"].astype(np.int32),
            sequence=joined["sequence"],
            matrix=joined["matrix"],
            transposed=joined["transposed"].astype(bool),
        ),
        panels=panels,
        steps=Steps(
            iteration=file.column("step/iteration", "<i8"),
            kind=tuple(file.text("step/kind")),
            source=file.column("step/source", "|u1"),
            **{n: file.column(f"step/{n}", k) for n, k in STEP_VALUES.items()},
        ),
        placements=_read_table(file, "placement", PLACEMENT),
        clocks=_read_table(file, "clock", CLOCK),
        runs=_read_table(file, "run", RUN),
        file=file,
    )


def _read_calls(
    file: TraceFile, table: str
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Panel]]:
    """Read the columns of a table of calls, and open its panels."""
    kind, _, shape = table.partition("_")
    lengths = [int(part) for part in shape.split("x")]
    names = file.names(table)
    site = file.column(f"{table}/site", "<i4")
    columns: dict[str, npt.NDArray[Any]] = {
        "site": site,
        "iteration": file.column(f"{table}/iteration", "<i8"),
        "sequence": np.full(len(site), -1),
        "matrix": np.full(len(site), -1),
        "transposed": np.zeros(len(site), np.uint8),
    }
    if kind == "call":
        columns["sequence"] = file.column(f"{table}/sequence", "<i8")
        columns["matrix"] = file.column(f"{table}/bytes_row", "<i4")
        columns["transposed"] = file.column(f"{table}/transposed", "|u1")
    length = {"member": lengths[0], "src": lengths[0], "dst": lengths[0]}
    length["expert"] = lengths[-1]
    panels = {}
    for column in names:
        if column in PANELS:
            dtype, inner, _ = PANELS[column]
            rows = None if column in ("wire", "volume") else len(site)
            shaped = (rows, *(length.get(axis) for axis in inner))
            panels[f"{table}/{column}"] = file.panel(f"{table}/{column}", dtype, shaped)
    return columns, panels


def _read_groups(file: TraceFile) -> list[Group]:
    ends = np.cumsum(file.column("group/size", "<i4"))
    members = np.split(file.column("group/member_rank", "<i4"), ends[:-1])
    numbers = file.column("group/number", "<i4").tolist()
    rows = zip(file.text("group/kind"), members, numbers, strict=False)
    return [
        Group(kind=kind, ranks=tuple(ranks.tolist()), number=number)
        for kind, ranks, number in rows
    ]


def _read_sites(file: TraceFile) -> list[Site]:
    columns: dict[str, list[Any]] = {
        name: file.column(f"site/{name}", kind).tolist()
        if kind
        else file.text(f"site/{name}")
        for name, kind in SITE.items()
    }
    sites = []
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        peers = row.pop("source_rank"), row.pop("destination_rank")
        slot = row.pop("micro_batch")
        row |= {"dropped": DroppedForm(row["dropped"]), "source": Source(row["source"])}
        sites.append(Site(**row, slot=slot, peers=peers))
    return sites


def _read_table(file: TraceFile, name: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Read a structured array from one column per field; empty if it is absent."""
    if not file.names(name):
        return np.zeros(0, dtype)
    fields_of = dtype.names or ()
    columns = [file.column(f"{name}/{f}", dtype[f].str) for f in fields_of]
    return np.rec.fromarrays(columns, dtype=dtype).view(np.ndarray)


def _plain(value: Any) -> Any:
    """Convert an attribute to str, int or float."""
    if isinstance(value, bytes | np.bytes_):
        return value.decode().rstrip("\0")
    return value.item() if isinstance(value, np.generic | np.ndarray) else value
