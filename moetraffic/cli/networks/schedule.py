"""``moetraffic schedule``: circuits for one run, time shifts for several on a link."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from moetraffic.cli.show import (
    AllTables,
    AsJson,
    Force,
    NoTitle,
    Only,
    Output,
    Plot,
    Width,
    draw,
    show,
)
from moetraffic.errors import FabricError
from moetraffic.report.console.options import (
    Iterations,
    Layers,
    Phase,
    option,
    selection,
    trace_argument,
)
from moetraffic.trace import Trace
from moetraffic.units import bytes_per_second, seconds

MEAN = "mean"
CIRCUITS, SHIFTS = "Circuits of one trace", "Time shifts of several traces"
DEMANDS = ("line", "rate", "scaled")


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


def schedule(
    traces: Annotated[
        list[Path],
        trace_argument("One trace for a circuit schedule; several for time shifts."),
    ],
    capacity: Annotated[
        str, Option(help="Capacity of the link or circuit: 400Gbps, 50GB/s.")
    ] = "400Gbps",
    iterations: Iterations = None,
    demand: Annotated[
        str,
        option(
            ...,
            "Demand of a job. line: the whole link during an all-to-all; rate: the "
            "captured bytes; scaled: the whole link for the time that the bytes need.",
            choices=DEMANDS,
            panel=SHIFTS,
        ),
    ] = "line",
    tolerance: Annotated[
        float,
        Option(
            help="Share by which periods may change to fit together.",
            rich_help_panel=SHIFTS,
        ),
    ] = 0.02,
    reconfigure: Annotated[
        str,
        Option(
            help="Reconfiguration time of circuits: 10us, 15ms.",
            rich_help_panel=CIRCUITS,
        ),
    ] = "10us",
    matching: Annotated[
        str, Option(help="Matching: max-min or halving.", rich_help_panel=CIRCUITS)
    ] = "max-min",
    matrices: Annotated[
        str,
        Option(
            help="Schedule the mean matrix, or at most so many single ones, evenly "
            "spaced.",
            rich_help_panel=CIRCUITS,
        ),
    ] = MEAN,
    layers: Layers = None,
    phase: Phase = "dispatch",
    plot: Plot = None,
    width: Width = None,
    no_title: NoTitle = False,
    tables: AllTables = False,
    only: Only = None,
    as_json: AsJson = False,
    output: Output = None,
    force: Force = False,
) -> None:
    """Schedule one run's all-to-alls on circuits, or shift several runs on one link.

    Example: moetraffic schedule a.h5 b.h5 --capacity 400Gbps -o shifts.json
    """
    rate = bytes_per_second(capacity)
    asked: dict[str, Any] = {
        **{"tables": tables, "only": only, "as_json": as_json},
        **{"output": output, "force": force},
    }
    if len(traces) == 1:
        if plot is not None:
            raise FabricError(
                "the picture is of jobs on one link, but one trace is given: leave out "
                "--plot, or give several traces"
            )
        from moetraffic.policies.schedule import circuits
        from moetraffic.report.views.schedule import circuits_result

        with Trace.open(traces[0]) as opened:
            plans = circuits(
                opened,
                **selection(layers, iterations, phase),
                matching=matching,
                matrices=_matrices(matrices),
            )
            digest = opened.digest
        result = circuits_result(
            plans,
            file=str(traces[0]),
            digest=digest,
            capacity_bytes_s=rate,
            reconfigure_s=seconds(reconfigure),
        )
        show(result, **asked)
        return
    if not 0 < tolerance < 0.5:
        raise FabricError(
            f"the tolerance is above 0 and below 0.5, but is {tolerance}: 0.02 changes "
            "periods by 2% at most"
        )
    from moetraffic.analysis.typical import typical_iteration
    from moetraffic.fabric import Job, compatibility
    from moetraffic.report.views.schedule import jobs_chart, jobs_result

    cadences, jobs = [], []
    for path in traces:
        with Trace.open(path) as opened:
            seen = typical_iteration(
                opened,
                iterations=iterations,
                link_bytes_s=rate if demand == "scaled" else None,
            )
        cadences.append(seen)
        bytes_s = seen.bytes_s if demand == "rate" else seen.on * rate
        period_s = seen.period_ns / 1e9
        jobs.append(Job(name=str(path), period_s=period_s, rate_bytes_s=bytes_s))
    best = compatibility(jobs, capacity_bytes_s=rate, tolerance=tolerance)
    link: dict[str, Any] = {"capacity_bytes_s": rate, "demand": demand}
    show(jobs_result(jobs, cadences, best, **link), **asked)
    if plot is not None:
        chart = jobs_chart(jobs, best, **link)
        draw(chart, plot, width=width, no_title=no_title, as_json=as_json)
