"""Dry run: calls, bytes, buffers and lower bound of a replay that is not started.

Nothing is sent, no rank is started, and torch is not imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moetraffic.replay.plan.operations import KINDS, Plan
from moetraffic.result import Result
from moetraffic.trace.trace import Trace
from moetraffic.units import byte_size, duration

from .bound import bounds_s, described, network_of
from .summary import counted, name_of

if TYPE_CHECKING:
    from moetraffic.replay.options import Options


def dry_run(options: Options, trace: Trace, plan: Plan) -> Result:
    """Compute operations, buffers and the lower bound of a replay.

    ``trace`` is the one of the plan, rescaled.

    Raises
    ------
    MoetrafficError
        If the network, or the table, does not fit the plan.
    """
    rows: dict[str, list[dict[str, Any]]] = {
        "kinds": [
            {"call": name_of(name), **totals(plan, plan.kind == number)}
            for number, name in enumerate(KINDS)
            if (plan.kind == number).any()
        ],
        "streams": [
            {"stream": name, **totals(plan, plan.stream == number)}
            for number, name in enumerate(plan.streams)
        ],
        "groups": [
            {
                "group": number,
                "members": len(plan.groups[number]),
                "calls": int((plan.group == number).sum()),
            }
            for number in np.unique(plan.group).tolist()
        ],
        "ranks": rank_rows(plan),
    }
    buffers = [row["buffer_bytes"] for row in rows["ranks"]]
    passes = [f"{options.repeat} timed run{'s' * (options.repeat > 1)}"]
    if options.verifies:
        passes.insert(0, "a verification")
    if options.pairs:
        passes.append(f"{options.pairs} x 3 passes with and without background traffic")
    sentences = [
        f"Passes: {', '.join(passes)}.",
        f"Buffers take up to {byte_size(max(buffers))} on a rank, "
        f"{byte_size(sum(buffers))} in all.",
    ]
    data: dict[str, Any] = {
        "source": plan.source,
        "ranks": plan.world,
        "iterations": len(np.unique(plan.iteration)),
        "digest": plan.digest,
        "left_out": dict(plan.left_out),
        "operations": {row["call"]: row["calls"] for row in rows["kinds"]},
        "memory": sum(buffers),
    }
    network = network_of(options.topology, options.capacity, plan.world)
    if network is not None:
        each, whole = bounds_s(trace, plan, network)
        data |= {"network": described(network), "pass_bound_s": whole}
        for number, row in enumerate(np.unique(plan.kind).tolist()):
            rows["kinds"][number]["bound_s"] = float(each[plan.kind == row].sum())
        sentences.append(
            f"A pass takes at least {duration(whole)} on {described(network)}."
        )
    notes = list(plan.notes)
    if plan.left_out:
        notes.append(f"not replayed: {counted(plan.left_out)}")
    return Result(
        verb="replay",
        head=f"dry run of {plan.source}: {len(plan):,} operations, "
        f"{data['iterations']:,} iterations, {plan.world:,} ranks",
        tables=rows,
        screen=("kinds", "streams") if len(plan.streams) > 1 else ("kinds",),
        verdict=tuple(sentences),
        notes=tuple(dict.fromkeys(notes)),
        data=data,
    )


def totals(plan: Plan, rows: Any) -> dict[str, int]:
    """Count the calls and bytes of some operations."""
    return {
        "calls": int(np.count_nonzero(rows)),
        "bytes": int(plan.total_bytes[rows].sum()),
        "bytes_between_ranks": int(plan.network_bytes[rows].sum()),
        "largest_bytes": int(plan.largest_bytes[rows].max(initial=0)),
    }


def rank_rows(plan: Plan) -> list[dict[str, Any]]:
    """List calls, bytes sent and buffers of each rank, at most, in bytes."""
    calls = plan.by_rank(np.ones(len(plan), np.int64))
    buffers = np.zeros(plan.world, np.int64)
    for stream in range(len(plan.streams)):
        largest = np.zeros(plan.world, np.int64)
        for group in np.unique(plan.group[plan.stream == stream]).tolist():
            ranks, rows = list(plan.groups[group]), plan.group == group
            most = plan.largest_bytes[rows].max()
            largest[ranks] = np.maximum(largest[ranks], most)
        buffers += 2 * largest  # one to send and one to receive, of each stream
    return [
        {"rank": rank, "calls": n, "bytes": sent, "buffer_bytes": held}
        for rank, (n, sent, held) in enumerate(
            zip(*(x.tolist() for x in (calls, plan.rank_bytes, buffers)), strict=True)
        )
    ]
