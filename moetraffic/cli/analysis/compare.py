"""``moetraffic compare``: differences of two runs, or of a synthetic and real runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from moetraffic.cli.output import progress
from moetraffic.cli.show import AllTables, AsJson, Force, Only, Output, show
from moetraffic.errors import AnalysisError
from moetraffic.report.console.options import (
    Iterations,
    Layers,
    Phase,
    trace_argument,
)
from moetraffic.result import Result
from moetraffic.trace import Trace
from moetraffic.trace.iterations import iteration_range, layer_numbers


def compare(
    first: Annotated[Path, trace_argument("Trace file.")],
    others: Annotated[
        list[Path] | None,
        trace_argument("Trace to compare with; with --against more real runs."),
    ] = None,
    against: Annotated[
        list[Path] | None,
        Option(help="Real runs, such as reruns of the one that was fitted."),
    ] = None,
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

    With --against, statistics of a synthetic run are compared with those of real runs;
    exit code 1 if one lies outside the interval for one more real run.

    Example: moetraffic compare run.h5 other.h5

    Example: moetraffic compare synthetic.h5 --against run.h5 rerun1.h5 rerun2.h5
    """
    paths = [first, *(against or []), *(others or [])]
    if against:
        from moetraffic.synthetic.compare import compare_with_runs

        if len({path.resolve() for path in paths}) < len(paths):
            raise AnalysisError("each run counts once, but a file is named twice")
        with progress("reading runs", len(paths), quiet=as_json) as tick:
            result = compare_with_runs(
                first,
                paths[1:],
                layers=layer_numbers(layers),
                iterations=iterations,
                tick=tick,
            )
    elif len(paths) != 2:
        raise AnalysisError(
            f"two runs are compared, but {len(paths)} named: name one more, or real "
            "runs with --against"
        )
    else:
        result = _of_two(
            *paths,
            quiet=as_json,
            layers=layer_numbers(layers),
            phase=phase,
            iterations=iteration_range(iterations),
        )
    show(result, tables=tables, only=only, as_json=as_json, output=output, force=force)
    if result.data.get("outside"):
        raise typer.Exit(1)


def _of_two(first: Path, second: Path, *, quiet: bool, **chosen: Any) -> Result:
    from moetraffic.analysis.comparison import compare as compared
    from moetraffic.analysis.exchange import exchanges, windows

    with Trace.open(first) as a, Trace.open(second) as b:
        total = sum(
            len(windows(exchange))
            for trace in (a, b)
            for exchange in exchanges(trace, [], **chosen)
        )
        with progress("reading both", total, quiet=quiet or total < 8) as tick:
            return compared(a, b, **chosen, tick=tick)
