"""``moetraffic merge``: a trace from the segments of an interrupted capture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moetraffic.capture.records.recovery import recover
from moetraffic.cli.output import TRACE_PARTS, Printing, present_trace, printed
from moetraffic.errors import CaptureError
from moetraffic.files import SEGMENTS, validate_output
from moetraffic.report.console.options import Force, trace_output
from moetraffic.text import visible
from moetraffic.trace.merge.merging import merge_into


@printed(TRACE_PARTS)
def merge(
    folder: Annotated[Path, typer.Argument(help="Folder of segments.")],
    output: Path | None = trace_output(None, shown="run.h5 for run.h5.segments"),
    force: Force = False,
    *,
    printing: Printing,
) -> None:
    """Merge the segments of an interrupted capture into a trace.

    Shows what ended the capture and what is missing; segments are kept if anything is
    missing.

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
    for failure in recover(folder, patience_s=0.0):
        typer.echo(visible(failure), err=True)
    merged = merge_into(folder, output, force=force)
    present_trace(output, printing, merged=merged)
