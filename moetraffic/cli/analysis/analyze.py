"""``moetraffic analyze``: skew, rhythm, predictability and convergence of traces."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from moetraffic.cli.output import (
    Printing,
    present,
    printed,
    progress,
    refuse_format,
    write_result,
)
from moetraffic.errors import AnalysisError
from moetraffic.files import validate_output
from moetraffic.report.console.options import (
    Force,
    Iterations,
    Layers,
    Of,
    Phase,
    Threads,
    option,
    positive_numbers,
    selection,
    selection_options,
    trace_argument,
)
from moetraffic.report.console.selection import selected
from moetraffic.trace import Trace

if TYPE_CHECKING:
    from moetraffic.analysis import Analysis

METHOD = "Method"
PARTS = (
    *("claims", "skew", "forecasts", "limits", "convergence", "complexity", "rhythm"),
    *("within", "time-breakdown"),
)
"""Those of :data:`moetraffic.analysis.PARTS`, which takes a second to import."""


@printed(PARTS)
def analyze(
    traces: Annotated[list[Path], trace_argument("Trace files.")],
    layers: Layers = None,
    phase: Phase = "dispatch",
    iterations: Iterations = None,
    of: Of = None,
    horizons: str | None = option(
        None,
        "Forecast horizons in iterations, separated by commas.",
        shown="1, 2, 5, 10, 20, 50 and 100, as far as the run is long enough",
        panel=METHOD,
    ),
    rhythm_by: str = option(
        "phase,layer,rank",
        "Sources of on-off statistics: phase, layer, exchange, rank, link.",
        panel=METHOD,
    ),
    threads: Threads = None,
    dask: str | None = option(
        None, "Compute on the dask cluster with the scheduler HOST:PORT."
    ),
    output: Path | None = option(
        None,
        "File to write: .json, or a flat table .csv, .parquet or .xlsx.",
        *("-o", "--output"),
    ),
    force: Force = False,
    *,
    printing: Printing,
) -> None:
    """Summarize traces in a few lines; with --tables, --json or -o, all statistics.

    Skew, rhythm, predictability, complexity and convergence, each with its noise floor.

    Example: moetraffic analyze run.h5 --layers 1 --iterations 100:200 -o figures.csv
    """
    names, tables, as_json = printing.only, printing.tables, printing.as_json
    from moetraffic.analysis import analyze as analyzed
    from moetraffic.analysis import effort
    from moetraffic.analysis.engine import SUMMARY_PARTS
    from moetraffic.report import plain_data
    from moetraffic.report.results import summary
    from moetraffic.report.summary.answer import sentences

    asked: dict[str, Any] = selection(layers, iterations, phase, of=of)
    refuse_format(output)
    if output is not None:
        validate_output(output, force=force, error=AnalysisError)
    programs = as_json or output is not None  # which find all statistics in them
    what = "horizons are iterations ahead, 1 or more,"
    ahead = positive_numbers(horizons, what, "--horizons 1,10,100")
    how: dict[str, Any] = {
        "parts": names or (PARTS if tables or programs else SUMMARY_PARTS),
        "horizons": tuple(dict.fromkeys(ahead)) or None,
        "rhythm_by": tuple(rhythm_by.split(",")),
        "threads": threads or os.cpu_count() or 1,
    }
    found: list[tuple[Path, Analysis]] = []
    if dask is not None:
        from moetraffic.analysis.cluster import connected, on_cluster
    for path in traces:
        client = nullcontext() if dask is None else connected(dask)
        with Trace.open(path) as trace, client as cluster:
            total = effort(trace, **asked)
            mapper = None if dask is None else on_cluster(cluster, path, **asked)
            # what is over at once needs no bar
            quiet = as_json or effort(trace, **asked, stages=False) < 8
            with progress(f"analyzing {path.name}", total, quiet=quiet) as tick:
                one = analyzed(trace, **asked, **how, mapper=mapper, tick=tick)
        found.append((path, one))
    same = selection_options(layers, iterations, phase)
    each = [
        plain_data.as_dict(a, file=str(p), options=same)
        for p, a in (found if programs else ())
    ]
    data = each[0] if len(each) == 1 else each
    if output is not None:
        import pandas

        frames = (a.to_frame(file=str(p)) for p, a in found)
        write_result(output, data, lambda: pandas.concat(frames), force=force)
    shown: list[Any] = []
    for path, analysis in found:
        lines = sentences(analysis, file=str(path), options=same)
        by_part = summary.by_part(analysis) if tables or names else {}
        shown += [f"\n{path}"] * (len(found) > 1)
        # tables of parts alone are in the file, if one is written
        asked_parts = () if output else names
        asked_parts += ("notes",) * bool(names and by_part.get("notes"))
        if asked_parts or not names:
            shown += selected(lines, by_part, only=asked_parts, tables=tables)
    present(data, *shown, as_json=as_json, written=(output,))
