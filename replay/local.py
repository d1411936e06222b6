"""Replay a trace on this host: start and supervise the ranks, return the result.

This process does not import torch, which takes seconds: only the ranks do.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from moetraffic.errors import Interrupted, ReplayError
from moetraffic.launch import Heartbeat, launch
from moetraffic.launch.root_cause import OperationNamer
from moetraffic.replay.execution.pace import Pace, parse_pace
from moetraffic.replay.plan.program import Plan
from moetraffic.replay.results.metrics import write_reports
from moetraffic.replay.results.output import check_disk_space, from_json
from moetraffic.replay.results.result import Replay
from moetraffic.trace.trace import Trace

from .request import Request, grace_s, silence_s

Result = TypeVar("Result")


def replay(
    request: Request,
    *,
    nproc: int | None = None,
    on_plan: Callable[[Plan], None] | None = None,
    on_event: Callable[[Heartbeat], None] | None = None,
) -> Replay:
    """Replay a trace on ranks that are started on this host.

    Raises
    ------
    MoetrafficError
        If the replay cannot start, or if a rank fails: names rank and operation.
    Interrupted
        After SIGINT or SIGTERM, when all ranks have ended.
    """
    request.validate_outputs()
    with Trace.open(request.trace) as trace:
        planned = request.plan(trace, world=nproc, ranks=())
        request.validate_baselines(planned.world)
        if request.out is not None:
            check_disk_space(trace, request.trace, planned, request.out)
        if on_plan is not None:
            on_plan(planned)

        def name(rank: int, n: int) -> str:
            """Return the name of a rank's n-th operation, counted over its passes."""
            own = request.plan(trace, ranks=(rank,)).programs[rank]
            if n >= len(own) * request.passes:
                # after the timed pass, heartbeats name the place
                return "a pass of a pair" if request.pairs else ""
            return planned.name(int(own.operation[n % len(own)]))

        return start_ranks(
            Replay,
            ["moetraffic.replay", *request.arguments()],
            ranks=planned.world,
            start_s=request.start_timeout_s,
            timeout_s=request.timeout_s,
            on_event=on_event,
            namer=name,
        )


def start_ranks(
    kind: type[Result],
    program: Sequence[str],
    *,
    ranks: int,
    start_s: float,
    timeout_s: float,
    on_event: Callable[[Heartbeat], None] | None,
    namer: OperationNamer,
) -> Result:
    """Run a Python module as ranks on this host and return the result of rank 0.

    The module gets ``program[1:]`` and an option ``--summary`` with the file to which
    rank 0 writes its result, a dataclass of type ``kind``.  A rank fails by itself if
    an operation takes longer than ``timeout_s``.

    Raises
    ------
    ReplayError
        If a rank failed: names the rank and the operation.
    Interrupted
        If this process was interrupted.
    """
    with tempfile.TemporaryDirectory(prefix="moetraffic-") as folder:
        result = Path(folder) / "summary.json"
        outcome = launch(
            [sys.executable, "-m", *program, "--summary", str(result)],
            ranks=ranks,
            start_deadline_s=start_s,
            operation_deadline_s=silence_s(timeout_s),
            grace_s=grace_s(timeout_s),
            on_event=on_event,
            namer=namer,
        )
        if outcome.interrupted:
            raise Interrupted(
                "the replay was interrupted before it was done: start it again",
                outcome.interrupted,
            )
        if not outcome.ok:
            raise ReplayError(outcome.sentence)
        return from_json(kind, result.read_text())


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
    for name in ("out", "bandwidth", "fidelity", "metrics", "resume"):
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
