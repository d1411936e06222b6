"""``moetraffic schedule``: circuits for one run, time shifts for several on a link."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from moetraffic.errors import FabricError
from moetraffic.trace import PHASES, Trace
from moetraffic.trace.hdf5.durable import validate_outputs, write_whole
from moetraffic.trace.iterations import iteration_range
from moetraffic.units import bytes_per_second, seconds

from .choices import Iterations, Layers, layer_numbers, picture, refuse_idle
from .output import console, json_text, print_json

MEAN = "mean"
DEMANDS = ("line", "rate", "scaled")
CIRCUIT_OPTIONS = ("reconfigure", "matching", "matrices", "layers", "phase")
JOB_OPTIONS = ("demand", "tolerance", "plot")


def schedule(
    context: typer.Context,
    traces: Annotated[
        list[Path], typer.Argument(help="One trace: circuits. Several: time shifts.")
    ],
    capacity: Annotated[
        str, typer.Option(help="Of the link or circuit: 400Gbps, 50GB/s.")
    ] = "400Gbps",
    iterations: Iterations = None,
    demand: Annotated[
        str,
        typer.Option(
            help="What a job asks for, several traces. line: the whole link while an "
            "all-to-all is on; rate: the bytes as captured; scaled: the whole link "
            "for as long as the bytes take on it."
        ),
    ] = "line",
    tolerance: Annotated[
        float, typer.Option(help="Periods may be changed by this share, to fit.")
    ] = 0.02,
    reconfigure: Annotated[
        str, typer.Option(help="Time to set circuits, one trace: 10us, 15ms.")
    ] = "10us",
    matching: Annotated[
        str, typer.Option(help="max-min, max-weight, halving, any; one trace.")
    ] = "max-min",
    matrices: Annotated[
        str,
        typer.Option(
            help="The mean, or at most so many single ones, evenly spaced; one trace."
        ),
    ] = MEAN,
    layers: Layers = None,
    phase: Annotated[
        str, typer.Option(help=f"{', '.join(PHASES)}; one trace.")
    ] = PHASES[0],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="JSON to write, for a scheduler to read."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            callback=picture, help="Picture of the jobs, PNG; several traces."
        ),
    ] = None,
    force: Annotated[bool, typer.Option(help="Overwrite outputs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Schedule a run's all-to-alls on circuits, or runs beside each other on a link.

    Example: moetraffic schedule a.h5 b.h5 --capacity 400Gbps -o shifts.json
    """
    if len(traces) == 1:
        refuse_idle(
            context,
            JOB_OPTIONS,
            "one trace shares its link with none",
            error=FabricError,
        )
    else:
        refuse_idle(
            context,
            CIRCUIT_OPTIONS,
            "circuits are set for one trace",
            error=FabricError,
        )
    validate_outputs((output, plot), traces, force=force)
    rate = bytes_per_second(capacity)
    chosen = iteration_range(iterations)
    if len(traces) == 1:
        told = _circuits(
            traces[0],
            rate,
            seconds(reconfigure),
            {
                "layers": layer_numbers(layers),
                "phase": phase,
                "iterations": chosen,
                "matching": matching,
                "matrices": _matrices(matrices),
            },
            quiet=as_json,
        )
    else:
        told = _shifts(traces, rate, demand, tolerance, chosen, plot, quiet=as_json)
    if output is not None:
        write_whole(output, (json_text(told) + "\n").encode())
    if as_json:
        print_json(told)
        return
    written = [str(path) for path in (output, plot) if path is not None]
    if written:
        console.print(", ".join(written))


def _shifts(
    traces: list[Path],
    rate: float,
    demand: str,
    tolerance: float,
    iterations: range | None,
    plot: Path | None,
    *,
    quiet: bool,
) -> dict[str, Any]:
    """How the jobs of several traces best share one link."""
    if demand not in DEMANDS:
        raise FabricError(
            f"demand is one of {', '.join(DEMANDS)}, not {demand!r}: choose one"
        )
    if not 0 < tolerance < 0.5:
        raise FabricError(
            f"the tolerance is above 0 and below 0.5, but is {tolerance}: 0.02 changes "
            "periods by 2% at most"
        )
    from moetraffic.analysis.rhythm.typical_iteration import cadence
    from moetraffic.fabric import Job, compatibility
    from moetraffic.report import figures
    from moetraffic.report import schedule as report

    cadences, jobs = [], []
    for path in traces:
        with Trace.open(path) as opened:
            seen = cadence(
                opened,
                iterations=iterations,
                link_bytes_s=rate if demand == "scaled" else None,
            )
        cadences.append(seen)
        jobs.append(
            Job(
                name=str(path),
                period_s=seen.period_ns / 1e9,
                rate_bytes_s=seen.bytes_s if demand == "rate" else seen.on * rate,
            )
        )
    found = compatibility(jobs, capacity_bytes_s=rate, tolerance=tolerance)
    if not quiet:
        console.print(report.jobs_tables(jobs, cadences, found, capacity_bytes_s=rate))
    if plot is not None:
        source = f"Iterations as captured, demand: {demand}; dashed: the capacity"
        picture = report.jobs_figure(jobs, found, capacity_bytes_s=rate, source=source)
        figures.save(picture, plot)
    return report.jobs_as_dict(
        jobs, cadences, found, capacity_bytes_s=rate, demand=demand
    )


def _circuits(
    path: Path,
    rate: float,
    delay: float,
    asked: dict[str, Any],
    *,
    quiet: bool,
) -> dict[str, Any]:
    """Circuit schedules of each layer's all-to-all of one phase."""
    from moetraffic.analysis.network.circuit_plan import circuits
    from moetraffic.report import schedule as report

    with Trace.open(path) as opened:
        served = circuits(opened, **asked)
    limits = {"capacity_bytes_s": rate, "reconfigure_s": delay}
    if not quiet:
        console.print(report.circuits_table(served, **limits))
    return {"file": str(path), **report.circuits_as_dict(served, **limits)}


def _matrices(text: str) -> int | None:
    """How many single matrices; None for their mean."""
    if text == MEAN:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise FabricError(
            f"matrices are {MEAN}, or at most how many single ones, not {text!r}: give "
            "--matrices 16"
        )
    return int(text)
