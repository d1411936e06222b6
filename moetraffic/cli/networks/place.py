"""``moetraffic place``: the traffic of a run under another expert placement."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Option

from moetraffic.cli.show import AllTables, AsJson, Force, Only, show
from moetraffic.files import validate_outputs
from moetraffic.patterns.placement import PLACEMENTS
from moetraffic.patterns.rules import ORDER
from moetraffic.report.console.options import TraceFile, trace_output
from moetraffic.result import Result
from moetraffic.trace import Trace
from moetraffic.trace.totals import totals


def place(
    trace: TraceFile,
    output: Path = trace_output(...),
    ep: Annotated[
        int | None,
        Option(
            help="Number of expert-parallel ranks.", min=1, show_default="the trace's"
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        Option(
            help="Number of ranks; the shards of consecutive ranks are joined.",
            min=1,
            show_default="the trace's",
        ),
    ] = None,
    placement: Annotated[
        str, Option(help=f"Placement of experts: {', '.join(PLACEMENTS)}.")
    ] = "contiguous",
    replicas: Annotated[
        int,
        Option(help="Number of further replicas, of the most loaded experts.", min=0),
    ] = 0,
    every: Annotated[
        int,
        Option(
            help="Compute a new placement after so many iterations, from the load of "
            "these; 0: once, from the load of the whole trace.",
            min=0,
        ),
    ] = 0,
    order: Annotated[
        str,
        Option(help="Order of the parallel axes over ranks, fastest-varying first."),
    ] = ORDER,
    tables: AllTables = False,
    only: Only = None,
    as_json: AsJson = False,
    force: Force = False,
) -> None:
    """Compute a run's traffic under another EP degree, placement or replication.

    Nothing is trained again: the tokens' choice of experts does not depend on the
    placement.

    Example: moetraffic place run.h5 --ep 2 --placement greedy --every 50 -o placed.h5
    """
    validate_outputs((output,), (trace,), force=force)
    from moetraffic.analysis.placement import place as place_experts
    from moetraffic.trace.what_if.loads import is_load, over_ranks

    with Trace.open(trace) as opened:
        given = opened
        if is_load(opened):
            given = over_ranks(opened, ep or ranks, needed=True)
        moved = place_experts(
            given,
            ep=ep,
            ranks=ranks,
            placement=placement,
            replicas=replicas,
            every=every,
            order=order,
        )
        moved.save(output, force=force)
        experts = moved.meta.experts
        before, after = asdict(totals(given)), asdict(totals(moved))
    rows = [
        {
            "file": str(path),
            "ranks": sums["ranks"],
            "ep": sums["ep"],
            "bytes": sums["bytes"],
            "bytes_between_ranks": sums["bytes_between_ranks"],
            "max_mean": sums["busiest_rank_over_mean"],
        }
        for path, sums in ((trace, before), (output, after))
    ]
    share = after["bytes_between_ranks"] / max(before["bytes_between_ranks"], 1)
    notes = []
    if after["ep"] == experts and not replicas:
        notes.append(
            "each rank holds one expert: no placement changes the busiest rank"
        )
    result = Result(
        verb="place",
        head=f"{output}: {trace.name} with {placement} placement, EP {after['ep']}",
        tables={"totals": rows},
        screen=("totals",),
        captions={"totals": "max/mean: token copies of the busiest rank over the mean"},
        verdict=(
            f"Ranks exchange {share:.1%} of the bytes of the captured placement; the "
            f"busiest receives {after['busiest_rank_over_mean']:.2f} times the mean "
            f"({before['busiest_rank_over_mean']:.2f} as captured).",
        ),
        notes=tuple(notes),
        data={"file": str(output), "before": before, "after": after},
    )
    show(result, tables=tables, only=only, as_json=as_json)
