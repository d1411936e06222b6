"""``moetraffic info``: the contents of a trace."""

from __future__ import annotations

from moetraffic.cli.output import TRACE_PARTS, Printing, present_trace, printed
from moetraffic.report.console.options import TraceFile


@printed(TRACE_PARTS)
def info(trace: TraceFile, *, printing: Printing) -> None:
    """Show the contents of a trace: run, layout, layers and collectives.

    Example: moetraffic info run.h5
    """
    present_trace(trace, printing)
