"""``moetraffic plot``: heatmaps and curves of a trace."""

from __future__ import annotations

import mimetypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moetraffic.cli.output import make_folder, present
from moetraffic.errors import AnalysisError
from moetraffic.files import validate_output
from moetraffic.report.chart import FILE_FORMATS, Missing
from moetraffic.report.console.options import (
    APPEARANCE,
    SUMMED,
    Algorithm,
    AsJson,
    Force,
    Layers,
    TraceFile,
    operation_names,
    option,
    parts_of,
    takes,
)
from moetraffic.trace import Trace
from moetraffic.trace.iterations import layer_numbers, number_list

NAMES = (
    *("traffic", "demand", "load", "timeline", "entropy", "time-breakdown"),
    "complexity",
)
"""Pictures, as in :data:`moetraffic.report.results.pictures.PICTURES`."""

FORMATS = ", ".join(FILE_FORMATS)

OTHER_ENDINGS = mimetypes.MimeTypes().types_map[True].keys() | {".h5", ".webp"}
"""Name endings of files, which a new folder does not have."""


@takes(look=APPEARANCE)
def plot(
    trace: TraceFile,
    output: Path = option(
        Path("pictures"),
        f"Folder to write, or for one picture a file: {FORMATS}.",
        *("-o", "--output"),
    ),
    only: str | None = option(
        None,
        f"Draw these pictures alone, with commas: {', '.join(NAMES)}.",
        "--only",
        shown="all",
        metavar="TEXT",
    ),
    iterations: str | None = option(
        None,
        "Plot the traffic of iterations in the half-open range A:B, or of a list: "
        "0,10,50:53.",
        shown="first, middle, last",
    ),
    layers: Layers = None,
    phase: str | None = option(
        None,
        "Use only the all-to-alls of this phase.",
        shown="dispatch; all in the timeline, and in traffic with --layers",
    ),
    operations: str | None = option(
        None,
        SUMMED,
        shown="dispatches, or all collectives where there are none",
    ),
    algorithm: Algorithm = "ring",
    formats: str = option(
        "png",
        f"File formats, with commas: {FORMATS}.",
        "--format",
        panel="Appearance",
    ),
    force: Force = False,
    as_json: AsJson = False,
    *,
    look: dict[str, Any],
) -> None:
    """Plot demand, traffic between ranks, the on-off timeline, entropy and complexity.

    Example: moetraffic plot run.h5 -o pictures --format pdf --width 3.4in --no-title
    """
    from moetraffic.analysis import analyze
    from moetraffic.report import figures
    from moetraffic.report.chart import Chart
    from moetraffic.report.figure_style import FigureStyle
    from moetraffic.report.results import pictures

    names = parts_of(only, NAMES) or NAMES
    endings = parts_of(formats.lower(), FILE_FORMATS, flag="--format")
    kind = output.suffix.lower().lstrip(".")
    one = kind in FILE_FORMATS and not output.is_dir()
    if one:
        if len(names) > 1:
            raise _several(output, names)
        validate_output(output, force=force, error=AnalysisError)
    elif output.suffix.lower() in OTHER_ENDINGS and not output.is_dir():
        raise AnalysisError(
            f"pictures are {FORMATS} files, but {output.name} ends in {output.suffix}: "
            f"give -o {output.with_suffix('.png').name}, or a folder"
        )
    style = FigureStyle(**look)
    chosen_layers = layer_numbers(layers)
    if operations is not None and (chosen_layers is not None or phase is not None):
        raise AnalysisError(
            "with --layers or --phase the bytes are those of their all-to-alls, but "
            f"--operations is {operations}: leave one out"
        )
    with Trace.open(trace) as opened:
        chosen = _iterations(iterations, opened)
        of = operation_names(opened, operations)
        made: dict[str, Chart | Missing] = {}
        if "traffic" in names:
            made["traffic"] = pictures.traffic(
                opened,
                chosen,
                operations=of,
                algorithm=algorithm,
                layers=chosen_layers,
                phase=phase,
            )
        parts = sorted({pictures.PARTS[n] for n in names if n in pictures.PARTS})
        found = analyze(
            opened,
            parts=parts or ["skew"],
            layers=chosen_layers,
            phase=phase or "dispatch",
        )
        rest = [name for name in names if name != "traffic"]
        made |= pictures.charts(opened, found, rest, phase=phase)
        drawn = {n: c for n, c in made.items() if isinstance(c, Chart)}
        missing = {n: c.reason for n, c in made.items() if isinstance(c, Missing)}
        reasons = dict.fromkeys(missing.values())
        alike = {why: [n for n, of in missing.items() if of == why] for why in reasons}
        notes = [f"not drawn: {', '.join(n)}: {why}" for why, n in alike.items()]
        if not drawn:
            why = "; ".join(reasons)
            raise AnalysisError(
                f"no picture can be drawn of {trace.name} ({why}): choose others with "
                "--only, or another trace"
            )
        if one and len(drawn) > 1:
            raise _several(output, list(drawn))
        if not one:
            files = [f"{name}.{ending}" for name in drawn for ending in endings]
            make_folder(output, files, force=force)
        paths = [
            figures.save(chart, output if one else output / f"{name}.{ending}", style)
            for name, chart in drawn.items()
            for ending in ([kind] if one else endings)
        ]
    data = {
        "folder": str(output.parent if one else output),
        "pictures": [p.name for p in paths],
        "captions": {
            n: {"title": c.title, "text": figures.caption(c)} for n, c in drawn.items()
        },
        "missing": missing,
    }
    present(data, *notes, as_json=as_json, written=paths)


def _several(output: Path, names: Sequence[str]) -> AnalysisError:
    return AnalysisError(
        f"{output.name} is the name of one picture, but {len(names)} are drawn "
        f"({', '.join(names)}): choose one with --only, or give -o a folder"
    )


def _iterations(asked: str | None, trace: Trace) -> list[int]:
    there = trace.steps.iteration.tolist()
    if not there:
        raise AnalysisError(f"{trace.name} has no step, so there is nothing to draw")
    if asked is None:
        training = trace.iterations.tolist() or there
        return sorted({training[0], training[len(training) // 2], training[-1]})
    chosen = list(number_list(asked, "iterations"))
    if not set(chosen) <= set(there):
        raise AnalysisError(
            f"iterations are numbers from {there[0]} to {there[-1]} with commas "
            f"between, but are {asked!r}: give --iterations {there[0]},{there[-1]}"
        )
    return chosen
