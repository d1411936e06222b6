"""``moetraffic place``: the traffic of a captured run with its experts elsewhere."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from moetraffic.errors import LayoutError
from moetraffic.patterns import ParallelLayout
from moetraffic.patterns.placement import PLACEMENTS
from moetraffic.patterns.placement import place as place_experts
from moetraffic.trace import Trace
from moetraffic.trace.hdf5.durable import validate_other_than_input, validate_output
from moetraffic.trace.relocation import Relocation, relocate
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
    for name, least, value in (
        ("replicas", 0, replicas),
        ("every", 0, every),
        ("ranks", 1, 1 if ranks is None else ranks),
        ("ep", 1, 1 if ep is None else ep),
    ):
        if value < least:
            raise LayoutError(
                f"{name} must be at least {least}, but is {value}: raise --{name}"
            )
    with Trace.open(trace) as opened:
        world = opened.meta.world if ranks is None else ranks
        layout = ParallelLayout(
            dp=world, ep=opened.meta.ep if ep is None else ep, order=order
        )
        moved = relocate(
            opened,
            Relocation(
                ranks=world,
                groups=layout.groups("ep"),
                place=partial(_placed, placement, replicas),
                every=every,
                source=f"{trace.name}: {placement} placement",
            ),
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


def _placed(name: str, replicas: int, load: Any, ranks: int) -> Any:
    if replicas > len(load) * (ranks - 1):
        raise LayoutError(
            f"no rank needs an expert twice, but {replicas} more replicas of "
            f"{len(load)} experts are more than {ranks} ranks can hold once: lower "
            f"--replicas to {len(load) * (ranks - 1)} at most"
        )
    return place_experts(name, load, ranks, len(load) + replicas)
