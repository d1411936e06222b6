"""Compute the results of a replay on rank 0: replayed trace, summary, comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.times.completion import completion, iteration_times
from moetraffic.fabric.named import load_fabric
from moetraffic.patterns.measurements import read_table
from moetraffic.replay.execution.pace import Schedule
from moetraffic.replay.execution.timing import Timing
from moetraffic.replay.plan.matrices import operation_matrices
from moetraffic.replay.plan.program import Plan
from moetraffic.replay.request import Request
from moetraffic.replay.scale.rescaling import Scale
from moetraffic.trace.trace import Trace
from moetraffic.units import bit_rate, bytes_per_second

from .audit import audit
from .baselines import Baselines, captured_times, modeled, network_bounds, port_times
from .durations import NO_CLOCKS, measure
from .output import write
from .replayed_trace import replayed_trace
from .result import Replay, summarize

Times = Mapping[int, Timing]


def conclude(
    request: Request,
    trace: Trace,
    plan: Plan,
    times: Times,
    *,
    nodes: Sequence[str],
    torch_version: str = "",
    clocks: npt.NDArray[np.void] = NO_CLOCKS,
    pairs: Sequence[tuple[Times, Times]] = (),
) -> Replay:
    """Write the replayed trace, compare it with baselines and summarize the replay.

    Parameters
    ----------
    request
        Options of the replay.
    trace, plan
        The trace and the plan that were replayed.
    times
        Times of every rank.
    nodes
        Host of each rank.
    torch_version
        Version of torch on the ranks.
    clocks
        Clock offsets of type CLOCK.
    pairs
        Pairs of passes without and with dense traffic.

    Raises
    ------
    MoetrafficError
        If the trace cannot be written, or a baseline cannot be read.
    """
    scale = request.scaling.scale(trace)
    if request.out is not None:
        made = replayed_trace(
            trace,
            plan,
            times,
            backend=request.backend,
            nodes=nodes,
            torch_version=torch_version,
            clocks=clocks,
            scale=scale,
        )
        write(made, request.out, force=request.force, rank=0)
    measured = measure(plan, times, clocks)
    walls: dict[int, float] = {}
    if scale is None:
        calls = completion(trace, kind=None)
        mine = np.flatnonzero(np.isin(calls.occurrence, plan.occurrence))
        when, took, _ = iteration_times(trace, calls.take(mine))
        walls = dict(zip(when.tolist(), took.tolist(), strict=True))
    fidelity = audit(
        plan,
        times,
        measured,
        baselines=_baselines(request, trace, plan, nodes, scale),
        clocks=clocks,
        absolute=request.pace.schedule is Schedule.OPEN_LOOP,
        pairs=pairs,
        captured_wall_s=walls,
    )
    return summarize(
        plan,
        times,
        measured,
        backend=request.backend,
        nodes=nodes,
        verified=str(request.verify),
        pace=str(request.pace),
        out=str(request.out or ""),
        fidelity=fidelity,
    )


def _baselines(
    request: Request,
    trace: Trace,
    plan: Plan,
    nodes: Sequence[str],
    scale: Scale | None,
) -> Baselines:
    notes: tuple[str, ...] = ()
    call, transfer = captured_times(trace, plan)
    bound, model, bound_of = None, None, ""
    if request.topology is not None:
        on = load_fabric(
            request.topology,
            plan.world,
            capacity=request.capacity,
        )
        bound = network_bounds(plan, operation_matrices(trace, plan, scale), on)
        bound_of = f"{on.topology.name}, {bit_rate(on.topology.hosts.nic_bytes_s)} NICs"
    elif request.capacity is not None:
        rate_bytes_s = bytes_per_second(request.capacity)
        bound = port_times(plan, rate_bytes_s)
        bound_of = f"{bit_rate(rate_bytes_s)} a rank"
    if request.bandwidth is not None:
        model, notes = modeled(plan, read_table(request.bandwidth), nodes)
    return Baselines(
        captured_call_s=call,
        captured_transfer_s=transfer,
        bound_s=bound,
        model_s=model,
        bound_of=bound_of,
        model_of=str(request.bandwidth or ""),
        notes=notes,
    )
