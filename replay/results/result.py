"""Result of a replay, made on rank 0: tables, facts, sentences, the replayed trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64
from moetraffic.replay.plan.matrices import operation_matrices
from moetraffic.replay.plan.operations import KINDS, Plan
from moetraffic.result import Result
from moetraffic.trace.trace import Trace

from .bound import bounds_s, described, hosts_match, network_of
from .comparison import (
    Baseline,
    captured_times,
    median_run,
    operation_rows,
    punctuality,
    ratio_rows,
    slowdown_rows,
)
from .durations import NO_CLOCKS, Durations, Times, durations
from .load import load_rows
from .ports import port_bounds_s
from .replayed_trace import replayed_trace, write
from .summary import CAPTION, headline, kind_rows, notes, sentences

if TYPE_CHECKING:
    from moetraffic.replay.options import Options


def conclude(
    options: Options,
    trace: Trace,
    plan: Plan,
    runs: Sequence[Times],
    *,
    nodes: Sequence[str],
    clocks: npt.NDArray[np.void] = NO_CLOCKS,
    stack: Sequence[Mapping[str, str]] = (),
    meters: Float64 | None = None,
    ports: Sequence[dict[str, Any]] = (),
    trials: Sequence[tuple[Times, Times, Times]] = (),
) -> Result:
    """Write the replayed trace, compare the replay with baselines, and summarize it.

    Parameters
    ----------
    options, trace, plan
        The replay; ``trace`` is the one of the plan, rescaled.
    runs
        Times of every rank in each timed pass; the trace gets those of the median.
    nodes, clocks
        Host of each rank, and knots of the clocks of type CLOCK.
    stack, meters, ports
        Facts of rank 0, readings of the load ``[R, 3]``, and rates of the ports.
    trials
        Times of passes without, with, and with the smallest background traffic.

    Raises
    ------
    MoetrafficError
        If the trace cannot be written, or a baseline cannot be read.
    """
    measured = [durations(plan, times, clocks, nodes) for times in runs]
    shown = median_run([float(np.nansum(run.transfer_s)) for run in measured])
    own = measured[shown]
    load = [] if meters is None else load_rows(nodes, meters)
    if options.out is not None:
        made = replayed_trace(
            trace,
            plan,
            runs[shown],
            options=options,
            nodes=nodes,
            torch_version=next(
                (r["recorded"] for r in stack if r["field"] == "torch"), ""
            ),
            clocks=clocks,
            runs=measured,
            load=load,
        )
        write(made, options.out, force=options.force)
    # ---- baselines -------------------------------------------------------------------
    captured, transfer = captured_times(trace, plan)
    baselines: dict[str, Baseline] = {
        "captured": ("transfer_s", transfer),
        "captured calls": ("call_s", captured),
    }
    doubts = list(plan.notes)
    network = network_of(options.topology, options.capacity, plan.world)
    whole, stated, described_as = float("nan"), False, ""
    if network is not None:
        described_as = described(network)
        each, whole = bounds_s(trace, plan, network)
        baselines["bound"] = "transfer_s", each
        stated, hosts = hosts_match(network, nodes), len(set(nodes))
        if not stated:
            doubts.append(
                f"the replay ran on {hosts} host{'s' * (hosts > 1)}, not on "
                f"{described_as}: no ratio to its lower bound is stated"
            )
    if ports:
        limits = port_bounds_s(plan, operation_matrices(trace, plan), ports)
        baselines["ports"] = "transfer_s", limits
    if options.pace.timed:
        whole = float("nan")  # gaps are no time of the network
    # ---- tables ----------------------------------------------------------------------
    operations = operation_rows(plan, measured, shown)
    ratios = ratio_rows(plan, measured, baselines, whole)
    passes = [
        [durations(plan, times, clocks, nodes).transfer_s for times in trial]
        for trial in trials
    ]
    tables: dict[str, list[dict[str, Any]]] = {
        "kinds": kind_rows(operations),
        "operations": operations,
        "ratios": ratios,
        "ranks": rank_rows(plan, own, nodes),
        "ports": list(ports),
        "schedule": punctuality(runs[shown]),
        "background": slowdown_rows(plan, passes) if passes else [],
        "stack": [dict(row) for row in stack],
        "load": load,
    }
    number = np.bincount(plan.kind, minlength=len(KINDS)).tolist()
    data = {
        "source": plan.source,
        "output": str(options.out or ""),
        "backend": options.backend,
        "pace": str(options.pace),
        "ranks": plan.world,
        "nodes": list(nodes),
        "iterations": len(own.iteration),
        "first_iteration": int(plan.iteration.min()),
        "last_iteration": int(plan.iteration.max()),
        "operations": {k: n for k, n in zip(KINDS, number, strict=True) if n},
        "left_out": dict(plan.left_out),
        "verified": options.verify,
        "runs": len(runs),
        "shown_run": shown,
        "trials": len(trials),
        "bytes": int(plan.total_bytes.sum()),
        "bytes_between_ranks": int(plan.network_bytes.sum()),
        "pass_s": own.pass_s,
        "pass_bound_s": whole,
        "transfer_s": float(np.nansum(own.transfer_s)),
        "waiting": own.waiting(),
        "clock_error": float(own.error_s.max(initial=0.0)),
        "network": described_as,
        "network_stated": stated,
        "digest": plan.digest,
        "notes": doubts,
    }
    return Result(
        verb="replay",
        head=headline(data),
        tables=tables,
        screen=("kinds",),
        captions={"kinds": CAPTION},
        verdict=sentences(data, tables),
        notes=notes(data, tables),
        data=data,
    )


def rank_rows(plan: Plan, own: Durations, nodes: Sequence[str]) -> list[dict[str, Any]]:
    """List host, bytes sent and waiting of each rank."""
    inside = np.where(own.rank_inside_s > 0, own.rank_inside_s, np.nan)
    return [
        {"rank": rank, "host": node, "bytes": nbytes, "waits": wait}
        for rank, (node, nbytes, wait) in enumerate(
            zip(
                nodes,
                plan.rank_bytes.tolist(),
                (own.rank_wait_s / inside).tolist(),
                strict=True,
            )
        )
    ]
