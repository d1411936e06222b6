"""``moetraffic place``: the traffic of a run under another expert placement."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from moetraffic.cli.output import Printing, printed
from moetraffic.files import validate_outputs
from moetraffic.patterns import Layout
from moetraffic.patterns.placement import PLACEMENTS
from moetraffic.report.console.options import (
    Force,
    TraceFile,
    option,
    trace_output,
)
from moetraffic.tables import Table
from moetraffic.trace import Trace
from moetraffic.trace.totals import totals
from moetraffic.units import byte_size

PARTS = ("totals",)


@printed(PARTS)
def place(
    trace: TraceFile,
    output: Path = trace_output(...),
    ep: int | None = option(
        None, "Number of expert-parallel ranks.", shown="the trace's", min=1
    ),
    ranks: int | None = option(
        None,
        "Number of ranks; the shards of consecutive ranks are joined.",
        shown="the trace's",
        min=1,
    ),
    placement: str = option(
        "contiguous", f"Placement of experts: {', '.join(PLACEMENTS)}."
    ),
    replicas: int = option(
        0, "Number of further replicas, of the most loaded experts.", min=0
    ),
    every: int = option(
        0,
        "Compute a new placement after so many iterations, from the load of these; "
        "0: once, from the load of the whole trace.",
        min=0,
    ),
    order: str = option(
        Layout().order,
        "Order of the parallel axes over ranks, fastest-varying first.",
    ),
    force: Force = False,
    *,
    printing: Printing,
) -> None:
    """Compute a run's traffic under another EP degree, placement or replication.

    Nothing is trained again: the tokens' choice of experts does not depend on the
    placement.

    Example: moetraffic place run.h5 --ep 2 --placement greedy --every 50 -o placed.h5
    """
    validate_outputs((output,), (trace,), force=force)
    from moetraffic.analysis.placement import place as place_experts

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
        experts = moved.meta.experts
        sums = {"before": asdict(totals(opened)), "after": asdict(totals(moved))}
    columns = {
        **{"": "", "ranks": "", "EP": "", "all-to-all": "bytes"},
        **{"between ranks": "bytes", "busiest rank over mean": ".3f"},
    }
    fields = ("ranks", "ep", "bytes", "bytes_between_ranks", "busiest_rank_over_mean")
    rows = [
        (str(path), *(one[name] for name in fields))
        for path, one in zip((trace, output), sums.values(), strict=True)
    ]
    table = Table(columns=columns, rows=rows)
    before, after = sums.values()
    now, then = (one["busiest_rank_over_mean"] for one in (after, before))
    share = after["bytes_between_ranks"] / max(before["bytes_between_ranks"], 1)
    line = (
        f"Between ranks: {byte_size(after['bytes_between_ranks'])} with EP "
        f"{after['ep']} on {after['ranks']} ranks, {share:.1%} of the "
        f"{byte_size(before['bytes_between_ranks'])} captured with EP "
        f"{before['ep']}; the busiest rank receives {now:.3f} times the mean of all "
        f"ranks, rank-local copies included, mean over dispatches (captured: "
        f"{then:.3f})."
    )
    if after["ep"] == experts and not replicas:
        line += " Each rank holds one expert, so no placement changes this ratio."
    printing.present(
        {"file": str(output), **sums},
        line,
        parts={"totals": [table]},
        written=(output,),
    )
