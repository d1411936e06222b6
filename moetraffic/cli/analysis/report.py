"""``moetraffic report``: an HTML report of a trace."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

from moetraffic.cli.output import present, progress
from moetraffic.errors import AnalysisError
from moetraffic.files import validate_outputs
from moetraffic.report.console.options import (
    AsJson,
    Force,
    Iterations,
    Layers,
    Phase,
    Threads,
    TraceFile,
    option,
    selection,
    trace_argument,
)
from moetraffic.trace import Trace
from moetraffic.units import byte_size

MOST_MB = 100
"""Size of matrices that a browser still opens."""

PAGE = "Report"


def report(
    trace: TraceFile,
    second: Annotated[
        Path | None, trace_argument("Trace file to compare with.")
    ] = None,
    output: Path = option(Path("report.html"), "HTML file to write.", "-o", "--output"),
    replay: Path | None = option(None, "Trace of a replay, for its fidelity."),
    layers: Layers = None,
    phase: Phase = "dispatch",
    iterations: Iterations = None,
    fabric: str = option(
        "leaf-spine",
        "Network for the link loads: single, leaf-spine, rails, fat-tree, torus, "
        "or a JSON file that describes one.",
        panel=PAGE,
    ),
    capacity: str | None = option(
        None,
        "Capacity of a NIC, each way: 400Gbps, 50GB/s.",
        panel=PAGE,
        shown="400Gbps, or the file's",
    ),
    title: str = option(
        "", "Title of the report.", panel=PAGE, shown="the file's name"
    ),
    matrices: float = option(
        8.0,
        "Largest size of the matrices in the report in MB; iterations are left out "
        "beyond it.",
        panel=PAGE,
        above=0,
        max=MOST_MB,
    ),
    force: Force = False,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Write an HTML report of a trace, which opens in any browser without a network.

    Example: moetraffic report run.h5 -o report.html --replay replayed.h5
    """
    sources = (trace, second, replay)
    validate_outputs((output,), sources, force=force, error=AnalysisError)
    if output.suffix not in (".html", ".htm"):
        raise AnalysisError(
            f"a report is an HTML file, but {output.name} has another ending: give "
            "-o report.html (moetraffic plot writes PDF, SVG and PNG)"
        )
    asked = selection(layers, iterations, phase)
    from moetraffic.analysis import effort
    from moetraffic.report.page import write_report

    with ExitStack() as stack:
        first = stack.enter_context(Trace.open(trace))
        others = [
            None if path is None else stack.enter_context(Trace.open(path))
            for path in (replay, second)
        ]
        total = effort(first, **asked)
        quiet = as_json or effort(first, **asked, stages=False) < 8
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
    data = {
        "file": str(output),
        "bytes": size,
        "sections": [s.key for s in found.sections],
        "notes": list(found.notes),
    }
    present(
        data, f"written: {output}, {byte_size(size)}, an offline page", as_json=as_json
    )
