"""``moetraffic compare``: how far apart the traffic of two runs is."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from moetraffic.errors import AnalysisError
from moetraffic.trace import Trace
from moetraffic.trace.iterations import iteration_range

from .choices import Iterations, Layers, layer_numbers
from .output import console, print_json, progress

MEASURES = {
    "shares": "total variation",
    "amounts": "relative difference",
    "skew": "Wasserstein-1",
}
BEYOND = 1
"""Exit code where a distance is surely above its threshold."""


def compare(
    first: Annotated[Path, typer.Argument(help="Trace file.")],
    second: Annotated[Path, typer.Argument(help="Trace file to hold against it.")],
    layers: Layers = None,
    phase: Annotated[
        str, typer.Option(help="Phase whose wire is compared.")
    ] = "dispatch",
    iterations: Iterations = None,
    of: Annotated[
        str | None,
        typer.Option(help="Only demand, or only wire.", show_default="both"),
    ] = None,
    at_most: Annotated[
        list[str] | None,
        typer.Option(
            help="Threshold such as shares=0.05, amounts=0.1 or skew=0.02; may be "
            "given again. Exit code 1 if a distance's interval lies above it."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure how far apart two runs are, with intervals and a floor, and their times.

    Example: moetraffic compare run.h5 other.h5 --at-most shares=0.05
    """
    from moetraffic.analysis.comparison import compare as compared
    from moetraffic.analysis.comparison import worst
    from moetraffic.analysis.engine import effort
    from moetraffic.report.comparison import tables

    thresholds = _thresholds(at_most or [])
    with Trace.open(first) as a, Trace.open(second) as b:
        chosen: dict[str, Any] = {
            "layers": layer_numbers(layers),
            "phase": phase,
            "iterations": iteration_range(iterations),
            "of": ("demand", "wire") if of is None else (of,),
        }
        total = effort(a, **chosen) + effort(b, **chosen)
        with progress("reading both", total, quiet=as_json or total < 8) as tick:
            found = compared(a, b, **chosen, tick=tick)
    beyond = worst(found, thresholds)
    if as_json:
        print_json(
            {
                "first": str(first),
                "second": str(second),
                "distances": [
                    asdict(d) | {"beyond_chance": d.beyond_chance}
                    for d in found.distances
                ],
                "times_s": [asdict(t) for t in found.times],
                "thresholds": thresholds,
                "beyond_threshold": [[d.layer, d.of] for d in beyond],
                "notes": list(found.notes),
            }
        )
    else:
        console.print(*tables(found, beyond))
    if beyond:
        raise typer.Exit(BEYOND)


def _thresholds(given: list[str]) -> dict[str, float]:
    found = {}
    for each in given:
        name, _, value = each.partition("=")
        try:
            limit = float(value)
        except ValueError:
            limit = -1.0
        if name not in MEASURES or not 0 <= limit < float("inf"):
            raise AnalysisError(
                f"a threshold is one of {', '.join(MEASURES)}, =, and a number that is "
                f"not negative, but is {each!r}: give --at-most shares=0.05"
            )
        found[MEASURES[name]] = limit
    return found
