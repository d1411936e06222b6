"""Report a reproduced study: its tables, and charts of published and computed values.

A table is drawn if it has a column ``published`` and one or more that begin with
``ours``: as curves if its first column is numeric, as points around the diagonal if it
has many rows, else row by row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from moetraffic.report.chart import LINE_COLORS, Axis, Chart, Panel, Series
from moetraffic.studies import Study
from moetraffic.tables import Table, written

MANY = 16
"""Number of rows above which values are drawn around the diagonal."""


def as_dict(study: Study) -> dict[str, Any]:
    """Convert a reproduced study to plain data: its tables and remarks."""
    return {**vars(study), "tables": [table.as_dict() for table in study.tables]}


MOST_LINES = 5  # tables in the summary


def sentences(study: Study) -> list[str]:
    """Summarize a study: its source, and the errors of the values of each table."""
    lines = []
    for table in study.tables:
        errors = _relative_errors(table)
        if errors:
            lines.append(
                f"{table.title}: median error {np.median(errors):.1%}, largest "
                f"{max(errors):.1%}, of {len(errors)} published values."
            )
        elif "same" in table.columns:
            at = list(table.columns).index("same")
            number = sum(bool(row[at]) for row in table.rows)
            lines.append(
                f"{table.title}: {number} of {len(table.rows)} rows are equal."
            )
    rest = len(lines) - MOST_LINES
    lines[MOST_LINES:] = [f"Further tables with published values: {rest}."] * (rest > 0)
    if study.not_reproducible:
        number = len(study.not_reproducible)
        lines.append(f"Results not reproducible: {number} (reasons: --tables).")
    return [f"{study.name}: {study.title}; {study.source}.", *lines]


def _relative_errors(table: Table) -> list[float]:
    """Return absolute errors over published values: those of the table if it has any.

    They are of values that are not rounded.
    """
    names = [name.strip() for name in table.columns]
    pairs = _pairs(table)
    if pairs and "error" in names:
        own = [_number(row[names.index("error")]) for row in table.rows]
        return [abs(one) for one in own if one is not None]
    return [abs(ours / theirs - 1) for *_, theirs, ours in pairs if theirs]


def tables(study: Study) -> list[Table]:
    """List a study's tables, with remarks last; relative errors in percent."""
    forms = {"error": "+.1%", "difference": "+.4g", "residual": "+.1%"}
    remarks = [
        *(f"not reproducible: {line}" for line in study.not_reproducible),
        *(f"note: {line}" for line in study.notes),
    ]
    return [
        *(
            replace(
                table,
                columns={
                    n: forms.get(n.strip().split(",")[0], "") for n in table.columns
                },
            )
            for table in study.tables
        ),
        *([Table(rows=[], notes=remarks)] if remarks else []),
    ]


def drawable(table: Table) -> bool:
    """Return whether a table has both published and computed values."""
    return bool(_pairs(table))


Pair = tuple[int, str, float, float]
"""Row, column of the computed value, published value, computed value."""


def _pairs(table: Table) -> list[Pair]:
    names = [name.strip() for name in table.columns]
    published = [n for n, name in enumerate(names) if name.startswith("published")]
    ours = [n for n, name in enumerate(names) if name.startswith("ours")]
    return [
        (number, names[column], theirs, value)
        for number, row in enumerate(table.rows)
        for at in published[:1]
        for column in ours
        if (theirs := _number(row[at])) is not None
        and (value := _number(row[column])) is not None
    ]


def figure(study: Study, table: Table) -> Chart:
    """Draw the published and computed values of a :func:`drawable` table of a study."""
    pairs = _pairs(table)
    rows = list(dict.fromkeys(pair[0] for pair in pairs))
    first = {_number(row[0]) for row in table.rows}
    unit = f"[{table.unit}]" if table.unit else ""
    if len(first) > 3 and None not in first:
        panel = _curves(table, pairs, unit)
    elif len(rows) > MANY:
        panel = _diagonal(table, pairs, unit)
    else:
        panel = _rows(table, pairs, rows, unit)
    return Chart(
        title=table.title,
        source=f"{study.title}; published: {study.source}",
        panels=(panel,),
        height=160 + 34 * len(rows) if panel.y.names else 500,
    )


def _by_kind(
    table: Table, pairs: Sequence[Pair], *, skip: int
) -> list[tuple[str, str, list[Pair]]]:
    """Group value pairs by kind of row and by column, with a color per kind."""
    kinds = _kinds(table, skip=skip)
    return [
        (kind, color, mine)
        for number, kind in enumerate(dict.fromkeys(kinds))
        for color in LINE_COLORS[number % len(LINE_COLORS) :][:1]
        for column in dict.fromkeys(pair[1] for pair in pairs)
        if (mine := [p for p in pairs if kinds[p[0]] == kind and p[1] == column])
    ]


def _curves(table: Table, pairs: Sequence[Pair], unit: str) -> Panel:
    series = []
    for kind, color, mine in _by_kind(table, pairs, skip=1):
        at = [table.rows[pair[0]][0] for pair in mine]
        name = f", {kind}" if kind else ""
        theirs, ours = [p[2] for p in mine], [p[3] for p in mine]
        series += [
            Series(kind="points", x=at, y=theirs, name=f"published{name}", color=color),
            Series(x=at, y=ours, name=f"{mine[0][1]}{name}", color=color, width=1.2),
        ]
    x = Axis(label=next(iter(table.columns)), log=True)
    return Panel(x=x, y=Axis(label=unit, log=True), series=tuple(series))


def _diagonal(table: Table, pairs: Sequence[Pair], unit: str) -> Panel:
    series = [
        Series(
            kind="points",
            x=[pair[2] for pair in mine],
            y=[pair[3] for pair in mine],
            name=f"{kind}: {mine[0][1]}" if kind else mine[0][1],
            color=color,
            opacity=0.7,
        )
        for kind, color, mine in _by_kind(table, pairs, skip=0)
    ]
    every = [value for pair in pairs for value in pair[2:]]
    ends = [min(every), max(every)]
    equal = Series(x=ends, y=ends, name="equal", color="#8C8C8C", width=0.8)
    return Panel(
        x=Axis(label=f"published {unit}"),
        y=Axis(label=f"ours {unit}"),
        series=(equal, *series),
    )


def _rows(table: Table, pairs: Sequence[Pair], rows: Sequence[int], unit: str) -> Panel:
    names = [name.strip() for name in table.columns]
    head = [
        at
        for at in range(names.index(pairs[0][1]))
        if not names[at].startswith(("published", "ours"))
    ]
    published = {pair[0]: pair[2] for pair in pairs}
    series = [
        Series(
            kind="points",
            x=[published[row] for row in rows],
            y=list(range(len(rows))),
            name="published",
            color="#000000",
            symbol="diamond",
        )
    ]
    for column, color in zip(
        dict.fromkeys(pair[1] for pair in pairs), LINE_COLORS, strict=False
    ):
        mine = [pair for pair in pairs if pair[1] == column]
        series.append(
            Series(
                kind="points",
                x=[pair[3] for pair in mine],
                y=[rows.index(pair[0]) for pair in mine],
                name=column,
                color=color,
                opacity=0.6,
                size=11,
            )
        )
    return Panel(
        x=Axis(label=unit, from_zero=True),
        y=Axis(
            names=tuple(
                ", ".join(written(table.rows[row][n]) for n in head) for row in rows
            ),
            reverse=True,
        ),
        series=tuple(series),
    )


def _kinds(table: Table, *, skip: int) -> list[str]:
    """Return the text by which each row is colored: the column with fewest values."""
    best: list[str] = [""] * len(table.rows)
    for number, name in enumerate(list(table.columns)[skip:], skip):
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
    """Convert a title to a part of a file name.

    Examples
    --------
    >>> slug("All-reduce: each size")
    'all-reduce-each-size'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60]
