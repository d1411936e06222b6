"""Published tables: CSV files whose first lines, after a ``#``, say where from."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, kw_only=True)
class Published:
    """A table as somebody published it; what has no value is an empty text."""

    name: str
    source: tuple[str, ...]  # the comment lines on top of the file
    columns: tuple[str, ...]
    rows: tuple[Mapping[str, str], ...]

    def __iter__(self) -> Iterator[Mapping[str, str]]:
        """Go through the rows."""
        return iter(self.rows)

    def value(self, key: str) -> float:
        """The number of the row whose first column is ``key``, from ``value``.

        Raises
        ------
        KeyError
            If there is no such row.
        """
        for row in self.rows:
            if row[self.columns[0]] == key:
                return float(row["value"])
        raise KeyError(f"{self.name} has no row {key!r}")


def published(name: str) -> Published:
    """A table that ships with moetraffic.

    Parameters
    ----------
    name
        Of the file, without ``.csv``.

    Raises
    ------
    FileNotFoundError
        If there is none.
    """
    path = _HERE / f"{name}.csv"
    if not path.is_file():
        shipped = ", ".join(sorted(p.stem for p in _HERE.glob("*.csv")))
        raise FileNotFoundError(f"moetraffic ships no table {name}, but {shipped}")
    lines = path.read_text(encoding="utf-8").splitlines()
    source = tuple(line[1:].strip() for line in lines if line.startswith("#"))
    reader = csv.DictReader(line for line in lines if line and line[0] != "#")
    rows = tuple(reader)
    return Published(
        name=name, source=source, columns=tuple(reader.fieldnames or ()), rows=rows
    )
