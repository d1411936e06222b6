"""``moetraffic analyze``: how uneven, how regular, how predictable."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moetraffic.errors import AnalysisError
from moetraffic.trace import Trace

from .output import console, print_json


def analyze(
    trace: Annotated[Path, typer.Argument(help="Trace file.")],
    layer: Annotated[
        list[int] | None, typer.Option(help="MoE layer; may be given again.")
    ] = None,
    iterations: Annotated[
        str, typer.Option(help="Iterations from:to, to excluded, such as 100:200.")
    ] = ":",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compute skew, rhythm, predictability and convergence.

    Example: moetraffic analyze run.h5 --layer 1 --iterations 100:200
    """
    from moetraffic.analysis import analyze as analysed
    from moetraffic.report import summary

    with Trace.open(trace) as opened:
        found = analysed(
            opened, layers=layer or None, iterations=_range(iterations, opened)
        )
    if as_json:
        print_json({"file": str(trace), **summary.as_dict(found)})
    else:
        console.print(summary.tables(found))


def _range(text: str, trace: Trace) -> range | None:
    """Iterations as the user writes them."""
    first, colon, last = text.partition(":")
    try:
        bounds = int(first or 0), int(last) if last else None
    except ValueError:
        bounds = (-1, None)
    if not colon or bounds[0] < 0:
        raise AnalysisError(
            f"iterations are from:to with two numbers, not {text!r}: "
            "such as 100:200, or 100: for all from 100 on"
        )
    end = int(trace.steps.iteration.max(initial=-1)) + 1
    chosen = range(bounds[0], end if bounds[1] is None else bounds[1])
    if text != ":" and not any(i in chosen for i in trace.iterations.tolist()):
        raise AnalysisError(
            f"no training iteration lies in {text}: the trace has "
            f"{len(trace.iterations)}, the last is {end - 1}"
        )
    return chosen
