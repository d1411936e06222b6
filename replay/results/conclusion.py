"""Compute the results of a replay on rank 0: replayed trace, times, comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.times.completion import completion, wall_times
from moetraffic.fabric import Network
from moetraffic.patterns.bandwidth.measurements import read_table
from moetraffic.replay.execution.pace import Schedule
from moetraffic.replay.plan.program import Plan, Timing
from moetraffic.replay.plan.sizes import operation_matrices
from moetraffic.replay.request import Request
from moetraffic.trace.trace import Trace

from .audit import audit
from .baselines import Baselines, captured_times, modeled
from .call_times import NO_CLOCKS, measure
from .lower_bound import (
    described,
    faster_than,
    hosts_match,
    operation_bounds_s,
    pass_bound_s,
    requested_network,
)
from .machine_load import HostLoad
from .output import write
from .ports import Ports, port_bounds
from .replayed_trace import replayed_trace
from .result import Replay, summarize
from .runs import median_run, merge

Times = Mapping[int, Timing]


def conclude(
    request: Request,
    trace: Trace,
    plan: Plan,
    runs: Sequence[Times],
    *,
    nodes: Sequence[str],
    torch_version: str = "",
    clocks: npt.NDArray[np.void] = NO_CLOCKS,
    pairs: Sequence[tuple[Times, Times, Times]] = (),
    load: Sequence[HostLoad] = (),
    ports: Ports | None = None,
) -> Replay:
    """Write the replayed trace, compare it with baselines and summarize the replay.

    ``runs`` are the times of every rank in each timed pass, of which the trace gets
    those of the median run; ``clocks`` are offsets of type CLOCK, ``pairs`` the times
    of passes without and with dense traffic, ``load`` that of the hosts, and ``ports``
    the measured rates of the ranks.

    Raises
    ------
    MoetrafficError
        If the trace cannot be written, or a baseline cannot be read.
    """
    trace = request.rescaled(trace)
    measured = [measure(plan, times, clocks) for times in runs]
    shown = median_run([float(np.nansum(m.transfer_s)) for m in measured])
    times = runs[shown]
    if request.out is not None:
        made = replayed_trace(
            trace,
            plan,
            times,
            backend=request.backend,
            nodes=nodes,
            torch_version=torch_version,
            clocks=clocks,
            rescaled=bool(request.scaling),
            runs=measured,
            busy=any(host.busy for host in load),
            settings=" ".join(
                ["--pace", str(request.pace), *request.scaling.arguments()]
            ),
        )
        write(made, request.out, force=request.force, rank=0)
    walls: dict[int, float] = {}
    if not request.scaling:
        calls = completion(trace, kind=None)
        replayed = np.isin(calls["occurrence"], plan.occurrence)
        when, took = wall_times(trace, calls[replayed])
        walls = dict(zip(when.tolist(), took.tolist(), strict=True))
    network = requested_network(request, plan.world)
    baselines = _baselines(request, trace, plan, nodes, network)
    if ports is not None:
        limit = port_bounds(plan, operation_matrices(trace, plan), ports)
        ran_there = network if baselines.bound_hosts_match else None
        faster = faster_than(ran_there, ports) if ran_there is not None else ""
        baselines = replace(
            baselines,
            ports_s=limit,
            bound_exceeded=bool(faster),
            notes=(*baselines.notes, *filter(None, [faster])),
        )
    found = [
        audit(
            plan,
            of_run,
            took,
            baselines=baselines,
            clocks=clocks,
            absolute=request.pace.schedule is Schedule.OPEN_LOOP,
            pairs=pairs if number == shown else (),
            captured_wall_s=walls,
        )
        for number, (of_run, took) in enumerate(zip(runs, measured, strict=True))
    ]
    return summarize(
        plan,
        measured[shown],
        backend=request.backend,
        nodes=nodes,
        verified=str(request.verify),
        pace=str(request.pace),
        out=str(request.out or ""),
        fidelity=merge(found, shown),
        load=load,
        ports=ports,
    )


def _baselines(
    request: Request,
    trace: Trace,
    plan: Plan,
    nodes: Sequence[str],
    network: Network | None,
) -> Baselines:
    call, transfer = captured_times(trace, plan)
    bound, whole, model, bound_of, model_of = None, float("nan"), None, "", ""
    match = True
    if network is not None:
        bound = operation_bounds_s(trace, plan, network)
        bound_of = described(network)
        match = hosts_match(network, nodes)
        if not request.pace.timed:  # gaps are no time of the network
            whole = pass_bound_s(trace, plan, network)
    if request.bandwidth is not None:
        model = modeled(plan, read_table(request.bandwidth), nodes)
        model_of = str(request.bandwidth)
    return Baselines(
        captured_call_s=call,
        captured_transfer_s=transfer,
        bound_s=bound,
        pass_bound_s=whole,
        model_s=model.operation_s if model else None,
        bound_of=bound_of,
        bound_hosts_match=match,
        model_of=model_of,
        model_beyond="; ".join(model.beyond) if model else "",
        notes=model.lacking if model else (),
    )
