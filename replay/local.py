"""Replay on this host: start the ranks, watch them, bring back the summary.

Nothing here imports torch, which takes seconds: only the ranks do.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from moetraffic.errors import Interrupted, ReplayError
from moetraffic.launch import Event, Outcome, launch
from moetraffic.trace.trace import Trace

from .plan import Plan, make_plan
from .request import Request
from .result import Slow, Spread, Summary

_START_S = 120.0  # to import torch, read the trace and meet, on a busy host


def replay(
    request: Request,
    *,
    nproc: int | None = None,
    on_plan: Callable[[Plan], None] | None = None,
    on_event: Callable[[Event], None] | None = None,
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
    request.refuse_overwriting()
    with (
        Trace.open(request.trace) as trace,
        tempfile.TemporaryDirectory(prefix="moetraffic-") as folder,
    ):
        planned = make_plan(trace, world=nproc, ranks=(), iterations=request.iterations)
        if on_plan is not None:
            on_plan(planned)
        told = Path(folder) / "summary.json"

        def name(rank: int, n: int) -> str:
            """A rank's n-th operation, counted over the verifying and timed pass."""
            own = make_plan(
                trace, ranks=(rank,), iterations=request.iterations
            ).programs[rank]
            if n >= len(own) * (2 if request.verify else 1):
                return "the gathering of times"
            return planned.name(int(own.operation[n % len(own)]))

        outcome = launch(
            [sys.executable, "-m", "moetraffic.replay", *arguments(request, told)],
            ranks=planned.world,
            start_deadline_s=max(_START_S, 2 * request.timeout_s),
            # the ranks themselves time out first, and then say where
            operation_deadline_s=1.5 * request.timeout_s + 2.0,
            grace_s=min(3.0, request.timeout_s),
            on_event=on_event,
            namer=name,
        )
        refuse_failure(outcome)
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
    if request.force:
        line += ["--force"]
    line += ["--verify", "full" if request.verify else "off"]
    return [*line, "--timeout", str(request.timeout_s), "--summary", str(summary)]


def refuse_failure(outcome: Outcome) -> None:
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
    said = json.loads(path.read_text())
    del said["kind"]
    for name in ("time_us", "algbw_gbs", "busbw_gbs"):
        said[name] = Spread(**said[name]) if said[name] else None
    said["slowest"] = tuple(Slow(**slow) for slow in said["slowest"])
    for name in ("nodes", "rank_bytes"):
        said[name] = tuple(said[name])
    return Summary(**said)
