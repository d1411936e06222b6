"""Files of measured collectives: what ``moetraffic bench`` writes, and others may.

A CSV has a line a measurement, below a head with at least the columns ``collective``,
``ranks``, ``size_bytes`` and ``time_us``; ``span`` (nodes, 1), ``platform``,
``protocol``, ``place`` ("out" or "in") and ``wire_bytes`` (of an uneven all-to-all) may
be there, other columns are passed over, lines that begin with # are remarks.  Published
tables call ranks ``gpus`` and the span ``nodes``, which are read as such.  A JSON
document has the same as objects in a list ``rows``, or ``measurements`` of a result.
Rows whose ``wrong`` is above 0 are refused: what moves wrong bytes has no bandwidth.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from moetraffic.data import published
from moetraffic.errors import AnalysisError

from .bandwidth_table import BandwidthTable, Sample
from .collective import COLLECTIVES

NEEDED = ("collective", "ranks", "size_bytes", "time_us")

PUBLISHED_AS = {"gpus": "ranks", "nodes": "span"}
"""Columns of published tables, and what they are called here."""


def read_table(path: str | Path, *, place: str = "out") -> BandwidthTable:
    """The table of a file of measurements.

    Parameters
    ----------
    path
        CSV, or JSON where it ends in ``.json``.
    place
        "out" or "in", see :class:`~moetraffic.patterns.bandwidth.BandwidthTable`.

    Raises
    ------
    AnalysisError
        If it cannot be read or is no such file.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise AnalysisError(
            f"{path} cannot be read ({why}): give a file that moetraffic bench wrote"
        ) from None
    rows = _json(text, path) if str(path).endswith(".json") else _csv(text)
    return BandwidthTable(samples(rows, str(path)), place=place)


def samples(rows: Sequence[Mapping[str, Any]], name: str) -> list[Sample]:
    """Measurements of rows with the columns that this module tells.

    Raises
    ------
    AnalysisError
        If there are none, a column is missing, or a value is none of its kind.
    """
    rows = [{PUBLISHED_AS.get(c, c): row[c] for c in row} | {**row} for row in rows]
    missing = [c for c in NEEDED if not rows or c not in rows[0]]
    if missing:
        raise AnalysisError(
            f"{name} has no measurements with the columns {', '.join(missing)}: add "
            "them (gpus are ranks, too), or give a file that moetraffic bench wrote"
        )
    found = []
    for number, row in enumerate(rows, 1):
        try:
            made = Sample(
                collective=str(row["collective"]),
                ranks=int(row["ranks"]),
                span=int(row.get("span") or 1),
                size_bytes=int(row["size_bytes"]),
                time_us=float(row["time_us"]),
                platform=str(row.get("platform") or ""),
                protocol=str(row.get("protocol") or ""),
                place=str(row.get("place") or "out"),
                wire_bytes=int(row.get("wire_bytes") or -1),
            )
            wrong = int(row.get("wrong") or 0)
        except (TypeError, ValueError, KeyError) as error:
            raise AnalysisError(
                f"measurement {number} of {name} is none ({error}): correct the file"
            ) from None
        if wrong > 0 or made.collective not in COLLECTIVES:
            what = f"{wrong} wrong" if wrong > 0 else repr(made.collective)
            raise AnalysisError(
                f"measurements are of {', '.join(COLLECTIVES)} that moved every byte "
                f"right, but number {number} of {name} has {what}: leave it out"
            )
        found.append(made)
    return found


def big_red_200() -> BandwidthTable:
    """All-reduces of 4 and 8 A100s of Big Red 200, as Jia measured them in 2024."""
    return BandwidthTable(
        replace(
            sample,
            platform="big-red-200",
            protocol="RDMA" if sample.span > 1 else "NVLink",
        )
        for sample in samples(published("jia_nccl_tests").rows, "jia_nccl_tests.csv")
    )


def _csv(text: str) -> list[dict[str, Any]]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return list(csv.DictReader(lines))


def _json(text: str, path: str | Path) -> list[dict[str, Any]]:
    try:
        document = json.loads(text)
        rows = document.get("rows") or document["tables"]["measurements"]
        if not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
            raise TypeError("rows are objects")
    except (ValueError, KeyError, TypeError) as error:
        raise AnalysisError(
            f"{path} is no JSON of measurements ({error}): give a file that moetraffic "
            "bench wrote"
        ) from None
    return rows
