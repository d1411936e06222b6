"""``moetraffic info``: the contents of a trace."""

from __future__ import annotations

from moetraffic.cli.show import AllTables, AsJson, Only, show_trace
from moetraffic.report.console.options import TraceFile


def info(
    trace: TraceFile,
    tables: AllTables = False,
    only: Only = None,
    as_json: AsJson = False,
) -> None:
    """Show the contents of a trace: run, layout, layers and traffic of an iteration.

    Example: moetraffic info run.h5
    """
    show_trace(trace, as_json=as_json, tables=tables, only=only)
