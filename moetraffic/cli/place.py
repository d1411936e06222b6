"""``moetraffic place``: the traffic of a captured run with its experts elsewhere."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from moetraffic.patterns import ParallelLayout
from moetraffic.patterns.placement import PLACEMENTS
from moetraffic.trace import Trace
from moetraffic.trace.hdf5.durable import validate_other_than_input, validate_output
from moetraffic.trace.totals import totals
from moetraffic.units import byte_size

from .output import console, print_json


def place(
    trace: Annotated[Path, typer.Argument(help="Trace file.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Trace to write.")],
    ep: Annotated[
        int | None,
        typer.Option(help="Expert-parallel ranks.", show_default="the trace's"),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            help="Ranks; shards of neighbors are joined.", show_default="the trace's"
        ),
    ] = None,
    placement: Annotated[
        str, typer.Option(help=f"{', '.join(PLACEMENTS)}.")
    ] = "contiguous",
    replicas: Annotated[
        int, typer.Option(help="Further replicas, for the experts of most load.")
    ] = 0,
    every: Annotated[
        int,
        typer.Option(
            help="Place anew after so many iterations, by the load of these; 0: once, "
            "by the load of the whole trace."
        ),
    ] = 0,
    order: Annotated[
        str, typer.Option(help="Order of the parallel axes over ranks.")
    ] = ParallelLayout().order,
    force: Annotated[bool, typer.Option(help="Overwrite the output.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Derive the matrices of another EP degree, placement or expert replication.

    Nothing is trained again: what tokens ask for does not depend on where experts lie.

    Example: moetraffic place run.h5 --ep 2 --placement greedy --every 50 -o placed.h5
    """
    validate_output(output, force=force)
    validate_other_than_input(trace, output)
    from moetraffic.analysis.expert_placement import place as place_experts

    with Trace.open(trace) as opened:
        moved = place_experts(
            opened,
            ep=ep,
            ranks=ranks,
            placement=placement,
            replicas=replicas,
            every=every,
            order=order,
        )
        moved.save(output, force=force)
        told = {
            "file": str(output),
            "before": asdict(totals(opened)),
            "after": asdict(totals(moved)),
        }
    if as_json:
        print_json(told)
        return
    table = Table(box=None, header_style="bold", padding=(0, 1))
    for column in (
        "",
        "ranks",
        "EP",
        "all-to-all",
        "between ranks",
        "busiest rank over mean",
    ):
        table.add_column(column, justify="left" if not column else "right")
    for name in ("before", "after"):
        one = told[name]
        assert isinstance(one, dict)
        table.add_row(
            str(trace if name == "before" else output),
            str(one["ranks"]),
            str(one["ep"]),
            byte_size(one["bytes"]),
            byte_size(one["bytes_between_ranks"]),
            f"{one['busiest_rank_over_mean']:.3f}",
        )
    console.print(table)
