"""``moetraffic report``: an HTML report of a trace."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from moetraffic.cli.output import progress
from moetraffic.cli.show import AsJson, Force, show
from moetraffic.errors import AnalysisError
from moetraffic.files import validate_outputs
from moetraffic.report.console.options import (
    Iterations,
    Layers,
    Phase,
    Threads,
    TraceFile,
    trace_argument,
)
from moetraffic.result import Result
from moetraffic.trace import Trace
from moetraffic.trace.iterations import layer_numbers
from moetraffic.units import byte_size

PAGE = "Report"


def report(
    trace: TraceFile,
    second: Annotated[
        Path | None, trace_argument("Trace file to compare with.")
    ] = None,
    output: Annotated[
        Path, Option("-o", "--output", help="HTML file to write.")
    ] = Path("report.html"),
    replay: Annotated[
        Path | None, Option(help="Trace of a replay, for its fidelity.")
    ] = None,
    layers: Layers = None,
    phase: Phase = "dispatch",
    iterations: Iterations = None,
    fabric: Annotated[
        str,
        Option(
            help="Network for the link loads: single, leaf-spine, rails, fat-tree, "
            "torus, or a JSON file that describes one.",
            rich_help_panel=PAGE,
        ),
    ] = "leaf-spine",
    capacity: Annotated[
        str | None,
        Option(
            help="Capacity of a NIC, each way: 400Gbps, 50GB/s.",
            show_default="400Gbps, or the file's",
            rich_help_panel=PAGE,
        ),
    ] = None,
    title: Annotated[
        str,
        Option(
            help="Title of the report.",
            show_default="the file's name",
            rich_help_panel=PAGE,
        ),
    ] = "",
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
    asked: dict[str, Any] = {
        "layers": layer_numbers(layers),
        "phase": phase,
        "iterations": iterations,
    }
    from moetraffic.analysis import effort
    from moetraffic.report.page import write_report

    with ExitStack() as stack:
        first, again, other = (
            None if path is None else stack.enter_context(Trace.open(path))
            for path in (trace, replay, second)
        )
        assert first is not None
        total = effort(first, **asked)
        with progress(f"reading {trace.name}", total, quiet=as_json) as tick:
            content = write_report(
                first,
                output,
                replay=again,
                other=other,
                fabric=fabric,
                capacity=capacity,
                force=force,
                title=title,
                threads=threads or os.cpu_count() or 1,
                tick=tick,
                **asked,
            )
    size = output.stat().st_size
    result = Result(
        verb="report",
        head=f"{output}: report of {trace}, {byte_size(size)}, an offline page",
        verdict=content.result.verdict,
        notes=content.result.notes,
        data={
            "file": str(output),
            "file_bytes": size,
            "sections": [section.key for section in content.sections],
        },
    )
    show(result, as_json=as_json)
