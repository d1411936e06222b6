"""``moetraffic analyze``: how uneven, how regular, how predictable."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moetraffic.errors import AnalysisError
from moetraffic.trace import Trace
from moetraffic.trace.hdf5.durable import remedy, replacing, validate_output
from moetraffic.trace.iterations import iteration_range

from .choices import Iterations, Layers, layer_numbers
from .output import console, json_text, print_json, progress

if TYPE_CHECKING:
    from moetraffic.analysis import Analysis

WRITTEN = (".json", ".csv", ".parquet")


def analyze(
    traces: Annotated[list[Path], typer.Argument(help="Trace files.")],
    layers: Layers = None,
    phase: Annotated[
        str, typer.Option(help="Phase whose wire is looked at.")
    ] = "dispatch",
    iterations: Iterations = None,
    of: Annotated[
        str | None, typer.Option(help="Only demand, or only wire.", show_default="both")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            help="Parts with commas between: skew, forecasts, limits, convergence, "
            "complexity, rhythm, within, occupation.",
            show_default="all",
        ),
    ] = None,
    horizons: Annotated[
        str, typer.Option(help="Iterations ahead of the forecasts.")
    ] = "1,10,100,1000",
    rhythm_by: Annotated[
        str,
        typer.Option(
            help="Sources of rhythm: phase, layer, exchange, rank, link, nic."
        ),
    ] = "phase,layer,rank",
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="Write a .json, or a flat table .csv or .parquet."
        ),
    ] = None,
    force: Annotated[bool, typer.Option(help="Overwrite the output.")] = False,
    threads: Annotated[
        int,
        typer.Option(help="That read and compute.", show_default="the cores"),
    ] = 0,
    dask: Annotated[
        str | None,
        typer.Option(help="Compute on the dask cluster whose scheduler is HOST:PORT."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compute skew, rhythm, predictability, complexity and convergence.

    Example: moetraffic analyze run.h5 --layers 1 --iterations 100:200 -o figures.csv
    """
    from moetraffic.analysis import PARTS
    from moetraffic.report import plain_data, summary

    asked: dict[str, Any] = {
        "layers": layer_numbers(layers),
        "phase": phase,
        "iterations": iteration_range(iterations),
        "of": ("demand", "wire") if of is None else (of,),
    }
    if threads < 0:
        raise AnalysisError(
            f"threads are 1 or more, or 0 for as many as there are cores, but are "
            f"{threads}: raise --threads"
        )
    if output is not None:
        _refuse(output, force)
    found: list[tuple[Path, Analysis]] = []
    for path in traces:
        one = _analyzed(
            path,
            asked,
            {
                "parts": PARTS if only is None else tuple(only.split(",")),
                "horizons": _horizons(horizons),
                "rhythm_by": tuple(rhythm_by.split(",")),
                "threads": threads or os.cpu_count() or 1,
            },
            dask,
            quiet=as_json,
        )
        found.append((path, one))
    told = [{"file": str(p), **plain_data.as_dict(a)} for p, a in found]
    if output is not None and output.suffix == ".json":
        _write(output, json_text(told if len(told) > 1 else told[0]) + "\n")
    elif output is not None:
        import pandas

        frame = pandas.concat([a.to_frame(file=str(p)) for p, a in found])
        plain_data.write_records(frame, output, force=force)
    if as_json:
        print_json(told if len(told) > 1 else told[0])
        return
    for path, analysis in found:
        if len(found) > 1:
            console.print(f"\n{path}")
        console.print(*summary.tables(analysis))
    if output is not None:
        console.print(f"{output}: written")


def _analyzed(
    path: Path,
    asked: dict[str, Any],
    how: dict[str, Any],
    dask: str | None,
    *,
    quiet: bool,
) -> Analysis:
    from moetraffic.analysis import analyze as analyzed
    from moetraffic.analysis import effort
    from moetraffic.analysis.cluster import connected, on_cluster

    client = nullcontext() if dask is None else connected(dask)
    with Trace.open(path) as trace, client as cluster:
        total = effort(trace, **asked)
        # what is over at once needs no bar
        with progress(f"reading {path.name}", total, quiet=quiet or total < 8) as tick:
            return analyzed(
                trace,
                **asked,
                **how,
                mapper=None if dask is None else on_cluster(cluster, path, **asked),
                tick=tick,
            )


def _horizons(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(each) for each in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise AnalysisError(
            f"horizons are iterations ahead, 1 or more, with commas between, not "
            f"{text!r}: give --horizons 1,10,100"
        )
    return tuple(dict.fromkeys(found))


def _refuse(output: Path, force: bool) -> None:
    """Refuse an output before the work, not after it."""
    if output.suffix not in WRITTEN:
        raise AnalysisError(
            f"an analysis is written as {', '.join(WRITTEN)}, but {output.name} is "
            "none of these: choose an ending"
        )
    validate_output(output, force=force, error=AnalysisError)


def _write(output: Path, text: str) -> None:
    try:
        with replacing(output) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise AnalysisError(
            f"{output} cannot be written ({error.strerror or error}): {remedy(error)}"
        ) from None
