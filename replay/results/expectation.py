"""Duration and memory of a replay, estimated before it starts.

Passes without gaps (``asap``, verification, warm-up) take as long as a rank had
transfers in progress, on a network as fast as the captured run's; passes with gaps
take as long as its iterations.  On a given network the duration is at least the lower
bound of its complete passes (:mod:`.lower_bound`).
"""

from __future__ import annotations

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.replay.execution.prepared import (
    BLOCK,
    LAUNCH_BYTES,
    PREPARED,
    SIZE_BYTES,
    VIEW_BYTES,
)
from moetraffic.replay.plan.program import KINDS, Plan
from moetraffic.replay.plan.program_builder import read_times
from moetraffic.replay.plan.selection import Depth, blocks, takes_part
from moetraffic.replay.request import Request
from moetraffic.trace.model import ALL_TO_ALL, UNKNOWN_TIME
from moetraffic.trace.trace import Trace
from moetraffic.units import byte_size, duration

TIMES_BYTES = 5 * 8
"""Bytes that the times of one operation take on one rank."""

PROGRAM_BYTES = 71
"""Bytes of one operation in a rank's program, without those per pair of ranks."""

LEAST_S = 1.0
"""A lower bound below this is not stated: starting the processes takes longer."""

_BLOCK_CELLS = 1 << 20


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


def transfers_s(trace: Trace, plan: Plan) -> tuple[float, int]:
    """Compute how long transfers were in progress in the capture, s.

    Of the rank for which that is longest.  A transfer lasts from the last member's call
    to the last end; time in which several are in progress counts once.  Background
    traffic has no times, and counts nothing.

    Returns seconds, NaN if a transfer is unknown or there is none; and the number of
    captured operations of the plan whose transfer is unknown.
    """
    (mine,) = np.nonzero(plan.occurrence >= 0)
    occurrences, least = plan.occurrence[mine], np.iinfo(np.int64).min
    spans: list[list[Int64]] = [[] for _ in range(plan.world)]  # [k, 2] ns
    lacking = 0
    for at in blocks(trace, occurrences, _BLOCK_CELLS):
        these = occurrences[at]
        members, part = trace.members(these), takes_part(trace, these)
        issue, end = (read_times(trace, n, these, members) for n in ("issue", "end"))
        timed = ((issue != UNKNOWN_TIME) & (end != UNKNOWN_TIME) | ~part).all(axis=1)
        lacking += int((~timed).sum())
        span = np.stack([np.where(part, t, least).max(axis=1) for t in (issue, end)], 1)
        for rank, of_rank in enumerate(spans):
            of_rank.append(span[timed & (part & (members == rank)).any(axis=1)])
    if lacking or not len(occurrences):
        return float("nan"), lacking
    return max(_covered_s(np.concatenate(s)) for s in spans), 0


def _covered_s(spans: Int64) -> float:
    """Compute the length of the union of intervals ``[k, 2]`` ns, s."""
    begin, end = spans[np.argsort(spans[:, 0], kind="stable")].T
    before = np.concatenate([begin[:1], np.maximum.accumulate(end)[:-1]])
    return float(np.maximum(end - np.maximum(begin, before), 0).sum()) / 1e9


def expectation(trace: Trace, plan: Plan, request: Request) -> str:
    """State how long a replay takes and what memory it needs, in one sentence.

    ``trace`` is the one of the plan, rescaled.
    """
    iterations = len(np.unique(plan.iteration))
    runs = request.repeat + 3 * request.pairs  # with, without, and empty ones
    quick = (
        request.passes - request.repeat + min(request.warm_up, iterations) / iterations
    )
    (moved, lacking), whole = transfers_s(trace, plan), captured_s(trace, plan)
    if request.pace.timed:
        paced = moved + max(whole - moved, 0.0) * request.pace.factor
        takes, rests = runs * paced + quick * moved, "iterations and transfers"
    else:
        takes, rests = (runs + quick) * moved, "transfers"
    number = np.count_nonzero(plan.occurrence >= 0)
    if lacking == number:
        unknown = "no times of transfers"
    elif lacking:
        unknown = f"times of {number - lacking:,} of {number:,} transfers"
    else:
        unknown = "no times of iterations"
    parts, bound = [], "--capacity 400Gbps gives a lower bound"
    if np.isfinite(takes):
        parts.append(f"about {duration(takes)} if {rests} take as long as captured")
    elif np.isfinite(whole) and not trace.meta.virtual:  # no network took its time
        most = (runs + quick) * whole * max(1.0, request.pace.factor)
        parts.append(
            f"at most {duration(most)} if iterations take as long as captured (the "
            f"trace has {unknown})"
        )
    if request.topology is not None or request.capacity is not None:
        # the network model takes long to import
        from .lower_bound import described, pass_bound_s, requested_network

        network = requested_network(request, plan.world)
        if network is not None:
            verifying = request.verify.depth is Depth.FULL
            complete = request.repeat + request.pairs + verifying
            least = complete * pass_bound_s(trace, plan, network)
            if least >= LEAST_S:
                parts.append(f"at least {duration(least)} on {described(network)}")
            bound = (
                f"lower bound of transfers below {duration(LEAST_S)}, to which the "
                "start of the processes is added"
            )
    if parts:
        parts.append("plus the start of the processes")
    expected = ", ".join(parts) or f"unknown, as the trace has {unknown} ({bound})"
    passes = ["verification"] * (request.verify.depth is not Depth.NONE)
    passes += ["warm-up"] * bool(request.warm_up)
    passes.append(f"{request.repeat} timed run{'s' * (request.repeat > 1)}")
    if request.pairs:
        passes.append(f"{request.pairs} x 3 passes with and without background traffic")
    memory = byte_size(memory_bytes(plan, request.repeat, backend=request.backend))
    return (
        f"expected duration ({', '.join(passes)}): {expected}; memory of all ranks "
        f"together: up to {memory} beside that of torch"
    )
