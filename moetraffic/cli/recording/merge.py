"""``moetraffic merge``: a trace from the logs of an interrupted capture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moetraffic.cli.show import AllTables, AsJson, Force, Only, show_trace
from moetraffic.errors import CaptureError
from moetraffic.files import LOGS, validate_output
from moetraffic.report.console.options import trace_output
from moetraffic.trace.merge.merging import merge_into


def merge(
    folder: Annotated[Path, typer.Argument(help="Folder of logs.")],
    output: Path | None = trace_output(None, shown="run.h5 for run.h5.logs"),
    force: Force = False,
    tables: AllTables = False,
    only: Only = None,
    as_json: AsJson = False,
) -> None:
    """Merge the logs of an interrupted capture into a trace.

    Shows what ended the capture and what is missing; logs are kept if anything is
    missing.

    Example: moetraffic merge run.h5.logs -o run.h5
    """
    folder = folder.absolute()
    if output is None:
        if not folder.name.endswith(LOGS):
            raise CaptureError(
                f"the output is named after a folder that ends in {LOGS}, but "
                f"{folder} does not: give -o"
            )
        output = folder.with_name(folder.name.removesuffix(LOGS))
    validate_output(output, force=force)
    merged = merge_into(folder, output, force=force)
    show_trace(output, as_json=as_json, tables=tables, only=only, merged=merged)
