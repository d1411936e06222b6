"""Duration and memory of a replay, estimated before it starts.

The duration is at most about that of the captured iterations, for each pass, where the
network is as fast as the captured run's; at a given link capacity it is at least that
of the busiest links' bytes.
"""

from __future__ import annotations

import numpy as np

from moetraffic.replay.execution.pace import Schedule
from moetraffic.replay.plan.program import Plan
from moetraffic.replay.request import Request
from moetraffic.trace.model import UNKNOWN_TIME
from moetraffic.trace.trace import Trace
from moetraffic.units import byte_size, bytes_per_second, duration

TIMES_BYTES = 5 * 8
"""Bytes that the times of one operation take on one rank."""


def captured_s(trace: Trace, plan: Plan) -> float:
    """Sum the captured durations of the plan's iterations, s; NaN if one is unknown.

    An iteration lasts from its start to its end on the rank for which that is longest.
    """
    steps = trace.steps
    mine = np.isin(steps.iteration, plan.iteration)
    start, end = steps.start[mine], steps.end[mine]
    known = (start != UNKNOWN_TIME) & (end != UNKNOWN_TIME)
    took = np.where(known, end - np.where(known, start, end), -1).max(
        axis=1, initial=-1
    )
    missing = len(took) < len(np.unique(plan.iteration)) or bool((took < 0).any())
    return float("nan") if missing else float(took.sum()) / 1e9


def memory_bytes(plan: Plan, runs: int) -> int:
    """Return the most bytes that buffers and times of all ranks take.

    Each stream has two buffers; each run of a rank keeps the times of its operations.
    """
    streams = max(1, len(np.unique(plan.stream)))
    buffers = 2 * int(plan.largest_bytes.max(initial=0)) * streams
    return plan.world * (buffers + runs * len(plan) * TIMES_BYTES)


def expectation(trace: Trace, plan: Plan, request: Request) -> str:
    """State how long a replay takes and what memory it needs, in one sentence."""
    iterations = len(np.unique(plan.iteration))
    passes = request.passes + min(request.warm_up, iterations) / iterations
    factor = request.pace.factor if request.pace.schedule is Schedule.SCALED else 1.0
    whole = captured_s(trace, plan) * passes * factor
    parts = []
    if np.isfinite(whole):
        parts.append(
            f"up to {duration(whole)} where the network is as fast as the captured "
            "run's"
        )
    if request.capacity is not None:
        rate = bytes_per_second(request.capacity)
        least = passes * float(plan.bottleneck_bytes.sum()) / rate
        parts.append(f"at least {duration(least)} at {request.capacity} a rank")
    takes = " and ".join(parts) or "unknown, as the trace has no times of iterations"
    memory = byte_size(memory_bytes(plan, request.repeat))
    return (
        f"expected duration ({passes:.3g} passes): {takes}; memory of all ranks: up to "
        f"{memory} for buffers and times, and that of torch in each"
    )
