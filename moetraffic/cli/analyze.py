"""``moetraffic analyze``: skew, rhythm, predictability and convergence of traces."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moetraffic.errors import AnalysisError
from moetraffic.report.console.options import (
    AsJson,
    Force,
    Iterations,
    Layers,
    Of,
    Phase,
    Threads,
    option,
    positive_numbers,
    selection,
)
from moetraffic.trace import Trace
from moetraffic.trace.hdf5.durable import validate_output

from .output import json_text, present, progress, write_output

if TYPE_CHECKING:
    from moetraffic.analysis import Analysis

METHOD = "Method"
WRITTEN = (".json", ".csv", ".parquet")


def analyze(
    traces: Annotated[list[Path], typer.Argument(help="Trace files.")],
    layers: Layers = None,
    phase: Phase = "dispatch",
    iterations: Iterations = None,
    of: Of = None,
    only: Annotated[
        str | None,
        option(
            "Parts of the analysis, separated by commas: skew, forecasts, limits, "
            "convergence, complexity, rhythm, within, occupation.",
            shown="all",
        ),
    ] = None,
    horizons: Annotated[
        str,
        option("Forecast horizons in iterations, separated by commas.", panel=METHOD),
    ] = "1,10,100,1000",
    rhythm_by: Annotated[
        str,
        option(
            "Sources of on-off statistics: phase, layer, exchange, rank, link, nic.",
            panel=METHOD,
        ),
    ] = "phase,layer,rank",
    threads: Threads = 0,
    dask: Annotated[
        str | None,
        option("Compute on the dask cluster with the scheduler HOST:PORT."),
    ] = None,
    output: Annotated[
        Path | None,
        option(
            "File to write: .json, or a flat table .csv or .parquet.",
            *("-o", "--output"),
        ),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Compute skew, rhythm, predictability, complexity and convergence of traces.

    Example: moetraffic analyze run.h5 --layers 1 --iterations 100:200 -o figures.csv
    """
    from moetraffic.analysis import PARTS, effort
    from moetraffic.analysis import analyze as analyzed
    from moetraffic.analysis.cluster import connected, on_cluster
    from moetraffic.report import plain_data
    from moetraffic.report.results import summary

    asked: dict[str, Any] = selection(layers, iterations, phase, of=of)
    if output is not None:
        if output.suffix not in WRITTEN:
            raise AnalysisError(
                f"an analysis is written as {', '.join(WRITTEN)}, but {output.name} is "
                "none of these: choose one of these file extensions"
            )
        validate_output(output, force=force, error=AnalysisError)
    what = "horizons are iterations ahead, 1 or more,"
    ahead = positive_numbers(horizons, what, "--horizons 1,10,100")
    how: dict[str, Any] = {
        "parts": PARTS if only is None else tuple(only.split(",")),
        "horizons": tuple(dict.fromkeys(ahead)),
        "rhythm_by": tuple(rhythm_by.split(",")),
        "threads": threads or os.cpu_count() or 1,
    }
    found: list[tuple[Path, Analysis]] = []
    for path in traces:
        client = nullcontext() if dask is None else connected(dask)
        with Trace.open(path) as trace, client as cluster:
            total = effort(trace, **asked)
            mapper = None if dask is None else on_cluster(cluster, path, **asked)
            # what is over at once needs no bar
            quiet = as_json or total < 8
            with progress(f"reading {path.name}", total, quiet=quiet) as tick:
                one = analyzed(trace, **asked, **how, mapper=mapper, tick=tick)
        found.append((path, one))
    each = [{"file": str(p), **plain_data.as_dict(a)} for p, a in found]
    data = each if len(each) > 1 else each[0]
    if output is not None and output.suffix == ".json":
        write_output(output, json_text(data) + "\n")
    elif output is not None:
        import pandas

        frame = pandas.concat([a.to_frame(file=str(p)) for p, a in found])
        plain_data.write_records(frame, output, force=force)
    shown: list[Any] = []
    for path, analysis in found:
        shown += [f"\n{path}"] * (len(found) > 1) + [*summary.tables(analysis)]
    present(data, *shown, as_json=as_json, written=(output,))
