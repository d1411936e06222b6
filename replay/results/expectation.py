"""Passes and memory of a replay, stated before it starts.

Timed passes with gaps take as long as the captured iterations.  On a given network the
duration is at least the lower bound of its complete passes (:mod:`.lower_bound`).
"""

from __future__ import annotations

import numpy as np

from moetraffic.replay.execution.prepared import (
    BLOCK,
    LAUNCH_BYTES,
    PREPARED,
    SIZE_BYTES,
    VIEW_BYTES,
)
from moetraffic.replay.plan.program import KINDS, Plan
from moetraffic.replay.plan.selection import Depth
from moetraffic.replay.request import Request
from moetraffic.trace.model import ALL_TO_ALL, UNKNOWN_TIME
from moetraffic.trace.trace import Trace
from moetraffic.units import byte_size, duration

TIMES_BYTES = 5 * 8
"""Bytes that the times of one operation take on one rank."""

PROGRAM_BYTES = 71
"""Bytes of one operation in a rank's program, without those per pair of ranks."""


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


def memory_bytes(plan: Plan, runs: int, *, backend: str = "gloo") -> int:
    """Return the most bytes that all ranks allocate, without those of torch itself.

    These are buffers, times, plans and :func:`launch_bytes`.

    Each stream has two buffers; each run of a rank keeps the times of its operations.
    A rank has the plan's arrays, and of its own program those that
    :class:`~moetraffic.replay.plan.program.Program` lists.
    """
    streams = max(1, len(np.unique(plan.stream)))
    buffers = 2 * int(plan.largest_bytes.max(initial=0)) * streams
    width = np.array([len(group) for group in plan.groups], np.int64)[plan.group]
    members = np.where((plan.sender >= 0) & (plan.receiver >= 0), 2, width)
    pairs = width[plan.kind == KINDS.index(ALL_TO_ALL)] ** 2
    programs = PROGRAM_BYTES * int(members.sum()) + 2 * 8 * int(pairs.sum())
    shared = sum(a.nbytes for a in vars(plan).values() if isinstance(a, np.ndarray))
    # 8: a program's ``first`` has an entry more than there are operations
    of_rank = buffers + runs * len(plan) * TIMES_BYTES + shared + 8
    return plan.world * of_rank + programs + launch_bytes(plan, backend=backend)


def launch_bytes(plan: Plan, *, backend: str = "gloo") -> int:
    """Return the most bytes that the prepared launches of all ranks take.

    Long programs are prepared in blocks: of each stream, or two of the program.
    """
    width = np.array([len(group) for group in plan.groups], np.int64)[plan.group]
    parts = np.isin(plan.kind, [KINDS.index(name) for name in ("gather", "scatter")])
    sizes = np.where(plan.kind == KINDS.index(ALL_TO_ALL), 2 * width, 0)
    each = LAUNCH_BYTES + SIZE_BYTES * sizes + VIEW_BYTES * width * parts
    if backend == "gloo-duplex":  # both directions of an all-to-all
        each = each + (LAUNCH_BYTES + SIZE_BYTES * sizes) * (sizes > 0)
    number, total = np.zeros((2, plan.world), np.int64)
    message = (plan.sender >= 0) & (plan.receiver >= 0)
    calls, of_calls = np.zeros((2, len(plan.groups)), np.int64)  # of each group
    np.add.at(calls, plan.group[~message], 1)
    np.add.at(of_calls, plan.group[~message], each[~message])
    for group, ranks in enumerate(plan.groups):
        number[list(ranks)] += calls[group]
        total[list(ranks)] += of_calls[group]
    for end in (plan.sender[message], plan.receiver[message]):
        np.add.at(number, end, 1)
        np.add.at(total, end, each[message])
    at_once = BLOCK * max(2, len(np.unique(plan.stream)))
    most = at_once * int(each.max(initial=0))
    return int(np.where(number > PREPARED, most, total).sum())


def expectation(trace: Trace, plan: Plan, request: Request) -> str:
    """State the passes of a replay, what is known of their duration, and the memory.

    ``trace`` is the one of the plan, rescaled.
    """
    runs = request.repeat + 3 * request.pairs  # with, without, and empty ones
    passes = ["verification"] * (request.verify.depth is not Depth.NONE)
    passes += ["warm-up"] * bool(request.warm_up)
    passes.append(f"{request.repeat} timed run{'s' * (request.repeat > 1)}")
    if request.pairs:
        passes.append(f"{request.pairs} x 3 passes with and without background traffic")
    parts = [f"passes: {', '.join(passes)}"]
    whole = runs * captured_s(trace, plan) * request.pace.factor
    if request.pace.timed and np.isfinite(whole) and not trace.meta.virtual:
        parts.append(f"timed runs at pace {request.pace}: {duration(whole)}")
    if request.topology is not None or request.capacity is not None:
        # the network model takes long to import
        from .lower_bound import described, pass_bound_s, requested_network

        network = requested_network(request, plan.world)
        if network is not None:
            verifying = request.verify.depth is Depth.FULL
            complete = request.repeat + request.pairs + verifying
            least = pass_bound_s(trace, plan, network)
            total = f"{duration(complete * least)} for {complete} passes, "
            parts.append(
                f"at least {total * (complete > 1)}{duration(least)} a pass (warm-up "
                f"not counted) on {described(network)}"
            )
    memory = byte_size(memory_bytes(plan, request.repeat, backend=request.backend))
    parts.append(f"memory of all ranks together: up to {memory} beside that of torch")
    return "; ".join(parts)
