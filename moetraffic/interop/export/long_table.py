"""Export a trace to long tables in CSV and Parquet.

A row is a pair of ranks, or a rank and an expert.
:mod:`moetraffic.interop.exchange_table` imports the same columns, without loss.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.errors import TraceError, install_command
from moetraffic.trace import ALL_TO_ALL, ROUTING, DroppedForm, Group, Trace

from .call_selection import AT_ONCE, Int64, find, select_calls
from .exporter import Exporter
from .options import ExportOptions

Columns = dict[str, npt.NDArray[Any] | str | int | None]
"""Block of rows: one array per column, or one value for all rows."""


def blocks(trace: Trace, options: ExportOptions) -> Iterator[Columns]:
    """Iterate over the table rows of a trace, site by site.

    For "wire": every all-to-all of which all bytes are known; for "demand": every
    routing.

    Parameters
    ----------
    trace
        Any.
    options
        Selection of calls; ``of`` is "wire" or "demand".

    Raises
    ------
    TraceError
        If no call matches the options.
    """
    if options.of == "demand":
        yield from _demands(trace, _routings(trace, options))
        return
    found = select_calls(trace, _with_all(options), only=ALL_TO_ALL).occurrences
    for number in np.unique(trace.occurrences.site[found]).tolist():
        site = trace.sites[number]
        group = trace.groups[site.group]
        ranks = np.array(group.ranks, np.int64)
        mine = found[trace.occurrences.site[found] == number]
        width = len(ranks)
        for part in _parts(mine, width * width):
            yield {
                "iteration": np.repeat(trace.occurrences.iteration[part], width**2),
                "layer": site.layer,
                "phase": site.phase,
                "source": np.tile(np.repeat(ranks, width), len(part)),
                "destination": np.tile(ranks, width * len(part)),
                "bytes": trace.wire(part).reshape(-1),
                "micro_batch": site.slot,
                "group": _named(group),
                "row_bytes": site.row_bytes,
                "dtype": site.dtype,
                "label": site.label,
                "direction": site.direction,
            }


def _with_all(options: ExportOptions) -> ExportOptions:
    """Copy the options with all-to-alls without a phase included."""
    return replace(options, unnamed=True)


def _routings(trace: Trace, options: ExportOptions) -> Int64:
    found = trace.complete(find(trace, options, operation=ROUTING))
    if not len(found):
        raise TraceError(
            "a table of demand needs routing, but none that fits was seen: capture the "
            "router, or export what was sent"
        )
    return found


def _demands(trace: Trace, found: Int64) -> Iterator[Columns]:
    for number in np.unique(trace.occurrences.site[found]).tolist():
        site = trace.sites[number]
        group = trace.groups[site.group]
        ranks, experts = np.array(group.ranks, np.int64), site.experts
        mine = found[trace.occurrences.site[found] == number]
        known = site.dropped != DroppedForm.UNKNOWN
        for part in _parts(mine, len(ranks) * experts):
            cells = len(ranks) * experts
            yield {
                "iteration": np.repeat(trace.occurrences.iteration[part], cells),
                "layer": site.layer,
                "rank": np.tile(np.repeat(ranks, experts), len(part)),
                "expert": np.tile(np.arange(experts), len(ranks) * len(part)),
                "tokens": trace.demand(part).astype(np.int64).reshape(-1),
                "micro_batch": site.slot,
                "group": _named(group),
                "dropped": trace.dropped(part).astype(np.int64).reshape(-1)
                if known
                else None,
            }


def _parts(occurrences: Int64, cells: int) -> Iterator[Int64]:
    step = max(1, AT_ONCE // 8 // cells)
    for begin in range(0, len(occurrences), step):
        yield occurrences[begin : begin + step]


def _named(group: Group) -> str:
    return " ".join([group.kind, *map(str, group.ranks)])


def write_csv(trace: Trace, path: Path, options: ExportOptions) -> list[str]:
    """Write the table rows of a trace as CSV with a header."""
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        for number, block in enumerate(blocks(trace, options)):
            if not number:
                lines.writerow(block)
            count = _lines(block)
            lines.writerows(
                zip(*(_listed(c, count) for c in block.values()), strict=True)
            )
    return _lost(trace, options)


def _listed(column: npt.NDArray[Any] | str | int | None, count: int) -> list[Any]:
    if isinstance(column, np.ndarray):
        return list(column.tolist())
    return ["" if column is None else column] * count


def _lines(block: Columns) -> int:
    (count,) = {len(c) for c in block.values() if isinstance(c, np.ndarray)}
    return int(count)


def write_parquet(trace: Trace, path: Path, options: ExportOptions) -> list[str]:
    """Write the table rows as Parquet, with the trace's metadata in the schema.

    Raises
    ------
    TraceError
        If no call matches the options, or pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise TraceError(
            "Parquet needs pyarrow, which is not installed: "
            f"{install_command('tables')}"
        ) from None

    text = pa.dictionary(pa.int32(), pa.string())
    writer = None
    try:
        for block in blocks(trace, options):
            count = _lines(block)
            columns = {}
            for name, values in block.items():
                if isinstance(values, np.ndarray):
                    columns[name] = pa.array(values)
                elif isinstance(values, str):
                    index = pa.array(np.zeros(count, np.int32))
                    columns[name] = pa.DictionaryArray.from_arrays(
                        index, pa.array([values])
                    ).cast(text)
                elif values is None:
                    columns[name] = pa.nulls(count, pa.int64())
                else:
                    columns[name] = pa.array(np.full(count, values, np.int64))
            table = pa.table(columns)
            if writer is None:
                about = {
                    f"moetraffic.{k}": str(v) for k, v in trace.meta.as_dict().items()
                }
                schema = table.schema.with_metadata(about)
                writer = pq.ParquetWriter(path, schema, compression="zstd")
            writer.write_table(table.cast(writer.schema))
    finally:
        if writer is not None:
            writer.close()
    return _lost(trace, options)


def _lost(trace: Trace, options: ExportOptions) -> list[str]:
    lost = ["times, losses and where experts lie are left out"]
    if options.of == "demand":
        return lost
    others = {
        s.operation for s in trace.sites if s.operation not in (ROUTING, ALL_TO_ALL)
    }
    if others:
        lost.append(f"calls of {', '.join(sorted(others))} are left out")
    return [*select_calls(trace, _with_all(options), only=ALL_TO_ALL).lost, *lost]


CSV = Exporter(
    name="csv",
    what="a line a pair of ranks and all-to-all; with --of demand a rank and expert",
    readers="moetraffic import, spreadsheets, anything",
    limits="exact",
    suffix=".csv",
    write=write_csv,
)
PARQUET = Exporter(
    name="parquet",
    what="the lines of csv, with the trace's meta in the schema",
    readers="pandas, polars, DuckDB, Spark",
    limits="exact; needs pyarrow",
    suffix=".parquet",
    write=write_parquet,
)
