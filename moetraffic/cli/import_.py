"""``moetraffic import``: make a trace of files that another tool wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from moetraffic.errors import LayoutError
from moetraffic.report.overview import overview, tables
from moetraffic.trace import Trace
from moetraffic.trace.hdf5.durable import validate_other_than_input, validate_output

from .choices import refuse_idle
from .output import console, print_json


def import_(
    context: typer.Context,
    files: Annotated[
        list[Path],
        typer.Argument(help="Files of all ranks, packed with gzip or not; or folders."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Trace to write.")],
    format: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="profiler, execution-trace, megatron, nccl-inspector, matrix or csv.",
            show_default="found out",
        ),
    ] = None,
    ranks: Annotated[
        int, typer.Option(help="Ranks of the run.", show_default="as the files say")
    ] = 0,
    experts: Annotated[
        int,
        typer.Option(
            help="megatron: experts of a layer.", show_default="up to the last chosen"
        ),
    ] = 0,
    ep: Annotated[
        int,
        typer.Option(
            help="megatron: expert-parallel ranks, which hold equal parts.",
            show_default="not known",
        ),
    ] = 0,
    unit: Annotated[
        str, typer.Option(help="matrix: what a number counts, B, KiB, MiB or GiB.")
    ] = "KiB",
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Write the trace though files contradict others."),
    ] = False,
    force: Annotated[bool, typer.Option(help="Overwrite the output.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make a trace of profiles, execution traces, router traces, matrices or CSV.

    What a rank sent must be what the others received: if not, the call is named and no
    trace is written.

    Example: moetraffic import profiles/*.json.gz -o run.h5
    """
    from moetraffic.interop import ImportOptions, import_files

    validate_output(output, force=force)
    for file in files:
        validate_other_than_input(file, output)
    for name, value in (("ranks", ranks), ("experts", experts), ("ep", ep)):
        if not 0 <= value <= 1 << 16:
            raise LayoutError(
                f"{name} counts from 1 to 65536, but is {value}: change --{name}"
            )
    for taker, names in (("megatron", ("experts", "ep")), ("matrix", ("unit",))):
        if format not in (None, taker):
            why = f"only {taker} files take this"
            refuse_idle(context, names, why, error=LayoutError)
    options = ImportOptions(ranks=ranks, experts=experts, ep=ep, unit=unit)
    found, merged = import_files(files, format=format or "", options=options, keep=keep)
    merged.trace.save(output, force=force)
    with Trace.open(output) as trace:
        if as_json:
            told = {"format": found, **overview(trace, output)}
            told["missing"] = list(merged.missing)
            told["remarks"] = list(merged.remarks)
            told["contradictions"] = list(merged.contradictions)
            print_json(told)
            return
        console.print(*tables(trace, output))
    for sentence in merged.contradictions:
        console.print(Text(f"contradiction: {sentence}", style="red"), soft_wrap=True)
