"""Export a trace to long tables in CSV and Parquet.

A row is a pair of ranks, or a rank and an expert.
:mod:`moetraffic.interop.exchange_table` imports the same columns, without loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Int64
from moetraffic.errors import TraceError, install_command
from moetraffic.trace import ALL_TO_ALL, ROUTING, Source, Trace

from .call_selection import AT_ONCE, find, other_operations, select_calls
from .exporter import Exporter, ExportOptions

Columns = dict[str, npt.NDArray[Any] | str | int | None]
"""Block of rows: one array per column, or one value for all rows."""


def _selected(trace: Trace, options: ExportOptions) -> tuple[Int64, list[str]]:
    """Select routings or all-to-alls, and describe what is left out."""
    lost = ["times, losses and the placement of experts are left out"]
    if options.of == "demand":
        found = trace.complete(find(trace, options, operation=ROUTING))
        if not len(found):
            raise TraceError(
                "a table of demand needs routing, but none that fits was seen: capture "
                "the router, or export what was sent"
            )
        if any(site.token_sample for site in trace.sites):
            lost.append("experts of sampled tokens are left out")
        return found, lost
    chosen = select_calls(trace, replace(options, unnamed=True), only=ALL_TO_ALL)
    return chosen.occurrences, [*chosen.lost, *other_operations(trace), *lost]


def _blocks(trace: Trace, found: Int64) -> Iterator[Columns]:
    """Iterate over the table rows of routings or all-to-alls, site by site."""
    names = np.array([source.name.lower() for source in Source])
    for number in np.unique(trace.occurrences.site[found]).tolist():
        site, group = trace.sites[number], trace.groups[trace.sites[number].group]
        ranks, routes = np.array(group.ranks, np.int64), site.operation == ROUTING
        others = np.arange(site.experts) if routes else ranks
        mine = found[trace.occurrences.site[found] == number]
        step = max(1, AT_ONCE // 8 // (len(ranks) * len(others)))
        for begin in range(0, len(mine), step):
            part = mine[begin : begin + step]
            iteration = trace.occurrences.iteration[part]
            rank = np.tile(np.repeat(ranks, len(others)), len(part))
            other = np.tile(others, len(ranks) * len(part))
            block: Columns = {
                "iteration": np.repeat(iteration, len(ranks) * len(others)),
                "layer": site.layer,
            }
            if routes:
                tokens = trace.demand(part).astype(np.int64).reshape(-1)
                block |= {"rank": rank, "expert": other, "tokens": tokens}
            else:
                sent = trace.wire(part).reshape(-1)
                block |= {"phase": site.phase, "source": rank}
                block |= {"destination": other, "bytes": sent}
            block |= {
                "micro_batch": site.slot,
                "group": " ".join([group.kind, *map(str, group.ranks)]),
            }
            if not routes:
                for name in ("row_bytes", "dtype", "label"):
                    block[name] = getattr(site, name)
                block["direction"] = site.direction or "unknown"
            elif not site.dropped.known:
                block["dropped"] = None
            else:
                block["dropped"] = trace.dropped(part).astype(np.int64).reshape(-1)
            block["call_source"] = site.source.name.lower()
            steps = names[trace.steps.sources(iteration)]
            block["step_source"] = np.repeat(steps, len(ranks) * len(others))
            yield block


def write_csv(trace: Trace, path: Path, options: ExportOptions) -> list[str]:
    """Write the table rows of a trace as CSV with a header."""
    # slow import, needed only for tables
    import pandas

    found, lost = _selected(trace, options)
    for number, block in enumerate(_blocks(trace, found)):
        pandas.DataFrame(block).to_csv(
            path, mode="a", header=not number, index=False, lineterminator="\n"
        )
    return lost


def write_parquet(trace: Trace, path: Path, options: ExportOptions) -> list[str]:
    """Write the table rows as Parquet, with the trace's metadata in the schema."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise TraceError(
            "Parquet needs pyarrow, which is not installed: "
            f"{install_command('tables')}"
        ) from None

    found, lost = _selected(trace, options)
    writer = None
    try:
        for block in _blocks(trace, found):
            (count,) = {len(c) for c in block.values() if isinstance(c, np.ndarray)}
            columns = {}
            for name, values in block.items():
                if isinstance(values, np.ndarray):
                    columns[name] = pa.array(values)
                elif isinstance(values, str):
                    index = np.zeros(count, np.int32)
                    columns[name] = pa.DictionaryArray.from_arrays(index, [values])
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
    return lost


CSV = Exporter(
    name="csv",
    what="one line per pair of ranks and call; with --of demand per rank and expert",
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
