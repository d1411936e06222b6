"""``moetraffic info``: what a trace holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moetraffic.report.overview import overview, tables
from moetraffic.trace import Trace

from .output import console, print_json


def info(
    trace: Annotated[Path, typer.Argument(help="Trace file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a trace holds.

    Example: moetraffic info run.h5
    """
    with Trace.open(trace) as opened:
        if as_json:
            print_json(overview(opened, trace))
        else:
            console.print(*tables(opened, trace))
