"""``moetraffic analyze``: evenness, predictability, rhythm and times of traces."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from moetraffic.cli.output import progress
from moetraffic.cli.show import AllTables, AsJson, Force, Only, Output, show
from moetraffic.report.console.options import (
    Ep,
    Iterations,
    Layers,
    Phase,
    Threads,
    positive_numbers,
    trace_argument,
)
from moetraffic.trace import Trace
from moetraffic.trace.iterations import layer_numbers

METHOD = "Method"


def analyze(
    traces: Annotated[list[Path], trace_argument("Trace files.")],
    ep: Ep = None,
    layers: Layers = None,
    phase: Phase = "dispatch",
    iterations: Iterations = None,
    horizons: Annotated[
        str | None,
        Option(
            help="Forecast horizons in iterations, separated by commas.",
            show_default="1, 2, 5, 10, 20, 50 and 100, as the run's length permits",
            rich_help_panel=METHOD,
        ),
    ] = None,
    rhythm_by: Annotated[
        str,
        Option(
            help="Sources of on-off statistics: phase, layer, exchange, rank, link.",
            rich_help_panel=METHOD,
        ),
    ] = "phase,layer,rank",
    threads: Threads = None,
    dask: Annotated[
        str | None,
        Option(help="Compute on the dask cluster with the scheduler HOST:PORT."),
    ] = None,
    tables: AllTables = False,
    only: Only = None,
    as_json: AsJson = False,
    output: Output = None,
    force: Force = False,
) -> None:
    """Show how even and how predictable the traffic of training runs was.

    The first screen is a table and at most five sentences; --tables, --json and -o have
    all statistics.

    Example: moetraffic analyze run.h5 --layers 1 --iterations 100:200 -o figures.xlsx
    """
    from moetraffic.analysis import analyze as analyzed
    from moetraffic.analysis import effort
    from moetraffic.analysis.trace_analysis import PARTS, SCREEN
    from moetraffic.trace.what_if.loads import over_ranks

    complete = tables or as_json or only is not None or output is not None
    ahead = positive_numbers(horizons, "horizons are iterations ahead", "1,10,100")
    chosen: dict[str, Any] = {
        "layers": layer_numbers(layers),
        "phase": phase,
        "iterations": iterations,
    }
    results = []
    for path in traces:
        if dask is not None:
            from moetraffic.analysis.cluster import connected, on_cluster
        client = nullcontext() if dask is None else connected(dask)
        with Trace.open(path) as opened, client as cluster:
            trace = over_ranks(opened, ep)
            total = effort(trace, **chosen)
            mapper = None
            if dask is not None and ep is None:
                mapper = on_cluster(cluster, path, **chosen)
            with progress(f"analyzing {path.name}", total, quiet=as_json) as tick:
                results.append(
                    analyzed(
                        trace,
                        **chosen,
                        parts=PARTS if complete else SCREEN,
                        horizons=ahead or None,
                        rhythm_by=tuple(rhythm_by.split(",")),
                        threads=threads or os.cpu_count() or 1,
                        mapper=mapper,
                        tick=tick,
                    )
                )
    show(
        *results,
        tables=tables,
        only=only,
        as_json=as_json,
        output=output,
        force=force,
    )
