"""``moetraffic analyze``: how uneven, how regular, how predictable."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moetraffic.trace import Trace
from moetraffic.trace.iterations import iteration_range

from .output import console, print_json


def analyze(
    trace: Annotated[Path, typer.Argument(help="Trace file.")],
    layer: Annotated[
        list[int] | None, typer.Option(help="MoE layer; may be given again.")
    ] = None,
    iterations: Annotated[
        str | None, typer.Option(help="Only iterations A:B, A up to, not with, B.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compute skew, rhythm, predictability and convergence.

    Example: moetraffic analyze run.h5 --layer 1 --iterations 100:200
    """
    from moetraffic.analysis import analyze as analysed
    from moetraffic.report import summary

    with Trace.open(trace) as opened:
        chosen = iteration_range(iterations)
        found = analysed(opened, layers=layer or None, iterations=chosen)
    if as_json:
        print_json({"file": str(trace), **summary.as_dict(found)})
    else:
        console.print(summary.tables(found))
