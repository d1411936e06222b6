"""``moetraffic compare``: the differences between two runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from moetraffic.cli.output import progress
from moetraffic.cli.show import AllTables, AsJson, Force, Only, Output, show
from moetraffic.report.console.options import (
    Iterations,
    Layers,
    Phase,
    TraceFile,
    trace_argument,
)
from moetraffic.trace import Trace
from moetraffic.trace.iterations import iteration_range, layer_numbers


def compare(
    first: TraceFile,
    second: Annotated[Path, trace_argument("Trace file to compare with.")],
    layers: Layers = None,
    phase: Phase = "dispatch",
    iterations: Iterations = None,
    tables: AllTables = False,
    only: Only = None,
    as_json: AsJson = False,
    output: Output = None,
    force: Force = False,
) -> None:
    """Show in what two runs differ: load, bytes between ranks, and times.

    Both are compared in the iterations that they have in common.

    Example: moetraffic compare run.h5 other.h5
    """
    from moetraffic.analysis.comparison import compare as compared
    from moetraffic.analysis.exchange import exchanges, windows

    chosen: dict[str, Any] = {
        "layers": layer_numbers(layers),
        "phase": phase,
        "iterations": iteration_range(iterations),
    }
    with Trace.open(first) as a, Trace.open(second) as b:
        total = sum(
            len(windows(exchange))
            for trace in (a, b)
            for exchange in exchanges(trace, [], **chosen)
        )
        with progress("reading both", total, quiet=as_json or total < 8) as tick:
            result = compared(a, b, **chosen, tick=tick)
    show(result, tables=tables, only=only, as_json=as_json, output=output, force=force)
