"""``moetraffic plot``: pictures of a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moetraffic.errors import AnalysisError, MoetrafficError
from moetraffic.patterns.algorithms import ALGORITHMS
from moetraffic.trace import Trace
from moetraffic.trace.hdf5.durable import validate_folder
from moetraffic.trace.iterations import number_list

from .output import console, print_json

TRAFFIC = "traffic.png"


def plot(
    trace: Annotated[Path, typer.Argument(help="Trace file.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder to write.")
    ] = Path("pictures"),
    iterations: Annotated[
        str | None,
        typer.Option(
            help="Only iterations A:B, or a list: 0,10,50:53; of the traffic.",
            show_default="first, middle, last",
        ),
    ] = None,
    operations: Annotated[
        str | None,
        typer.Option(
            help="Collectives whose traffic is summed, such as all_to_all,all_reduce.",
            show_default="all",
        ),
    ] = None,
    algorithm: Annotated[
        str, typer.Option(help=f"How all-reduces travel: {', '.join(ALGORITHMS)}.")
    ] = "ring",
    force: Annotated[bool, typer.Option(help="Overwrite earlier pictures.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Draw demand, traffic between ranks, the on-off timeline, entropy, complexity.

    Example: moetraffic plot run.h5 -o pictures --operations all_to_all,all_reduce
    """
    from moetraffic.analysis import analyze
    from moetraffic.report import figures, pictures

    with Trace.open(trace) as opened:
        chosen = _iterations(iterations, opened)
        names = None if operations is None else operations.split(",")
        known = sorted({s.operation for s in opened.sites} - {"routing"})
        if names is not None and not set(names) <= set(known):
            raise AnalysisError(
                f"the trace has {', '.join(known)}, but operations are {operations!r}: "
                "choose among these"
            )
        _refuse_earlier(output, force)
        shown = pictures.traffic(opened, chosen, operations=names, algorithm=algorithm)
        found = analyze(opened, parts=["skew", "complexity", "rhythm", "occupation"])
        output.mkdir(parents=False, exist_ok=True)
        drawn = [
            figures.save(shown, output / TRAFFIC),
            *pictures.draw(opened, found, output),
        ]
    if as_json:
        print_json({"folder": str(output), "pictures": [p.name for p in drawn]})
    else:
        console.print(f"{output}: {', '.join(p.name for p in drawn)}")


def _iterations(asked: str | None, trace: Trace) -> list[int]:
    there = trace.steps.iteration.tolist()
    if not there:
        raise AnalysisError(f"{trace.name} has no step, so there is nothing to draw")
    if asked is None:
        return sorted({there[0], there[len(there) // 2], there[-1]})
    chosen = list(number_list(asked, "iterations"))
    if not set(chosen) <= set(there):
        raise AnalysisError(
            f"iterations are numbers from {there[0]} to {there[-1]} with commas "
            f"between, but are {asked!r}: give --iterations {there[0]},{there[-1]}"
        )
    return chosen


def _refuse_earlier(output: Path, force: bool) -> None:
    if output.exists() and not output.is_dir():
        raise MoetrafficError(f"{output} is no folder: choose another with -o")
    validate_folder(output.absolute().parent, error=MoetrafficError)
    if not force and output.is_dir() and any(output.glob("*.png")):
        raise MoetrafficError(
            f"{output} holds pictures, which are not overwritten: choose another "
            "folder with -o, or give --force"
        )
