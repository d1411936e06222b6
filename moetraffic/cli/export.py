"""``moetraffic export``: write a trace in another tool's format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from moetraffic.errors import TraceError
from moetraffic.trace import PHASES, Trace
from moetraffic.trace.hdf5.durable import validate_other_than_input
from moetraffic.trace.iterations import iteration_range
from moetraffic.units import byte_size, seconds

from .choices import Iterations, Layers, layer_numbers
from .output import console, print_json

FORMATS = (
    "perfetto, param, nccl-tests, ucc-perftest, nixl, chakra, htsim, hpcc, repetita, "
    "eplb, csv, parquet, npz"
)
LIST = "list"


def export(
    trace: Annotated[
        Path | None, typer.Argument(help="Trace file.", show_default=False)
    ] = None,
    to: Annotated[
        str,
        typer.Option(
            help=f"Format: {FORMATS}; list says who reads them and what they lack."
        ),
    ] = LIST,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="File or folder to write."),
    ] = None,
    iterations: Iterations = None,
    layers: Layers = None,
    phase: Annotated[
        str | None,
        typer.Option(help=f"One of {', '.join(PHASES)}.", show_default="all"),
    ] = None,
    unnamed: Annotated[
        bool,
        typer.Option(
            "--unnamed",
            help="Matrices and flows also of all-to-alls without a phase, such as "
            "count exchanges.",
        ),
    ] = False,
    of: Annotated[
        str, typer.Option(help="wire: what was sent; demand: what routers wanted.")
    ] = "wire",
    pace: Annotated[
        str,
        typer.Option(
            help="captured: calls begin when they did; asap: when those before ended."
        ),
    ] = "captured",
    every: Annotated[
        str | None,
        typer.Option(
            help="Time between beginnings of calls, such as 500us; for repetita, of an "
            "iteration.",
            show_default="as the pace says",
        ),
    ] = None,
    unit: Annotated[
        str, typer.Option(help="nccl-tests: B, or KiB for its older releases.")
    ] = "B",
    force: Annotated[bool, typer.Option(help="Overwrite the output.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a trace for simulators, benchmarks, viewers and data tools.

    What a format cannot hold, and what was left out, is printed.

    Example: moetraffic export run.h5 --to htsim --pace asap -o run.cm
    """
    if to == LIST:
        _list(as_json)
        return
    if trace is None or output is None:
        missing = "a trace" if trace is None else "an output with -o"
        raise TraceError(
            f"an export needs a trace and an output, but {missing} is not given: "
            f"moetraffic export run.h5 --to {to[:40]} -o OUT"
        )
    from moetraffic.interop.export import ExportOptions, export_trace, exporter_named
    from moetraffic.interop.export.exporter import refuse

    refuse(exporter_named(to), output, force=force)
    validate_other_than_input(trace, output)
    options = ExportOptions(
        iterations=iteration_range(iterations),
        layers=layer_numbers(layers),
        phase=phase or "",
        unnamed=unnamed,
        of=of,
        pace=pace,
        every_ns=_distance_ns(every),
        unit=unit,
    )
    with Trace.open(trace) as opened:
        done = export_trace(opened, output, to, options=options, force=force)
    if as_json:
        print_json(
            {
                "format": done.format,
                "output": str(output),
                "files": [str(f) for f in done.files],
                "bytes": done.bytes,
                "lost": list(done.lost),
            }
        )
        return
    files = "1 file" if len(done.files) == 1 else f"{len(done.files)} files"
    console.print(
        Text(f"{output}: {done.format}, {files}, {byte_size(done.bytes)}"),
        soft_wrap=True,
    )
    for sentence in done.lost:
        console.print(Text(f"lost: {sentence}", style="yellow"), soft_wrap=True)


def _distance_ns(every: str | None) -> int:
    if every is None:
        return 0
    distance = round(seconds(every) * 1e9)
    if distance < 1:
        raise TraceError(
            f"calls begin at least 1 ns after one another, but --every is {every}: "
            "raise it, or leave it out"
        )
    return distance


def _list(as_json: bool) -> None:
    from moetraffic.interop.export import exporter_named, known_exporters

    every = [exporter_named(name) for name in known_exporters()]
    if as_json:
        print_json(
            [
                {
                    "format": one.name,
                    "holds": one.what,
                    "read_by": one.readers,
                    "limits": one.limits,
                    "output": "folder" if one.folder else one.suffix,
                }
                for one in every
            ]
        )
        return
    table = Table(box=None, header_style="bold", padding=(0, 1))
    for column in ("--to", "-o", "holds", "read by", "limits"):
        table.add_column(column, overflow="fold")
    for one in every:
        kind = "folder" if one.folder else one.suffix
        table.add_row(*map(Text, (one.name, kind, one.what, one.readers, one.limits)))
    console.print(table)
