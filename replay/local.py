"""Replay on this host: start the ranks, watch them, bring back the summary.

Nothing here imports torch, which takes seconds: only the ranks do.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from moetraffic.errors import Interrupted, ReplayError
from moetraffic.launch import Heartbeat, Outcome, launch
from moetraffic.replay.plan.program import Plan
from moetraffic.replay.results.output import check_disk_space
from moetraffic.replay.results.records import from_json
from moetraffic.replay.results.result import Summary
from moetraffic.trace.trace import Trace

from .request import Request


def replay(
    request: Request,
    *,
    nproc: int | None = None,
    on_plan: Callable[[Plan], None] | None = None,
    on_event: Callable[[Heartbeat], None] | None = None,
) -> Summary:
    """Replay a trace on ranks that are started here, on this host.

    Parameters
    ----------
    request
        What to replay, and how.
    nproc
        Ranks to start; None is as many as the trace has.
    on_plan, on_event
        Called with the plan before the ranks start, and with each of their heartbeats.

    Raises
    ------
    MoetrafficError
        If the replay cannot start; or naming the rank and the operation that failed.
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
        told = Path(folder) / "summary.json"

        def name(rank: int, n: int) -> str:
            """A rank's n-th operation, counted over its passes."""
            own = request.plan(trace, ranks=(rank,)).programs[rank]
            if n >= len(own) * request.passes:
                # done with them: the heartbeat names what it does then
                return "a pass that is compared" if request.pairs else ""
            return planned.name(int(own.operation[n % len(own)]))

        outcome = launch(
            [sys.executable, "-m", "moetraffic.replay", *arguments(request, told)],
            ranks=planned.world,
            start_deadline_s=request.start_timeout_s,
            # the ranks themselves time out first, and then say where
            operation_deadline_s=request.silence_s,
            grace_s=request.grace_s,
            on_event=on_event,
            namer=name,
        )
        raise_failure(outcome)
        return read_summary(told)


def arguments(request: Request, summary: Path) -> list[str]:
    """The command line of a rank; rank 0 writes its summary into the file."""
    line = [str(request.trace), "--backend", request.backend]
    if request.out is not None:
        line += ["-o", str(request.out)]
    if request.iterations is not None:
        line += [
            "--iterations",
            f"{request.iterations.start}:{request.iterations.stop}",
        ]
    line += request.changes()
    if request.force:
        line += ["--force"]
    line += request.driving()
    for option, value in (
        ("--capacity", request.capacity),
        ("--topology", request.topology),
        ("--bandwidth", request.bandwidth),
    ):
        if value is not None:
            line += [option, str(value)]
    checks = request.verify
    line += ["--verify", checks.depth.value, "--sample", str(checks.share)]
    line += ["--sample-seed", str(checks.seed)]
    line += ["--timeout", str(request.timeout_s)]
    line += ["--start-timeout", str(request.start_timeout_s)]
    return [*line, "--summary", str(summary)]


def raise_failure(outcome: Outcome) -> None:
    """Raise what a failed outcome says.

    Raises
    ------
    ReplayError
        Naming the rank and the operation.
    Interrupted
        If this process was asked to end.
    """
    if outcome.interrupted:
        raise Interrupted(
            "the replay was interrupted before it was done: start it again",
            outcome.interrupted,
        )
    if not outcome.ok:
        raise ReplayError(outcome.sentence)


def read_summary(path: Path) -> Summary:
    """The summary that rank 0 wrote."""
    return from_json(Summary, path.read_text())
