"""``moetraffic report``: one page with all that is known of a run, to look at."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from moetraffic.errors import AnalysisError
from moetraffic.trace import Trace
from moetraffic.trace.hdf5.durable import validate_other_than_input, validate_output
from moetraffic.trace.iterations import iteration_range
from moetraffic.units import byte_size

from .choices import Iterations, Layers, layer_numbers
from .output import console, print_json, progress

MOST_MB = 100
"""Of matrices in a page: a browser still opens it."""


def report(
    trace: Annotated[Path, typer.Argument(help="Trace file.")],
    second: Annotated[
        Path | None, typer.Argument(help="Trace file to compare with.")
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Page to write.")
    ] = Path("report.html"),
    replay: Annotated[
        Path | None, typer.Option(help="Trace of a replay, for its fidelity.")
    ] = None,
    layers: Layers = None,
    phase: Annotated[
        str, typer.Option(help="Phase whose wire is analyzed.")
    ] = "dispatch",
    iterations: Iterations = None,
    fabric: Annotated[
        str,
        typer.Option(
            help="Network for the link loads: single, leaf-spine, rails, fat-tree, "
            "torus, or a JSON file that describes one."
        ),
    ] = "leaf-spine",
    capacity: Annotated[
        str | None,
        typer.Option(
            help="Of a NIC, each way: 400Gbps, 50GB/s.",
            show_default="400Gbps, or the file's",
        ),
    ] = None,
    title: Annotated[
        str, typer.Option(help="Headline.", show_default="the file's name")
    ] = "",
    matrices: Annotated[
        float,
        typer.Option(
            help="MB of matrices in the page, at most: more, and iterations are "
            "left out."
        ),
    ] = 8.0,
    force: Annotated[bool, typer.Option(help="Overwrite the page.")] = False,
    threads: Annotated[
        int, typer.Option(help="That read and compute.", show_default="the cores")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a page with all that is known of a run; it works offline.

    Example: moetraffic report run.h5 -o report.html --replay replayed.h5
    """
    if threads < 0:
        raise AnalysisError(
            f"threads are 1 or more, or 0 for as many as there are cores, but are "
            f"{threads}: raise --threads"
        )
    if not 0 < matrices <= MOST_MB:
        raise AnalysisError(
            f"the matrices of a page have more than 0 and at most {MOST_MB} MB, but "
            f"{matrices:g} were asked for: choose --matrices 8"
        )
    validate_output(output, force=force, error=AnalysisError)
    for source in (trace, second, replay):
        if source is not None:
            validate_other_than_input(source, output, error=AnalysisError)
    chosen = iteration_range(iterations)
    asked: dict[str, Any] = {
        "layers": layer_numbers(layers),
        "phase": phase,
        "iterations": chosen,
    }
    from moetraffic.analysis import effort
    from moetraffic.report.page import write_report
    from moetraffic.report.page.document import plotly_script

    plotly_script()  # is refused before the work, not after it
    with ExitStack() as stack:
        first = stack.enter_context(Trace.open(trace))
        others = [
            None if path is None else stack.enter_context(Trace.open(path))
            for path in (replay, second)
        ]
        total = effort(first, **asked)
        quiet = as_json or total < 8
        with progress(f"reading {trace.name}", total, quiet=quiet) as tick:
            found = write_report(
                first,
                output,
                replay=others[0],
                other=others[1],
                fabric=fabric,
                capacity=capacity,
                force=force,
                title=title,
                threads=threads or os.cpu_count() or 1,
                most_bytes=int(matrices * 1e6),
                tick=tick,
                **asked,
            )
    size = output.stat().st_size
    if as_json:
        print_json(
            {
                "file": str(output),
                "bytes": size,
                "sections": [s.key for s in found.sections],
                "notes": list(found.notes),
            }
        )
    else:
        console.print(f"{output}: {byte_size(size)}, opens in any browser, offline")
