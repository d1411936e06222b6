"""``moetraffic place``: the traffic of a run under another expert placement."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from moetraffic.errors import LayoutError
from moetraffic.patterns import ParallelLayout
from moetraffic.patterns.placement import PLACEMENTS
from moetraffic.patterns.placement import place as place_experts
from moetraffic.report.options import AsJson, Force, TraceFile, option
from moetraffic.tables import Table
from moetraffic.trace import Trace
from moetraffic.trace.hdf5.durable import refuse_output, refuse_own_input
from moetraffic.trace.relocation import Relocation, relocate
from moetraffic.trace.totals import totals

from .output import present


def place(
    trace: TraceFile,
    output: Annotated[Path, option("Trace to write.", "-o", "--output")],
    ep: Annotated[
        int | None,
        option("Number of expert-parallel ranks.", shown="the trace's", min=1),
    ] = None,
    ranks: Annotated[
        int | None,
        option(
            "Number of ranks; the shards of consecutive ranks are joined.",
            shown="the trace's",
            min=1,
        ),
    ] = None,
    placement: Annotated[
        str, option(f"Placement of experts: {', '.join(PLACEMENTS)}.")
    ] = "contiguous",
    replicas: Annotated[
        int, option("Number of further replicas, of the most loaded experts.", min=0)
    ] = 0,
    every: Annotated[
        int,
        option(
            "Compute a new placement after so many iterations, from the load of these; "
            "0: once, from the load of the whole trace.",
            min=0,
        ),
    ] = 0,
    order: Annotated[
        str, option("Order of the parallel axes over ranks, fastest-varying first.")
    ] = ParallelLayout().order,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Compute a run's traffic under another EP degree, placement or replication.

    Nothing is trained again: the tokens' choice of experts does not depend on the
    placement.

    Example: moetraffic place run.h5 --ep 2 --placement greedy --every 50 -o placed.h5
    """
    refuse_output(output, force=force)
    refuse_own_input(trace, output)
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
        sums = {"before": asdict(totals(opened)), "after": asdict(totals(moved))}
    columns = {
        "": "",
        "ranks": "",
        "EP": "",
        "all-to-all": "bytes",
        "between ranks": "bytes",
        "busiest rank over mean": ".3f",
    }
    fields = ("ranks", "ep", "bytes", "bytes_between_ranks", "busiest_rank_over_mean")
    rows = [
        (str(path), *(one[name] for name in fields))
        for path, one in zip((trace, output), sums.values(), strict=True)
    ]
    table = Table(columns=columns, rows=rows)
    present({"file": str(output), **sums}, table, as_json=as_json)


def _placed(name: str, replicas: int, load: Any, ranks: int) -> Any:
    if replicas > len(load) * (ranks - 1):
        raise LayoutError(
            f"a rank holds an expert only once, but {replicas} more replicas of "
            f"{len(load)} experts are more than {ranks} ranks can hold once: lower "
            f"--replicas to {len(load) * (ranks - 1)} at most"
        )
    return place_experts(name, load, ranks, len(load) + replicas)
