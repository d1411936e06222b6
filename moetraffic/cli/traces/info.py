"""``moetraffic info``: the contents of a trace."""

from __future__ import annotations

from moetraffic.cli.output import TRACE_PARTS, present_trace
from moetraffic.report.console.options import (
    AllTables,
    AsJson,
    TraceFile,
    only_option,
    parts_of,
)


def info(
    trace: TraceFile,
    tables: AllTables = False,
    only: str | None = only_option(None, TRACE_PARTS),
    as_json: AsJson = False,
) -> None:
    """Show the contents of a trace: run, layout, layers and collectives.

    Example: moetraffic info run.h5
    """
    names = parts_of(only, TRACE_PARTS, tables=tables)
    present_trace(trace, as_json=as_json, only=names, tables=tables)
