"""A study computed again: its tables as text and JSON, and a picture a table.

A table is drawn where it has a column ``published`` and one or more that begin with
``ours``: as curves where its first column is a number, as points around the diagonal
where it has many rows, else row by row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich import box
from rich.console import Group
from rich.table import Table as Sheet
from rich.text import Text

from moetraffic.studies import Study, Table

from .figures import LINE_COLORS, headline

MANY = 16
"""Rows beyond which values are drawn around the diagonal."""


def as_dict(study: Study) -> dict[str, Any]:
    """The study for JSON: its tables, and what is not reproducible."""
    return asdict(study)


def text(study: Study) -> Group:
    """The study for a terminal."""
    parts: list[Any] = [Text(f"{study.name}: {study.title}", style="bold")]
    parts += [Text(study.source, style="dim"), ""]
    for table in study.tables:
        parts += [sheet(table), ""]
    for head, lines in (
        ("not reproducible", study.not_reproducible),
        ("notes", study.notes),
    ):
        if lines:
            parts.append(Text(head, style="bold"))
            parts += [Text(f"- {line}") for line in lines]
            parts.append("")
    return Group(*parts)


def sheet(table: Table) -> Sheet:
    """One table for a terminal."""
    title = f"{table.title} [{table.unit}]" if table.unit else table.title
    made = Sheet(
        title=Text(title, style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for number, name in enumerate(table.columns):
        cells = [row[number] for row in table.rows]
        figures = any(_number(cell) is not None for cell in cells)
        # as text: [us] would be taken for markup
        head = Text(name.strip())
        made.add_column(head, justify="right" if figures else "left")
    for row in table.rows:
        made.add_row(
            *(
                Text(written(value, name))
                for value, name in zip(row, table.columns, strict=True)
            )
        )
    return made


def written(value: object, column: str = "") -> str:
    """A cell: four digits, blank for None, a sign for errors.

    Examples
    --------
    >>> written(0.01172), written(None), written(1234567), written(-0.0223, "error")
    ('0.01172', '', '1234567', '-0.0223')
    >>> written(0.02, "error")
    '+0.02'
    """
    number = _number(value)
    if value is None:
        return ""
    if number is None or isinstance(value, int):
        return str(value)
    if not np.isfinite(number):
        return str(number)
    plus = "+" if column.strip().startswith(("error", "residual")) else ""
    if number == 0:
        return "0"
    digits = f"{number:{plus}.4g}"
    return f"{number:{plus}.0f}" if "e+" in digits else digits


def drawable(table: Table) -> bool:
    """Whether something of it was published and computed too."""
    return bool(_pairs(table))


def figure(study: Study, table: Table) -> Figure:
    """Published beside ours.

    Parameters
    ----------
    study
        Whose table it is.
    table
        One that is :func:`drawable`.
    """
    pairs = _pairs(table)
    rows = {number for number, *_ in pairs}
    axis = f"[{table.unit}]" if table.unit else ""
    if _curves(table):
        fig = Figure(figsize=(9.0, 4.6), layout="constrained")
        _draw_curves(fig.subplots(), table, pairs, axis)
    elif len(rows) > MANY:
        fig = Figure(figsize=(6.6, 6.0), layout="constrained")
        _draw_diagonal(fig.subplots(), table, pairs, axis)
    else:
        fig = Figure(figsize=(9.0, 1.4 + 0.34 * len(rows)), layout="constrained")
        _draw_rows(fig.subplots(), table, pairs, axis)
    for axes in fig.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#E5E5E5", linewidth=0.6)
        axes.set_axisbelow(True)
    headline(fig, table.title, f"{study.title}; published: {study.source}")
    return fig


Pair = tuple[int, int, float, float]
"""Row, column of ours, published value, our value."""


def _pairs(table: Table) -> list[Pair]:
    names = [name.strip() for name in table.columns]
    published = [n for n, name in enumerate(names) if name.startswith("published")]
    ours = [n for n, name in enumerate(names) if name.startswith("ours")]
    found = []
    for number, row in enumerate(table.rows):
        for at in published[:1]:
            told = _number(row[at])
            for column in ours:
                value = _number(row[column])
                if told is not None and value is not None:
                    found.append((number, column, told, value))
    return found


def _curves(table: Table) -> bool:
    first = [_number(row[0]) for row in table.rows]
    return len(set(first)) > 3 and None not in first


def _draw_curves(axes: Axes, table: Table, pairs: Sequence[Pair], axis: str) -> None:
    kinds = _kinds(table, skip=1)
    for number, kind in enumerate(dict.fromkeys(kinds)):
        color = LINE_COLORS[number % len(LINE_COLORS)]
        mine = [p for p in pairs if kinds[p[0]] == kind]
        at = [_number(table.rows[p[0]][0]) for p in mine]
        name = f", {kind}" if kind else ""
        axes.plot(
            at,  # type: ignore[arg-type]
            [p[2] for p in mine],
            marker="o",
            linestyle="none",
            color=color,
            label=f"published{name}",
        )
        axes.plot(
            at,  # type: ignore[arg-type]
            [p[3] for p in mine],
            color=color,
            linewidth=1.2,
            label=f"{table.columns[mine[0][1]]}{name}" if mine else None,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(table.columns[0])
    axes.set_ylabel(axis)
    axes.legend(frameon=False, fontsize=9)


def _draw_diagonal(axes: Axes, table: Table, pairs: Sequence[Pair], axis: str) -> None:
    kinds = _kinds(table, skip=0)
    columns = list(dict.fromkeys(p[1] for p in pairs))
    for number, kind in enumerate(dict.fromkeys(kinds)):
        for marker, column in zip("ox^", columns, strict=False):
            mine = [p for p in pairs if kinds[p[0]] == kind and p[1] == column]
            name = table.columns[column].strip()
            axes.plot(
                [p[2] for p in mine],
                [p[3] for p in mine],
                marker=marker,
                linestyle="none",
                fillstyle="none",
                color=LINE_COLORS[number % len(LINE_COLORS)],
                label=f"{kind}: {name}" if kind else name,
            )
    every = [v for p in pairs for v in p[2:]]
    ends = [min(every), max(every)]
    axes.plot(ends, ends, color="#8C8C8C", linewidth=0.8, zorder=0)
    axes.set_xlabel(f"published {axis}")
    axes.set_ylabel(f"ours {axis}")
    axes.legend(frameon=False, fontsize=8)


def _draw_rows(axes: Axes, table: Table, pairs: Sequence[Pair], axis: str) -> None:
    rows = list(dict.fromkeys(p[0] for p in pairs))
    columns = list(dict.fromkeys(p[1] for p in pairs))
    place = {row: n for n, row in enumerate(rows)}
    axes.plot(
        [next(p[2] for p in pairs if p[0] == row) for row in rows],
        range(len(rows)),
        marker="D",
        linestyle="none",
        color="black",
        label="published",
    )
    for number, column in enumerate(columns):
        mine = [p for p in pairs if p[1] == column]
        axes.plot(
            [p[3] for p in mine],
            [place[p[0]] for p in mine],
            marker="o",
            linestyle="none",
            markersize=9,
            fillstyle="none",
            color=LINE_COLORS[number % len(LINE_COLORS)],
            label=table.columns[column].strip(),
        )
    at = min(p[1] for p in pairs)
    head = [
        n for n in range(at) if not table.columns[n].strip().startswith("published")
    ]
    axes.set_yticks(
        range(len(rows)),
        [", ".join(written(table.rows[row][n]) for n in head) for row in rows],
    )
    axes.set_ylim(len(rows) - 0.5, -0.5)
    every = [v for p in pairs for v in p[2:]]
    axes.set_xlim(min(0.0, *every), 1.04 * max(every))
    axes.set_xlabel(axis)
    axes.figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)


def _kinds(table: Table, *, skip: int) -> list[str]:
    """A word a row to color it by: of the leading columns, that of fewest kinds."""
    best: list[str] = [""] * len(table.rows)
    for number, name in enumerate(table.columns[skip:], skip):
        if name.strip().startswith(("published", "ours")):
            break
        words = [written(row[number]) for row in table.rows]
        if 1 < len(set(words)) <= len(LINE_COLORS) and (
            not any(best) or len(set(words)) < len(set(best))
        ):
            best = words
    return best


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        return None
    return float(value)


def slug(title: str) -> str:
    """A title as a part of a file's name.

    Examples
    --------
    >>> slug("All-reduce: each size")
    'all-reduce-each-size'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60]
