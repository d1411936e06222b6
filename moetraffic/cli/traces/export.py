"""``moetraffic export``: convert a trace to the format of another tool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moetraffic.cli.show import AsJson, Force, show
from moetraffic.errors import TraceError
from moetraffic.files import validate_other_than_input, validate_outputs
from moetraffic.report.console.options import Iterations, Layers, option
from moetraffic.result import Result
from moetraffic.trace import PHASES, Trace
from moetraffic.trace.iterations import layer_numbers
from moetraffic.units import byte_size, seconds

FORMATS = "perfetto, nccl-tests, chakra, htsim, hpcc, eplb, csv, parquet, npz"
LIST = "list"
FORMAT = "Format"


def export(
    trace: Annotated[
        Path | None, typer.Argument(help="Trace file.", show_default=False)
    ] = None,
    to: str = option(LIST, f"Format: {FORMATS}; list shows their readers and limits."),
    output: Path | None = option(None, "File or folder to write.", "-o", "--output"),
    iterations: Iterations = None,
    layers: Layers = None,
    phase: str | None = option(None, f"Phase: {', '.join(PHASES)}.", shown="all"),
    unnamed: bool = option(
        False,
        "Include matrices and flows of all-to-alls without a phase, such as "
        "count exchanges.",
        "--unnamed",
    ),
    of: str = option(
        "wire", "Traffic: wire (bytes sent) or demand (token counts of routers)."
    ),
    pace: str = option(
        "captured",
        "Start of calls: captured, at the captured times; asap, when the previous "
        "calls have ended.",
        panel=FORMAT,
    ),
    every: str | None = option(
        None,
        "Time between starts of calls, such as 500us.",
        panel=FORMAT,
        shown="by --pace",
    ),
    unit: str = option(
        "B", "Unit for nccl-tests: B, or KiB for older releases.", panel=FORMAT
    ),
    anonymous: bool = option(
        False,
        "Remove names of hosts, users, paths and programs; without --to, write a trace "
        "to share.",
        "--anonymous",
    ),
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Convert a trace for simulators, benchmarks, viewers and data tools.

    Whatever a format cannot represent is reported. The opposite, files of other tools
    to a trace, is moetraffic import.

    Example: moetraffic export run.h5 --to htsim --pace asap -o run.cm
    """
    if to == LIST and anonymous and trace is not None and output is not None:
        show(_anonymous(trace, output, force=force), as_json=as_json)
        return
    if to == LIST:
        if trace is not None:
            raise TraceError(
                f"{trace} is given, but no format: name one with --to (moetraffic "
                "export lists them)"
            )
        show(_formats(), as_json=as_json)
        return
    if trace is None or output is None:
        missing = "a trace" if trace is None else "an output with -o"
        raise TraceError(
            f"an export needs a trace and an output, but {missing} is not given: "
            f"moetraffic export run.h5 --to {to[:40]} -o OUT"
        )
    from moetraffic.interop.anonymize import anonymize
    from moetraffic.interop.write import ExportOptions, export_trace, exporter_named

    exporter_named(to).check_output(output, force=force)
    validate_other_than_input(trace, output)
    options = ExportOptions(
        iterations=iterations,
        layers=layer_numbers(layers),
        phase=phase or "",
        unnamed=unnamed,
        of=of,
        pace=pace,
        every_ns=_interval_ns(every),
        unit=unit,
    )
    with Trace.open(trace) as opened:
        source = anonymize(opened).trace if anonymous else opened
        done = export_trace(source, output, to, options=options, force=force)
    files = "1 file" if len(done.files) == 1 else f"{len(done.files)} files"
    result = Result(
        verb="export",
        head=f"{output}: {done.format}, {files}, {byte_size(done.bytes)}",
        tables={"files": [{"file": str(file)} for file in done.files]},
        notes=done.lost,
        data={"format": done.format, "output": str(output), "bytes": done.bytes},
    )
    show(result, as_json=as_json)


def _anonymous(trace: Path, output: Path, *, force: bool) -> Result:
    """Write a trace without identifying texts."""
    from moetraffic.interop.anonymize import anonymize

    validate_outputs((output,), (trace,), force=force)
    with Trace.open(trace) as opened:
        done = anonymize(opened)
        done.trace.save(output, force=force)
    return Result(
        verb="export",
        head=f"{output}: the trace without names of hosts, users, paths and programs",
        tables={"removed": [{"removed": what} for what in done.removed]},
        screen=("removed",),
        verdict=("All numbers are kept: sizes, counts, times, losses, layout, seed.",),
        data={"output": str(output), "removed": list(done.removed)},
    )


def _interval_ns(every: str | None) -> int:
    if every is None:
        return 0
    interval = round(seconds(every) * 1e9)
    if interval < 1:
        raise TraceError(
            f"calls start at least 1 ns apart, but --every is {every}: "
            "raise it, or leave it out"
        )
    return interval


def _formats() -> Result:
    from moetraffic.interop.write import exporter_named, exporter_names

    rows = [
        {
            "format": exporter.name,
            "output": "folder" if exporter.folder else exporter.suffix,
            "read_by": exporter.readers,
            "contents": exporter.what,
            "limits": exporter.limits,
        }
        for exporter in map(exporter_named, exporter_names())
    ]
    head = "formats of moetraffic export run.h5 --to FORMAT -o OUTPUT"
    return Result(
        verb="export", head=head, tables={"formats": rows}, screen=("formats",)
    )
