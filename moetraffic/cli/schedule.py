"""``moetraffic schedule``: circuits for one run, time shifts for several on a link."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from moetraffic.errors import AnalysisError, FabricError
from moetraffic.report.units import bytes_per_second, seconds
from moetraffic.trace import ALL_TO_ALL, PHASES, Trace, WireForm
from moetraffic.trace.durable import refuse_output, write_whole
from moetraffic.trace.iterations import iteration_range

from .output import console, json_text

if TYPE_CHECKING:
    from moetraffic.report.schedule import Served

DEMANDS = ("line", "rate", "scaled")
CIRCUIT_OPTIONS = ("reconfigure", "matching", "of", "matrices", "layer", "phase")
JOB_OPTIONS = ("demand", "tolerance", "plot")


def schedule(
    context: typer.Context,
    traces: Annotated[
        list[Path], typer.Argument(help="One trace: circuits. Several: time shifts.")
    ],
    capacity: Annotated[
        str, typer.Option(help="Of the link or circuit: 400Gbps, 50GB/s.")
    ] = "400Gbps",
    iterations: Annotated[
        str | None, typer.Option(help="Only iterations A:B, A up to, not with, B.")
    ] = None,
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
    of: Annotated[
        str, typer.Option(help="The mean matrix, or each; one trace.")
    ] = "mean",
    matrices: Annotated[
        int, typer.Option(help="With --of each, at most so many, evenly spaced.")
    ] = 16,
    layer: Annotated[
        list[int] | None, typer.Option(help="MoE layer, one trace; may be repeated.")
    ] = None,
    phase: Annotated[
        str, typer.Option(help=f"{', '.join(PHASES)}; one trace.")
    ] = PHASES[0],
    json_file: Annotated[
        Path | None, typer.Option("--json", help="File for a scheduler to read.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Picture of the jobs, PNG; several traces.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Overwrite the files.")] = False,
) -> None:
    """Schedule a run's all-to-alls on circuits, or runs beside each other on a link.

    Example: moetraffic schedule a.h5 b.h5 --capacity 400Gbps --json shifts.json
    """
    _refuse_options(context, JOB_OPTIONS if len(traces) == 1 else CIRCUIT_OPTIONS)
    for path in (json_file, plot):
        if path is not None:
            refuse_output(path, force=force)
    if json_file is not None and json_file == plot:
        raise FabricError(f"{plot} cannot hold both: give --json and --plot two names")
    rate = bytes_per_second(capacity)
    chosen = iteration_range(iterations)
    if len(traces) == 1:
        told = _circuits(
            traces[0],
            rate,
            seconds(reconfigure),
            matching,
            of,
            matrices,
            layer or [],
            phase,
            chosen,
        )
    else:
        told = _shifts(traces, rate, demand, tolerance, chosen, plot)
    if json_file is not None:
        write_whole(json_file, (json_text(told) + "\n").encode())
    written = [str(path) for path in (json_file, plot) if path is not None]
    if written:
        console.print(", ".join(written))


def _refuse_options(context: typer.Context, others: tuple[str, ...]) -> None:
    """Options of the other kind of schedule would do nothing."""
    for name in others:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            kind = "one trace" if others is CIRCUIT_OPTIONS else "several traces"
            raise FabricError(
                f"{name} is for {kind}: leave out --{name}, or change the traces"
            )


def _shifts(
    traces: list[Path],
    rate: float,
    demand: str,
    tolerance: float,
    iterations: range | None,
    plot: Path | None,
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
    from moetraffic.analysis.cadence import cadence
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
    matching: str,
    of: str,
    most: int,
    layers: list[int],
    phase: str,
    iterations: range | None,
) -> dict[str, Any]:
    """Circuit schedules of each layer's all-to-all of one phase."""
    from moetraffic.report import schedule as report

    if of not in ("mean", "each"):
        raise FabricError(f"of is mean or each, not {of!r}: choose one")
    if most < 1:
        raise FabricError(f"matrices are 1 or more, not {most}: raise --matrices")
    if phase not in PHASES:
        raise FabricError(
            f"the phase is one of {', '.join(PHASES)}, not {phase!r}: choose one"
        )
    with Trace.open(path) as opened:
        served = _served(opened, matching, of, most, layers, phase, iterations)
    limits = {"capacity_bytes_s": rate, "reconfigure_s": delay}
    console.print(report.circuits_table(served, **limits))
    return {"file": str(path), **report.circuits_as_dict(served, **limits)}


def _served(
    trace: Trace,
    matching: str,
    of: str,
    most: int,
    layers: list[int],
    phase: str,
    iterations: range | None,
) -> list[Served]:
    """Decompose the mean matrix, or some of them, of every exchange asked for."""
    from moetraffic.fabric import decompose
    from moetraffic.report.schedule import Served

    # without phases (another framework's run) every all-to-all is an exchange
    named = any(s.phase for s in trace.sites)
    groups: dict[tuple[int, str, int], list[int]] = {}
    for number, site in enumerate(trace.sites):
        if site.operation != ALL_TO_ALL or site.wire == WireForm.UNKNOWN:
            continue
        if (named and site.phase != phase) or (layers and site.layer not in layers):
            continue
        name = site.phase or site.label or ALL_TO_ALL
        groups.setdefault((site.layer, name, site.group), []).append(number)
    training = trace.find(operation=ALL_TO_ALL, iterations=iterations)
    found = []
    for (at, name, group), sites in sorted(groups.items()):
        mine = training[np.isin(trace.occurrences.site[training], sites)]
        mine = trace.complete(mine)
        if not len(mine):
            continue
        if of == "each":
            spaced = np.linspace(0, len(mine) - 1, min(most, len(mine)))
            wire = trace.wire(mine[np.rint(spaced).astype(np.int64)])
        else:
            wire = np.rint(_mean(trace, mine)).astype(np.int64)[None]
        for one in wire:
            np.fill_diagonal(one, 0)  # what a rank keeps takes no circuit
        found.append(
            Served(
                layer=at,
                name=name,
                ranks=trace.groups[group].ranks,
                about=f"{len(wire)} of {len(mine)}"
                if of == "each"
                else f"mean of {len(mine)}",
                schedules=tuple(decompose(one, matching=matching) for one in wire),
            )
        )
    if not found:
        raise AnalysisError(
            f"circuits serve all-to-alls whose bytes are known, but {trace.name} has "
            f"none of {phase}"
            + (f" in layers {layers}" if layers else "")
            + f": its MoE layers are {list(trace.layers)}"
        )
    return found


def _mean(trace: Trace, occurrences: Any, at_once: int = 256) -> Any:
    """Mean bytes of all-to-alls, ``[W, W]``."""
    total = sum(
        trace.wire(occurrences[first : first + at_once]).sum(axis=0)
        for first in range(0, len(occurrences), at_once)
    )
    return total / len(occurrences)
