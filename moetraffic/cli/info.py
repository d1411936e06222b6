"""``moetraffic info``: the contents of a trace."""

from __future__ import annotations

from moetraffic.report.console.options import AsJson, TraceFile

from .output import present_trace


def info(trace: TraceFile, as_json: AsJson = False) -> None:
    """Show the contents of a trace: run, layout, layers and collectives.

    Example: moetraffic info run.h5
    """
    present_trace(trace, as_json=as_json)
