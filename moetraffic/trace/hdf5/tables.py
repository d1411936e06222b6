"""Store tables of traces and segments: metadata, groups, sites, structured arrays.

Text is UTF-8 of fixed width; lists of lists are a flat column and a column of lengths.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.trace.model import DroppedForm, Group, Meta, Site, Source, WireForm

from .container import MOST_TEXT, Container
from .image import Image

TEXT = "S"
SITE_COLUMNS = {  # column: (field of Site, type)
    "site_group": ("group", "<i4"),
    "site_operation": ("operation", TEXT),
    "site_phase": ("phase", TEXT),
    "site_layer": ("layer", "<i4"),
    "site_direction": ("direction", TEXT),
    "site_slot": ("slot", "<i4"),
    "site_dtype": ("dtype", TEXT),
    "site_row_bytes": ("row_bytes", "<i8"),
    "site_label": ("label", TEXT),
    "site_experts": ("experts", "<i4"),
    "site_wire": ("wire", "<i4"),
    "site_wire_checked": ("wire_checked", "<i8"),
    "site_routing": ("routing", "<i4"),
    "site_dropped": ("dropped", "<i4"),
}
SITE_SOURCES = ("layer_source", "phase_source", "direction_source")
"""Fields of Site that are columns from format 1.1 on."""

ADDED = {"inferred", "every", "data_seed", "repeats_from"}
"""Root attributes that files of the first release lack."""


def meta_attributes(meta: Meta) -> dict[str, Any]:
    """Convert metadata to root attributes; node names are a separate column.

    What was added with a number is an attribute only where it is set.
    """
    optional = ("data_seed", "repeats_from")
    left_out = {"nodes", *(name for name in optional if getattr(meta, name) < 0)}
    return {name: v for name, v in meta.as_dict().items() if name not in left_out}


def write_groups(image: Image, groups: Sequence[Group]) -> None:
    """Write process groups; the ranks of all groups form one flat column."""
    image.column("group", np.arange(len(groups)), "<i4")
    image.column("group_kind", *as_text([g.kind for g in groups]), axis="group")
    image.column("group_size", [len(g.ranks) for g in groups], "<i4", axis="group")
    members = [rank for g in groups for rank in g.ranks]
    image.column("group_member", np.arange(len(members)), "<i4")
    image.column("group_rank", members, "<i4", axis="group_member", about="world rank")


def write_sites(image: Image, sites: Sequence[Site]) -> None:
    """Write call sites; the constant bytes of all sites form one flat column."""
    image.column("site", np.arange(len(sites)), "<i4")
    before = [s.dropped == DroppedForm.UNCOUNTED for s in sites]
    for name, (attribute, dtype) in SITE_COLUMNS.items():
        values = [getattr(s, attribute) for s in sites]
        if name == "site_dropped":  # readers before format 1.5 know three forms
            values = [
                DroppedForm.NONE if b else v
                for b, v in zip(before, values, strict=True)
            ]
        data, kind = as_text(values) if dtype == TEXT else (values, dtype)
        image.column(name, data, kind, axis="site")
    for attribute in SITE_SOURCES:
        values = [getattr(s, attribute) for s in sites]
        image.column(f"site_{attribute}", values, "|u1", axis="site")
    image.column("site_choices", [s.choices for s in sites], "<i4", axis="site")
    if any(before):
        image.column("site_dropped_before", before, "|u1", axis="site")
    for at, name in enumerate(("site_source", "site_destination")):
        image.column(name, [s.peers[at] for s in sites], "<i4", axis="site")
    image.column("site_constants", [len(s.constant) for s in sites], "<i4", axis="site")
    values = [v for s in sites for v in s.constant]
    image.column("constant", np.arange(len(values)), "<i8")
    image.column("constant_bytes", values, "<i8", axis="constant", unit="bytes")


def write_table(image: Image, name: str, table: Any, dtype: np.dtype[Any]) -> None:
    """Write a structured array, or a mapping of arrays, as one column per field."""
    names = dtype.names or ()
    image.column(name, np.arange(len(table[names[0]])), "<i8")
    for field in names:
        image.column(f"{name}_{field}", table[field], dtype[field].str, axis=name)


def as_text(values: Sequence[str]) -> tuple[Any, str]:
    """Encode strings as fixed-width UTF-8 bytes, and return their type."""
    # of limited width, in whole characters; unencodable ones become "?"
    cut = [v.encode(errors="replace")[:MOST_TEXT] for v in values]
    raw = [v.decode(errors="ignore").encode() for v in cut]
    width = max([1, *map(len, raw)])
    return np.array(raw, f"S{width}"), f"S{width}"


def read_meta(container: Container) -> Meta:
    """Read metadata written by :func:`meta_attributes`, without the node names."""
    found: dict[str, Any] = {}
    for field in fields(Meta):
        if field.name == "nodes":
            continue
        added = field.default if field.name in ADDED else None
        value = container.attributes.get(field.name, added)
        want = {"str": str, "int": int, "bool": int, "float": float}[str(field.type)]
        if not isinstance(value, want):
            raise container.damaged(f"attribute {field.name} is {value!r}")
        found[field.name] = bool(value) if field.type == "bool" else value
    return Meta(**found)


def read_groups(container: Container) -> list[Group]:
    """Read the process groups."""
    kinds = read_strings(container, "group_kind")
    sizes = container.column("group_size", "<i4", len(kinds))
    parts = split_column(container, container.column("group_rank", "<i4"), sizes)
    return [
        Group(kind=kind, ranks=ranks) for kind, ranks in zip(kinds, parts, strict=True)
    ]


def read_sites(container: Container) -> list[Site]:
    """Read the call sites."""
    count = len(container.column("site", "<i4"))
    columns: dict[str, list[Any]] = {}
    for name, (attribute, dtype) in SITE_COLUMNS.items():
        if dtype == TEXT:
            columns[attribute] = read_strings(container, name, count)
        else:
            columns[attribute] = container.column(name, dtype, count).tolist()
    columns["wire"] = [WireForm(v) for v in columns["wire"]]
    columns["dropped"] = [DroppedForm(v) for v in columns["dropped"]]
    if container.has("site_dropped_before"):
        before = container.column("site_dropped_before", "|u1", count)
        for number in np.flatnonzero(before).tolist():
            columns["dropped"][number] = DroppedForm.UNCOUNTED
    for attribute in SITE_SOURCES:
        columns[attribute] = read_sources(container, f"site_{attribute}", count)
    columns["choices"] = [0] * count
    if container.has("site_choices"):
        columns["choices"] = container.column("site_choices", "<i4", count).tolist()
    columns["peers"] = list(
        zip(
            container.column("site_source", "<i4", count).tolist(),
            container.column("site_destination", "<i4", count).tolist(),
            strict=True,
        )
    )
    columns["constant"] = list(
        split_column(
            container,
            container.column("constant_bytes", "<i8"),
            container.column("site_constants", "<i4", count),
        )
    )
    names = list(columns)
    return [
        Site(**dict(zip(names, values, strict=True)))
        for values in zip(*columns.values(), strict=True)
    ]


def read_sources(container: Container, name: str, count: int) -> list[Source]:
    """Read a column of sources; UNKNOWN where the file does not have it."""
    if not container.has(name):
        return [Source.UNKNOWN] * count
    return [Source(v) for v in container.column(name, "|u1", count).tolist()]


def read_columns(
    container: Container,
    name: str,
    dtype: np.dtype[Any],
    optional: Sequence[str] = (),
) -> dict[str, npt.NDArray[Any]]:
    """Read the columns of a table by field, as :func:`write_table` wrote them.

    Fields that are ``optional`` are left out if the file does not have them.
    """
    count = len(container.column(name, "<i8"))
    return {
        field: container.column(f"{name}_{field}", dtype[field].str, count)
        for field in dtype.names or ()
        if field not in optional or container.has(f"{name}_{field}")
    }


def read_table(
    container: Container,
    name: str,
    dtype: np.dtype[Any],
    optional: Sequence[str] = (),
) -> Any:
    """Read a structured array from one column per field; absent ones are zero."""
    columns = read_columns(container, name, dtype, optional)
    table = np.zeros(len(next(iter(columns.values()))), dtype)
    for field, column in columns.items():
        table[field] = column
    return table


def read_strings(
    container: Container, name: str, count: int | None = None
) -> list[str]:
    """Read a text column as a list of strings."""
    # most rows are equal: keep each distinct text in memory once
    return [
        sys.intern(raw.decode()) for raw in container.column(name, TEXT, count).tolist()
    ]


def split_column(
    container: Container, flat: Any, lengths: Any
) -> Iterator[tuple[int, ...]]:
    """Split a flat column into consecutive parts of the given lengths."""
    if len(lengths) and lengths.min() < 0:
        raise container.damaged("a length is negative")
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    if (ends[-1] if ends else 0) != len(flat):
        raise container.damaged("lengths do not add up to what is there")
    return (tuple(flat[a:b].tolist()) for a, b in pairwise([0, *ends]))
