"""Result of a benchmark: measurements, fits, facts of the stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moetraffic.patterns.bandwidth import BandwidthTable, samples
from moetraffic.report.views.bandwidth import fit_rows, fit_sentences
from moetraffic.result import Result

from .sweep import Sweep


def bench_result(
    sweep: Sweep,
    rows: Sequence[Mapping[str, Any]],
    nodes: Sequence[str],
    stack: Sequence[Mapping[str, str]],
) -> Result:
    """Make the result of a benchmark from the rows of its calls."""
    wrong = sum(max(row["wrong"], 0) for row in rows)
    measured = samples([{**row, "wrong": 0} for row in rows], "bench")
    fits = fit_rows(BandwidthTable(measured))
    hosts = len(set(nodes))
    checked = "every element was right" if sweep.check else "no element was checked"
    if wrong:
        checked = f"{wrong:,} elements were wrong: check the network and the backend"
    return Result(
        verb="bench",
        head=f"{sweep.backend}, {len(nodes)} ranks on {hosts} host{'s' * (hosts > 1)}, "
        f"{sweep.iterations} iterations after {sweep.warm_up} of warm-up",
        tables={
            "fits": fits,
            "measurements": [dict(row) for row in rows],
            "stack": [dict(row) for row in stack],
        },
        screen=("fits",),
        verdict=(f"{checked[0].upper()}{checked[1:]}.", *fit_sentences(fits)),
        data={
            "backend": sweep.backend,
            "ranks": len(nodes),
            "nodes": list(nodes),
            "iterations": sweep.iterations,
            "warm_up": sweep.warm_up,
            "check": sweep.check,
            "wrong": wrong,
        },
    )
