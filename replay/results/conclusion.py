"""Conclusion: what rank 0 makes of a replay when all times are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.times.completion import completion, iteration_times
from moetraffic.fabric.named import load_fabric
from moetraffic.patterns.measurements import read_table
from moetraffic.replay.execution.timing import Timing
from moetraffic.replay.plan.matrices import Scaled, operation_matrices
from moetraffic.replay.plan.program import Plan
from moetraffic.replay.request import Request
from moetraffic.trace.trace import Trace
from moetraffic.units import bit_rate, bytes_per_second

from .audit import audit
from .baselines import Baselines, captured_times, modeled, network_bounds, port_times
from .durations import NO_CLOCKS, Measured, measure
from .fidelity import Fidelity
from .output import write
from .replayed_trace import replayed_trace
from .result import Summary, summarize

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
    scale: Scaled | None = None,
    pace: str = "asap",
    alone: Sequence[tuple[Times, Times]] = (),
) -> Summary:
    """Write the replayed trace, and say how the replay went.

    Parameters
    ----------
    request
        What was asked for.
    trace, plan
        What was replayed.
    times
        Every rank's.
    nodes
        Each rank's host.
    torch_version
        Of the ranks.
    clocks
        Knots of type CLOCK.
    scale
        The one that the plan was made with.
    pace
        In words.
    alone
        Pairs of passes without and with dense traffic.

    Raises
    ------
    MoetrafficError
        If the trace cannot be written, or what it is held against cannot be read.
    """
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
    return summarize(
        plan,
        times,
        measured,
        backend=request.backend,
        nodes=nodes,
        verified=str(request.verify),
        pace=pace,
        out=str(request.out or ""),
        fidelity=hold(
            request,
            trace,
            plan,
            times,
            measured,
            nodes=nodes,
            clocks=clocks,
            scale=scale,
            absolute=pace == "open-loop",
            alone=alone,
        ),
    )


def hold(
    request: Request,
    trace: Trace,
    plan: Plan,
    times: Times,
    measured: Measured,
    *,
    nodes: Sequence[str],
    clocks: npt.NDArray[np.void] = NO_CLOCKS,
    scale: Scaled | None = None,
    absolute: bool = False,
    alone: Sequence[tuple[Times, Times]] = (),
) -> Fidelity:
    """Hold a replay against what was asked for; see :func:`conclude`."""
    walls: dict[int, float] = {}
    if scale is None:
        calls = completion(trace, kind=None)
        mine = np.flatnonzero(np.isin(calls.occurrence, plan.occurrence))
        when, took, _ = iteration_times(trace, calls.take(mine))
        walls = dict(zip(when.tolist(), took.tolist(), strict=True))
    return audit(
        plan,
        times,
        measured,
        baselines=_baselines(request, trace, plan, nodes, scale),
        clocks=clocks,
        absolute=absolute,
        alone=alone,
        captured_wall_s=walls,
    )


def _baselines(
    request: Request,
    trace: Trace,
    plan: Plan,
    nodes: Sequence[str],
    scale: Scaled | None,
) -> Baselines:
    notes: tuple[str, ...] = ()
    call, transfer = captured_times(trace, plan)
    bound, bound_of = None, ""
    if request.topology is not None:
        asked = load_fabric(
            request.topology,
            plan.world,
            capacity=request.capacity,
        )
        bound = network_bounds(plan, operation_matrices(trace, plan, scale), asked)
        rate = bit_rate(asked.topology.hosts.nic_bytes_s)
        bound_of = f"{asked.topology.name}, {rate} a NIC"
    elif request.capacity is not None:
        rate_bytes_s = bytes_per_second(request.capacity)
        bound = port_times(plan, rate_bytes_s)
        bound_of = f"{bit_rate(rate_bytes_s)} a rank"
    model = None
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
