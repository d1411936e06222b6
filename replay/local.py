"""Replay a trace on this host: start and supervise the ranks, return the result.

This process does not import torch, which takes seconds: only the ranks do.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moetraffic.errors import Interrupted, ReplayError
from moetraffic.launch import Heartbeat, Outcome, launch
from moetraffic.replay.execution.pace import Pace, parse_pace
from moetraffic.replay.plan.program import Plan
from moetraffic.replay.results.metrics import write_reports
from moetraffic.replay.results.output import check_disk_space
from moetraffic.replay.results.records import from_json
from moetraffic.replay.results.result import Replay
from moetraffic.trace.trace import Trace

from .request import Request


def replay(
    request: Request,
    *,
    nproc: int | None = None,
    on_plan: Callable[[Plan], None] | None = None,
    on_event: Callable[[Heartbeat], None] | None = None,
) -> Replay:
    """Replay a trace on ranks that are started on this host.

    Parameters
    ----------
    request
        Options of the replay.
    nproc
        Number of ranks to start; None for that of the trace.
    on_plan, on_event
        Called with the plan before the ranks start, and with each of their heartbeats.

    Raises
    ------
    MoetrafficError
        If the replay cannot start, or if a rank fails: names rank and operation.
    Interrupted
        After SIGINT or SIGTERM, when all ranks have ended.
    """
    request.validate_outputs()
    with (
        Trace.open(request.trace) as trace,
        tempfile.TemporaryDirectory(prefix="moetraffic-") as folder,
    ):
        planned = request.plan(trace, world=nproc, ranks=())
        request.validate_baselines(planned.world)
        if request.out is not None:
            ranks = trace.meta.world
            check_disk_space(request.trace, planned, ranks, request.out)
        if on_plan is not None:
            on_plan(planned)
        result = Path(folder) / "summary.json"

        def name(rank: int, n: int) -> str:
            """Return the name of a rank's n-th operation, counted over its passes."""
            own = request.plan(trace, ranks=(rank,)).programs[rank]
            if n >= len(own) * request.passes:
                # after the timed pass, heartbeats name the place
                return "a pass of a pair" if request.pairs else ""
            return planned.name(int(own.operation[n % len(own)]))

        outcome = launch(
            [
                sys.executable,
                "-m",
                "moetraffic.replay",
                *request.arguments(),
                "--summary",
                str(result),
            ],
            ranks=planned.world,
            start_deadline_s=request.start_timeout_s,
            # the ranks themselves time out earlier, and name the operation
            operation_deadline_s=request.silence_s,
            grace_s=request.grace_s,
            on_event=on_event,
            namer=name,
        )
        raise_failure(outcome)
        return from_json(Replay, result.read_text())


def replay_trace(
    trace: Trace | str | Path,
    *,
    ranks: int | None = None,
    pace: str | Pace = "asap",
    **options: Any,
) -> Replay:
    """Replay a trace on ranks that are started on this host.

    Parameters
    ----------
    trace
        The trace, or its file.
    ranks
        Number of ranks to start; None for that of the trace.
    pace
        When operations are issued: ``"asap"``, ``"captured"``, ``"scaled:0.5"`` or
        ``"open-loop"``.
    **options
        Other fields of :class:`~moetraffic.replay.request.Request`, such as ``out``,
        ``backend``, ``iterations``, ``layers``, ``verify``, ``capacity``,
        ``topology`` and ``force``.

    Returns
    -------
    Replay
        Bytes, times, bandwidths and the comparison with the captured run;
        :meth:`~moetraffic.replay.results.result.Replay.to_frame` tabulates it.

    Raises
    ------
    MoetrafficError
        If the replay cannot start, or if a rank fails: names rank and operation.

    Examples
    --------
    >>> result = replay_trace("run.h5", out="replayed.h5")  # doctest: +SKIP
    >>> result.to_frame().loc[:, ["part", "label", "time_p50_s"]]  # doctest: +SKIP
    """
    for name in ("out", "bandwidth", "fidelity", "metrics"):
        if options.get(name) is not None:
            options[name] = Path(options[name])
    made = parse_pace(pace) if isinstance(pace, str) else pace
    with tempfile.TemporaryDirectory(prefix="moetraffic-") as folder:
        path = Path(folder) / "trace.h5"
        if isinstance(trace, Trace):
            trace.save(path)
        else:
            path = Path(trace)
        request = Request(trace=path, pace=made, **options)
        result = replay(request, nproc=ranks)
        write_reports(request, result)
    return result


def raise_failure(outcome: Outcome) -> None:
    """Raise the error of a launch that failed or was interrupted.

    Raises
    ------
    ReplayError
        If a rank failed: names the rank and the operation.
    Interrupted
        If this process was interrupted.
    """
    if outcome.interrupted:
        raise Interrupted(
            "the replay was interrupted before it was done: start it again",
            outcome.interrupted,
        )
    if not outcome.ok:
        raise ReplayError(outcome.sentence)
