"""A recomputed study as a result: its tables, and their errors on the first screen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsFloat

import numpy as np

from moetraffic.result import Result

Rows = list[dict[str, Any]]


def table(columns: str, rows: Iterable[Sequence[Any]]) -> Rows:
    """Name the cells of rows by ``columns``, separated by spaces."""
    names = columns.split()
    return [dict(zip(names, row, strict=True)) for row in rows]


def compared(
    published: float | None, ours: SupportsFloat, *digits: int
) -> tuple[float | None, float, float | None]:
    """Return a published value (None: there is none), the recomputed one, and its
    relative error; ``digits`` are decimal digits of the latter two (all if left out).
    """
    value = float(ours)
    error = None if published is None else value / published - 1
    if digits:
        value = round(value, digits[0])
        error = None if error is None else round(error, digits[1])
    return published, value, error


def rounded(values: Iterable[SupportsFloat], digits: int) -> tuple[float, ...]:
    """Round values to a number of decimal digits, for the cells of a row."""
    return tuple(round(float(value), digits) for value in values)


def relative_errors(rows: Rows) -> list[float]:
    """Return the absolute errors of computed values, relative to published ones."""
    return [
        abs(
            row["ours"] / row["published"] - 1 if (e := row.get("error")) is None else e
        )
        for row in rows
        if isinstance(row.get("published"), float | int) and row["published"]
    ]


def recomputed(
    name: str,
    source: str,
    tables: Mapping[str, tuple[str, Rows]],
    not_reproducible: Sequence[str],
) -> Result:
    """Make the result of a study: caption and rows by name of a table.

    Rows with ``published`` and ``ours`` are compared, those with ``same`` counted;
    ``not_reproducible`` is what does not follow from the publication, with the reason.
    """
    summary: Rows = []
    for title, (_, rows) in tables.items():
        errors = relative_errors(rows)
        line = {
            "table": title,
            "rows": len(rows),
            "published_values": len(errors) or None,
            "median_error": float(np.median(errors)) if errors else None,
            "largest_error": max(errors, default=None),
            "equal": sum(row["same"] for row in rows) if "same" in rows[0] else None,
        }
        summary.append(line)
    return Result(
        verb="studies",
        head=f"{name}: {source}",
        tables={"summary": summary, **{n: rows for n, (_, rows) in tables.items()}},
        screen=("summary",),
        captions={n: caption for n, (caption, _) in tables.items()}
        | {"summary": "errors are relative to published values; tables: --only NAME"},
        notes=tuple(f"not reproducible: {why}" for why in not_reproducible),
        data={"study": name, "not_reproducible": list(not_reproducible)},
    )
