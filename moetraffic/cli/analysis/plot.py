"""``moetraffic plot``: pictures of a trace as files."""

from __future__ import annotations

import mimetypes
from pathlib import Path
from typing import Annotated

from typer import Option

from moetraffic.cli.output import make_folder
from moetraffic.cli.show import AsJson, Force, show
from moetraffic.errors import AnalysisError
from moetraffic.files import validate_output
from moetraffic.report.chart import FILE_FORMATS, Chart, Missing
from moetraffic.report.console.options import (
    SUMMED,
    Layers,
    TraceFile,
    operation_names,
    option,
    parts_of,
)
from moetraffic.result import Result
from moetraffic.trace import Trace
from moetraffic.trace.iterations import layer_numbers, numbers

NAMES = (
    *("traffic", "demand", "load", "timeline", "entropy", "forecasts", "spectrum"),
    *("times", "complexity"),
)
"""Pictures, as in :data:`moetraffic.report.views.pictures.PARTS`."""

FORMATS = ", ".join(FILE_FORMATS)
LOOK = "Appearance"

OTHER_ENDINGS = mimetypes.MimeTypes().types_map[True].keys() | {".h5", ".webp"}
"""Name endings of files, which a new folder does not have."""


def _inches(text: str) -> float:
    from moetraffic.report.figure_style import inches

    return inches(text)


def plot(
    trace: TraceFile,
    output: Annotated[
        Path,
        Option("-o", "--output", help=f"Folder, or for one picture a file: {FORMATS}."),
    ] = Path("pictures"),
    only: Annotated[
        str | None,
        Option(help=f"Pictures to draw: {', '.join(NAMES)}.", show_default="all"),
    ] = None,
    iterations: Annotated[
        str | None,
        Option(
            help="Iterations of the traffic: 0,10,50:53.",
            show_default="first, middle, last",
        ),
    ] = None,
    layers: Layers = None,
    phase: Annotated[
        str | None,
        Option(
            help="Use only the all-to-alls of this phase.",
            show_default="dispatch; all in the timeline, and in traffic with --layers",
        ),
    ] = None,
    operations: Annotated[
        str | None,
        Option(
            help=SUMMED,
            show_default="dispatches, or all collectives where there are none",
        ),
    ] = None,
    formats: Annotated[
        str, Option("--format", help=f"File formats: {FORMATS}.", rich_help_panel=LOOK)
    ] = "png",
    width: float | None = option(
        None,
        "Width of each picture, such as 3.4in, 86mm or 252pt.",
        read=_inches,
        shown="9 to 12 in",
        panel=LOOK,
    ),
    no_title: Annotated[
        bool,
        Option("--no-title", help="Write no headline.", rich_help_panel=LOOK),
    ] = False,
    style: Annotated[
        str,
        Option(help="Style of matplotlib, or a .mplstyle file.", rich_help_panel=LOOK),
    ] = "",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Draw demand, traffic, load over time, timeline, forecasts, times and complexity.

    Example: moetraffic plot run.h5 -o pictures --format pdf --width 3.4in --no-title
    """
    from moetraffic.report import figures
    from moetraffic.report.figure_style import FigureStyle
    from moetraffic.report.views.pictures import pictures

    names = parts_of(only, NAMES) or NAMES
    endings = parts_of(formats.lower(), FILE_FORMATS, flag="--format")
    chosen_layers = layer_numbers(layers)
    if operations is not None and (chosen_layers is not None or phase is not None):
        raise AnalysisError(
            "with --layers or --phase the bytes are those of their all-to-alls, but "
            f"--operations is {operations}: leave one out"
        )
    look = FigureStyle(width_in=width, title=not no_title, style=style)
    with look.applied():  # a style that does not exist is refused first
        one = _one_file(output, names, force=force)
    with Trace.open(trace) as opened:
        made = pictures(
            opened,
            names,
            iterations=_iterations(iterations, opened),
            operations=operation_names(opened, operations),
            layers=chosen_layers,
            phase=phase,
        )
    drawn = {name: c for name, c in made.items() if isinstance(c, Chart)}
    missing = {name: c.reason for name, c in made.items() if isinstance(c, Missing)}
    notes = tuple(f"not drawn: {name}: {reason}" for name, reason in missing.items())
    if not drawn:
        raise AnalysisError(
            f"no picture can be drawn of {trace.name} "
            f"({'; '.join(dict.fromkeys(missing.values()))}): choose others with --only"
        )
    if one and len(drawn) > 1:
        raise _several(output, list(drawn))
    if not one:
        files = [f"{name}.{ending}" for name in drawn for ending in endings]
        make_folder(output, files, force=force)
    paths = {
        output if one else output / f"{name}.{ending}": chart
        for name, chart in drawn.items()
        for ending in (endings if not one else endings[:1])
    }
    for path, chart in paths.items():
        figures.save(chart, path, look)
    table = [
        {"picture": str(path), "title": chart.title, "caption": figures.caption(chart)}
        for path, chart in paths.items()
    ]
    result = Result(
        verb="plot",
        head=f"{trace}: {len(paths)} picture{'s' * (len(paths) != 1)} written",
        tables={"pictures": [{**row, "caption": ""} for row in table]},
        screen=("pictures",),
        notes=notes,
        data={"file": str(trace), "pictures": table, "missing": missing},
    )
    show(result, as_json=as_json)


def _one_file(output: Path, names: tuple[str, ...], *, force: bool) -> bool:
    """Return whether the output is one picture, and not a folder."""
    one = output.suffix.lower().lstrip(".") in FILE_FORMATS and not output.is_dir()
    if one:
        if len(names) > 1:
            raise _several(output, list(names))
        validate_output(output, force=force, error=AnalysisError)
    elif output.suffix.lower() in OTHER_ENDINGS and not output.is_dir():
        raise AnalysisError(
            f"pictures are {FORMATS} files, but {output.name} ends in {output.suffix}: "
            f"give -o {output.with_suffix('.png').name}, or a folder"
        )
    return one


def _several(output: Path, names: list[str]) -> AnalysisError:
    return AnalysisError(
        f"{output.name} is the name of one picture, but {len(names)} are drawn "
        f"({', '.join(names)}): choose one with --only, or give -o a folder"
    )


def _iterations(asked: str | None, trace: Trace) -> list[int]:
    """Read the iterations of the traffic; empty: not asked for."""
    there = trace.steps.iteration.tolist()
    if not there:
        raise AnalysisError(f"{trace.name} has no step, so there is nothing to draw")
    chosen = list(numbers(asked, "iterations") or ())
    if not set(chosen) <= set(there):
        raise AnalysisError(
            f"iterations are numbers from {there[0]} to {there[-1]} with commas "
            f"between, but are {asked!r}: give --iterations {there[0]},{there[-1]}"
        )
    return chosen
