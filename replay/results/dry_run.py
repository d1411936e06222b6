"""Dry run: calls, bytes, buffers and lower bound of a replay that is not started.

Nothing is sent, no rank is started, and torch is not imported.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moetraffic.arrays import Int64, Integer
from moetraffic.errors import ReplayError
from moetraffic.files import replacing, write_errors
from moetraffic.replay.plan.operations import KINDS, Plan
from moetraffic.replay.plan.program import programs
from moetraffic.result import Result
from moetraffic.trace.model import ALL_TO_ALL
from moetraffic.trace.trace import Trace
from moetraffic.units import byte_size, duration

from .bound import bounds_s, described, network_of
from .summary import counted, name_of

if TYPE_CHECKING:
    from moetraffic.replay.options import Options

LAUNCH_BYTES, SIZE_BYTES = 1900, 40
"""Memory of a prepared call, and of each of its splits: of gloo, measured with CPython
3.11 and torch 2.13."""

TIMES_BYTES = 5 * 8
"""Memory of the times of an operation on a rank."""


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
            {"group": number, "members": len(ranks), "calls": calls}
            for number, (ranks, calls) in enumerate(
                zip(plan.groups, counts(plan.group, len(plan.groups)), strict=True)
            )
            if calls
        ],
        "ranks": rank_rows(plan, options.repeat),
    }
    memory = [row["memory"] for row in rows["ranks"]]
    passes = [f"{options.repeat} timed run{'s' * (options.repeat > 1)}"]
    if options.verifies:
        passes.insert(0, "a verification")
    if options.pairs:
        passes.append(f"{options.pairs} x 3 passes with and without background traffic")
    sentences = [
        f"Passes: {', '.join(passes)}.",
        f"Buffers, times and prepared calls take up to {byte_size(max(memory))} on a "
        f"rank, {byte_size(sum(memory))} in all.",
    ]
    data: dict[str, Any] = {
        "source": plan.source,
        "ranks": plan.world,
        "iterations": len(np.unique(plan.iteration)),
        "digest": plan.digest,
        "left_out": dict(plan.left_out),
        "operations": {row["call"]: row["calls"] for row in rows["kinds"]},
        "memory": sum(memory),
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


def counts(index: Integer, length: int, weights: Int64 | None = None) -> list[int]:
    """Count, or sum, by index."""
    found = np.bincount(index, weights, minlength=length)
    return np.rint(found).astype(np.int64).tolist()  # type: ignore[no-any-return]


def by_rank(plan: Plan, values: Int64) -> Int64:
    """Sum a value of operations ``[n]`` over those of each rank, ``[R]``."""
    out = np.zeros(plan.world, np.int64)
    message = (plan.sender >= 0) & (plan.receiver >= 0)
    of_group = counts(plan.group[~message], len(plan.groups), values[~message])
    for ranks, value in zip(plan.groups, of_group, strict=True):
        out[list(ranks)] += value
    for ends in (plan.sender, plan.receiver):
        np.add.at(out, ends[message], values[message])
    return out


def rank_rows(plan: Plan, runs: int) -> list[dict[str, Any]]:
    """List calls, bytes sent, buffers and memory of each rank, at most, in bytes."""
    width = np.array([len(ranks) for ranks in plan.groups], np.int64)[plan.group]
    sizes = np.where(plan.kind == KINDS.index(ALL_TO_ALL), 2 * width, 0)
    calls = by_rank(plan, np.ones(len(plan), np.int64))
    prepared = by_rank(plan, LAUNCH_BYTES + SIZE_BYTES * sizes)
    buffers = np.zeros((len(plan.streams), plan.world), np.int64)
    largest = np.zeros((len(plan.streams), len(plan.groups)), np.int64)
    np.maximum.at(largest, (plan.stream, plan.group), plan.largest_bytes)
    for stream, group in np.argwhere(largest).tolist():
        ranks = list(plan.groups[group])
        buffers[stream, ranks] = np.maximum(
            buffers[stream, ranks], largest[stream, group]
        )
    held = 2 * buffers.sum(axis=0)  # one to send and one to receive, of each stream
    memory = held + prepared + runs * calls * TIMES_BYTES
    columns = {
        "calls": calls,
        "bytes": plan.rank_bytes,
        "buffer_bytes": held,
        "memory": memory,
    }
    return [
        {"rank": rank, **{name: int(values[rank]) for name, values in columns.items()}}
        for rank in range(plan.world)
    ]


def write_program(path: Path, trace: Trace, plan: Plan) -> None:
    """Write the programs of all ranks as CSV, a row per operation of a rank, in order.

    ``sends`` and ``receives`` are bytes to and from each rank of ``ranks``, separated
    by blanks, of all-to-alls; -1 is unknown or none.

    Raises
    ------
    ReplayError
        If the file cannot be written.
    """
    import pandas

    def joined(rows: Iterable[Any]) -> list[str]:
        return [" ".join(map(str, row)) for row in rows]

    with (
        write_errors(path, error=ReplayError),
        replacing(path) as temporary,
        open(temporary, "w") as file,
    ):
        for rank in range(plan.world):
            own = programs(trace, plan, (rank,))[rank]
            sites = [plan.sites[number] for number in plan.site[own.operation]]
            frame = pandas.DataFrame(
                {
                    "rank": rank,
                    "operation": own.operation,
                    "iteration": plan.iteration[own.operation],
                    "layer": [site.layer for site in sites],
                    "name": [s.phase or s.label or s.operation for s in sites],
                    "kind": np.array(KINDS)[own.kind],
                    "stream": np.array(plan.streams)[own.stream],
                    "ranks": joined(plan.groups[group] for group in own.group),
                    "sender": plan.sender[own.operation],
                    "receiver": plan.receiver[own.operation],
                    "bytes": plan.size[own.operation],
                    "send_bytes": own.send_size,
                    "receive_bytes": own.receive_size,
                    "sends": joined(own.sends(n) for n in range(len(own))),
                    "receives": joined(own.receives(n) for n in range(len(own))),
                    "after": own.after,
                    "waits": own.waits,
                    "gap_ns": own.gap_ns,
                    "due_ns": own.due_ns,
                }
            )
            frame.to_csv(file, header=rank == 0, index=False)
