"""``moetraffic plot``: heatmaps and curves of a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from moetraffic.errors import AnalysisError
from moetraffic.report.console.options import (
    Algorithm,
    AsJson,
    Force,
    Operations,
    TraceFile,
    operation_names,
    option,
)
from moetraffic.trace import Trace
from moetraffic.trace.iterations import number_list

from .output import make_folder, present

TRAFFIC = "traffic.png"


def plot(
    trace: TraceFile,
    output: Annotated[Path, option("Folder to write.", "-o", "--output")] = Path(
        "pictures"
    ),
    iterations: Annotated[
        str | None,
        option(
            "Plot the traffic of iterations in the half-open range A:B, or of a list: "
            "0,10,50:53.",
            shown="first, middle, last",
        ),
    ] = None,
    operations: Operations = None,
    algorithm: Algorithm = "ring",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Plot demand, traffic between ranks, the on-off timeline, entropy and complexity.

    Example: moetraffic plot run.h5 -o pictures --operations all_to_all,all_reduce
    """
    from moetraffic.analysis import analyze
    from moetraffic.report import figures
    from moetraffic.report.results import pictures

    with Trace.open(trace) as opened:
        chosen = _iterations(iterations, opened)
        names = operation_names(opened, operations)
        shown = pictures.traffic(opened, chosen, operations=names, algorithm=algorithm)
        make_folder(output, ("*.png",), force=force)
        found = analyze(opened, parts=["skew", "complexity", "rhythm", "occupation"])
        drawn = [
            figures.save(shown, output / TRAFFIC),
            *pictures.draw(opened, found, output),
        ]
    data = {"folder": str(output), "pictures": [p.name for p in drawn]}
    present(data, as_json=as_json, written=drawn)


def _iterations(asked: str | None, trace: Trace) -> list[int]:
    there = trace.steps.iteration.tolist()
    if not there:
        raise AnalysisError(f"{trace.name} has no step, so there is nothing to draw")
    if asked is None:
        return sorted({there[0], there[len(there) // 2], there[-1]})
    chosen = list(number_list(asked, "iterations"))
    if not set(chosen) <= set(there):
        raise AnalysisError(
            f"iterations are numbers from {there[0]} to {there[-1]} with commas "
            f"between, but are {asked!r}: give --iterations {there[0]},{there[-1]}"
        )
    return chosen
