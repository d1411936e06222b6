"""Tables of the times of a run: shares of each rank's steps, and calls by operation."""

from __future__ import annotations

from typing import Any

import numpy as np

from moetraffic.analysis.evenness import stage_means
from moetraffic.analysis.exchange import training_steps as steps_before
from moetraffic.analysis.measures import ratio
from moetraffic.arrays import Float64, Int64
from moetraffic.errors import AnalysisError
from moetraffic.trace import UNKNOWN_TIME, Trace

from .breakdown import PARTS, Breakdown, breakdown
from .calibration import WARM_UP
from .completion import completion, parts
from .traffic import BLOCK

MOST_TIMES = 1 << 24
"""Maximum number of calls times ranks of a time breakdown, to bound memory."""

Row = dict[str, Any]


def time_tables(
    trace: Trace, *, iterations: range | None = None, notes: list[str]
) -> dict[str, list[Row]]:
    """Compute the tables ``times``, ``calls`` and ``stages`` of a run's times.

    ``times`` has the shares of each rank's training steps, ``calls`` the calls by
    operation, and ``stages`` the rows of :func:`time_stages`.  All are empty, and the
    notes say why, without times.
    """
    if trace.meta.virtual:
        notes.append("no times: the trace is virtual: no time was measured")
        return {}
    origin, starts = trace.meta.origin, trace.steps.start
    if origin != "captured" and (starts == UNKNOWN_TIME).all():
        notes.append(f"no times of steps: the {origin} run has none")
        return {"calls": call_rows(trace, iterations)}
    number = len(trace.find(iterations=iterations, kind=None))
    if number * trace.meta.world > MOST_TIMES:
        notes.append(
            f"no times: the times of {number:,} calls of {trace.meta.world} ranks are "
            "too many to hold, choose fewer iterations"
        )
        return {}
    tables = {"calls": call_rows(trace, iterations)}
    try:
        measured = breakdown(trace, iterations)
    except AnalysisError as error:
        notes.append(f"no times of steps: {error}")
        return tables
    shares = measured.shares.tolist()
    return tables | {
        "times": [
            {"rank": rank, **dict(zip(PARTS, row, strict=True))}
            for rank, row in enumerate(shares)
        ],
        "stages": time_stages(trace, measured),
    }


def step_curves(trace: Trace, measured: Breakdown) -> dict[str, Float64]:
    """Compute step time, and shares of transfer and waiting, of training steps ``[S]``.

    Step times are means over ranks, s; transfer and waiting are shares of the ranks'
    time in a step.  They are NaN in the first WARM_UP steps of a run, if it has more.
    """
    total = measured.ns.sum(axis=(1, 2)).astype(np.float64)
    later = ~np.isin(measured.iteration, trace.iterations[:WARM_UP])
    if later.any():
        total = np.where(later, total, np.nan)
    by_part = dict(zip(PARTS, measured.ns.sum(axis=1).T, strict=True))
    return {
        "step_time": ratio(total, 1e9 * measured.known.sum(axis=1)),
        "transfer": ratio(by_part["transfer"], total),
        "waiting": ratio(by_part["waiting"], total),
    }


def time_stages(trace: Trace, measured: Breakdown) -> list[Row]:
    """List the means of :func:`step_curves` early, in the middle and late in a run."""
    steps = steps_before(trace, measured.iteration)
    others = {"balanced": np.nan, "worst": np.nan, "worst_at": -1}
    return [
        {"layer": -1, "group": -1, "measure": name} | stage_means(steps, curve) | others
        for name, curve in step_curves(trace, measured).items()
    ]


def call_rows(trace: Trace, iterations: range | None = None) -> list[Row]:
    """List the calls by operation: number, bytes, transfer times and waiting.

    Start-up calls and calls without times are left out.
    """
    calls = completion(trace, iterations)
    table = []
    for by, name, rows in parts(trace, calls):
        if by != "operation":
            continue
        own = calls[rows]
        p50, p99 = np.percentile(own["transfer_s"], [50, 99]).tolist()
        waiting = ratio(own["wait_s"].sum(), own["inside_s"].sum())
        table.append(
            {
                **{"operation": name, "calls": len(own)},
                "bytes": given_bytes(trace, own["occurrence"]),
                **{"transfer_p50": p50, "transfer_p99": p99},
                "waiting_in_calls": float(waiting),
            }
        )
    return table


def given_bytes(trace: Trace, calls: Int64) -> int | None:
    """Sum the bytes that all ranks give to calls ``[n]``; None if some are unknown."""
    if (trace.occurrences.matrix[calls] < 0).any():
        return None
    site, total = trace.occurrences.site[calls], 0
    for number in np.unique(site).tolist():
        own = calls[site == number]
        read = trace.wire if trace.square[number] else trace.volume
        for block in np.array_split(own, -(-len(own) // BLOCK)):
            total += int(read(block).sum())
    return total
