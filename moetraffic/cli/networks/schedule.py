"""``moetraffic schedule``: circuits for one run, time shifts for several on a link."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from moetraffic.cli.output import Printing, printed
from moetraffic.errors import FabricError
from moetraffic.files import validate_outputs
from moetraffic.report.console.options import (
    Force,
    Iterations,
    option,
    picture,
    selection,
    trace_argument,
)
from moetraffic.trace import PHASES, Trace
from moetraffic.units import bytes_per_second, seconds

MEAN = "mean"
CIRCUITS, SHIFTS = "Circuits of one trace", "Time shifts of several traces"
DEMANDS = ("line", "rate", "scaled")


PARTS = ("circuits", "jobs")
Shown = tuple[dict[str, Any], list[str], Any, Any]
"""Plain data, sentences, table, and chart or None."""


def _matrices(text: str) -> int | None:
    """Read the number of single matrices; None for their mean."""
    if text == MEAN:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise FabricError(
            f"matrices are {MEAN} or the largest number of single ones, not {text!r}: "
            "give --matrices 16"
        )
    return int(text)


JobsPlot = picture("PNG, PDF or SVG picture of the jobs to write.", panel=SHIFTS)


@printed(PARTS, plot=JobsPlot)
def schedule(
    traces: Annotated[
        list[Path],
        trace_argument("One trace for a circuit schedule; several for time shifts."),
    ],
    capacity: float = option(
        "400Gbps",
        "Capacity of the link or circuit: 400Gbps, 50GB/s.",
        read=bytes_per_second,
    ),
    iterations: Iterations = None,
    demand: str = option(
        "line",
        "Demand of a job. line: the whole link during an all-to-all; rate: the "
        "captured bytes; scaled: the whole link for the time that the bytes need.",
        choices=DEMANDS,
        panel=SHIFTS,
    ),
    tolerance: float = option(
        0.02, "Share by which periods may change to fit together.", panel=SHIFTS
    ),
    reconfigure: float = option(
        "10us",
        "Reconfiguration time of circuits: 10us, 15ms.",
        read=seconds,
        panel=CIRCUITS,
    ),
    matching: str = option(
        "max-min", "Matching: max-min, max-weight or halving.", panel=CIRCUITS
    ),
    matrices: int | None = option(
        MEAN,
        "Schedule the mean matrix, or at most so many single ones, evenly spaced.",
        read=_matrices,
        panel=CIRCUITS,
    ),
    layers: list[str] | None = option(
        None,
        "Use only the MoE layers of a list: 1,3:6.",
        "--layers",
        panel=CIRCUITS,
    ),
    phase: str = option(PHASES[0], f"Phase: {', '.join(PHASES)}.", panel=CIRCUITS),
    output: Path | None = option(
        None, "JSON file to write, for a scheduler.", "-o", "--output"
    ),
    force: Force = False,
    *,
    printing: Printing,
) -> None:
    """Schedule one run's all-to-alls on circuits, or shift several runs on one link.

    Example: moetraffic schedule a.h5 b.h5 --capacity 400Gbps -o shifts.json
    """
    single = len(traces) == 1
    validate_outputs((output, printing.plot), traces, force=force)
    if single:
        asked = selection(layers, iterations, phase)
        asked |= {"matching": matching, "matrices": matrices}
        data, lines, table, chart = _circuits(traces[0], capacity, reconfigure, asked)
    else:
        data, lines, table, chart = _shifts(
            traces, capacity, demand, tolerance, iterations
        )
    parts = {PARTS[not single]: [table]}
    printing.present(data, *lines, parts=parts, output=output, chart=chart)


def _shifts(
    traces: list[Path],
    rate: float,
    demand: str,
    tolerance: float,
    iterations: range | None,
) -> Shown:
    """Find the time shifts with which the jobs of several traces share one link."""
    if not 0 < tolerance < 0.5:
        raise FabricError(
            f"the tolerance is above 0 and below 0.5, but is {tolerance}: 0.02 changes "
            "periods by 2% at most"
        )
    from moetraffic.analysis.typical import typical_iteration
    from moetraffic.fabric import Job, compatibility
    from moetraffic.report.results import schedule as report

    cadences, jobs = [], []
    for path in traces:
        with Trace.open(path) as opened:
            seen = typical_iteration(
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
    source = f"Iterations as captured, demand: {demand}; dashed: the capacity"
    drawn = report.jobs_figure(jobs, found, capacity_bytes_s=rate, source=source)
    told = report.jobs_as_dict(
        jobs, cadences, found, capacity_bytes_s=rate, demand=demand
    )
    return told, report.jobs_sentences(told), report.jobs_table(told), drawn


def _circuits(path: Path, rate: float, delay: float, asked: dict[str, Any]) -> Shown:
    """Compute circuit schedules of each layer's all-to-all of one phase."""
    from moetraffic.policies.circuits.run_schedule import circuits
    from moetraffic.report.results import schedule as report

    with Trace.open(path) as opened:
        served, when = circuits(opened, **asked), opened.iterations
    told = {"file": str(path), "digest": opened.digest}
    told |= report.circuits_as_dict(served, capacity_bytes_s=rate, reconfigure_s=delay)
    lines = report.circuits_sentences(told) + report.planned_sentence(served, when)
    return told, lines, report.circuits_table(told), None
