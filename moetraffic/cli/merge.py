"""``moetraffic merge``: make a trace of the segments that a capture left."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from moetraffic.errors import CaptureError
from moetraffic.report.overview import overview, tables
from moetraffic.trace import Trace
from moetraffic.trace.hdf5.durable import SEGMENTS, validate_output
from moetraffic.trace.merge.merging import merge_into

from .output import console, print_json


def merge(
    folder: Annotated[Path, typer.Argument(help="Folder of segments.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Trace to write; x.h5 for x.h5.segments."),
    ] = None,
    force: Annotated[bool, typer.Option(help="Overwrite the output.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Merge the segments of a capture that did not end by itself.

    Says what ended the capture, and what is missing; segments stay where something is.

    Example: moetraffic merge run.h5.segments -o run.h5
    """
    folder = folder.absolute()
    if output is None:
        if not folder.name.endswith(SEGMENTS):
            raise CaptureError(
                f"the output is named after a folder that ends in {SEGMENTS}, but "
                f"{folder} does not: give -o"
            )
        output = folder.with_name(folder.name.removesuffix(SEGMENTS))
    validate_output(output, force=force)
    merged = merge_into(folder, output, force=force)
    with Trace.open(output) as trace:
        if as_json:
            told = overview(trace, output)
            told["missing"] = list(merged.missing)
            told["remarks"] = list(merged.remarks)
            told["contradictions"] = list(merged.contradictions)
            print_json(told)
            return
        console.print(*tables(trace, output))
    for sentence in merged.contradictions:
        console.print(Text(f"contradiction: {sentence}", style="red"), soft_wrap=True)
