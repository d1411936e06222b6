"""Replay a trace on this host: start and supervise the ranks, return the result.

This process does not import torch, which takes seconds: only the ranks do.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from moetraffic.errors import Interrupted, ReplayError
from moetraffic.launch import Heartbeat, launch
from moetraffic.launch.root_cause import OperationNamer
from moetraffic.replay.backends.requirements import validate_device
from moetraffic.replay.execution.pace import Pace, parse_pace
from moetraffic.replay.plan.background import parse_background
from moetraffic.replay.plan.program import Plan
from moetraffic.replay.plan.selection import Depth, Verification
from moetraffic.replay.results.expectation import expectation
from moetraffic.replay.results.output import check_disk_space, from_json
from moetraffic.replay.results.result import Replay
from moetraffic.trace.iterations import iteration_range, layer_numbers
from moetraffic.trace.trace import Trace
from moetraffic.trace.what_if.rescale import Scaling, factor_of

from .request import Request, grace_s, silence_s

Result = TypeVar("Result")


def replay(
    request: Request,
    *,
    nproc: int | None = None,
    on_plan: Callable[[Plan, str], None] | None = None,
    on_event: Callable[[Heartbeat], None] | None = None,
) -> Replay:
    """Replay a trace on ranks that are started on this host.

    ``on_plan`` gets the plan and its :func:`expectation` before ranks are started.

    Raises
    ------
    MoetrafficError
        If the replay cannot start, or if a rank fails: names rank and operation.
    Interrupted
        After SIGINT or SIGTERM, when all ranks have ended.
    """
    request.validate_outputs()
    with Trace.open(request.trace) as trace:
        request.validate_execution(trace)
        validate_device(request.backend)
        planned = request.plan(trace, world=nproc, ranks=())
        request.validate_baselines(planned.world)
        if request.out is not None:
            check_disk_space(trace, request.trace, planned, request.out)
        if on_plan is not None:
            on_plan(planned, expectation(request.rescaled(trace), planned, request))

        def name(rank: int, n: int) -> str:
            """Return the name of a rank's n-th operation, counted over its passes."""
            own = request.plan(trace, ranks=(rank,))
            if n >= len(own.programs[rank]) * request.passes:
                # after the timed pass, heartbeats name the place
                return "a pass of a pair" if request.pairs else ""
            return own.counted_name(rank, n, verified=request.verifies)

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
                "interrupted before it was done: start it again",
                outcome.interrupted,
            )
        if not outcome.ok:
            raise ReplayError(outcome.sentence)
        return from_json(kind, result.read_text())


def replay_trace(
    trace: Trace | str | Path,
    output: str | Path | None = None,
    *,
    ranks: int | None = None,
    pace: str | Pace = "asap",
    iterations: range | str | None = None,
    layers: Sequence[int] | str | int | None = None,
    verify: str | Verification = "full",
    **options: Any,
) -> Replay:
    """Replay a trace on ranks that are started on this host.

    Parameters
    ----------
    trace
        The trace, or its file.
    output
        Trace to write, with the new times; None for none.
    ranks
        Number of ranks to start; None for that of the trace.
    pace
        When operations are issued: ``"asap"``, ``"captured"``, ``"scaled:0.5"`` or
        ``"open-loop"``.
    iterations, layers
        Iterations and MoE layers to replay, such as ``"10:20"`` and ``[1, 3]``.
    verify
        Bytes to verify before the timed pass: ``"full"``, ``"sample"`` or ``"none"``.
    **options
        Other fields of :class:`~moetraffic.replay.request.Request`, such as
        ``backend``, ``repeat``, ``capacity``, ``topology`` and ``force``, and of its
        :class:`~moetraffic.trace.what_if.rescale.Scaling`, such as ``fold="2"`` and
        ``factor="x0.1"``.

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
    >>> result = replay_trace("run.h5", "replayed.h5")  # doctest: +SKIP
    >>> result.to_frame().loc[:, ["part", "label", "time_p50_s"]]  # doctest: +SKIP
    """
    known = {f.name for f in fields(Request)} - {"trace", "out", "scaling"}
    scaled = {f.name for f in fields(Scaling)} - {"ranks"}
    if unknown := sorted(options.keys() - known - scaled):
        raise ReplayError(
            f"an option of a replay is one of {', '.join(sorted(known | scaled))}, not "
            f"{', '.join(unknown)}: choose one"
        )
    for name in ("bandwidth", "fidelity"):
        if options.get(name) is not None:
            options[name] = Path(options[name])
    if isinstance(options.get("alongside"), str):
        options["alongside"] = parse_background(options["alongside"], "")
    scaling = {name: options.pop(name) for name in scaled & options.keys()}
    if isinstance(scaling.get("factor"), str):
        scaling["factor"] = factor_of(scaling["factor"])
    if isinstance(verify, str):
        depths = [depth.value for depth in Depth]
        if verify not in depths:
            raise ReplayError(
                f"bytes are verified by {', '.join(depths)}, not {verify!r}: choose one"
            )
        verify = Verification(depth=Depth(verify))
    with tempfile.TemporaryDirectory(prefix="moetraffic-") as folder:
        path = Path(folder) / "trace.h5"
        if isinstance(trace, Trace):
            trace.save(path)
        else:
            path = Path(trace)
        request = Request(
            trace=path,
            out=None if output is None else Path(output),
            pace=parse_pace(pace) if isinstance(pace, str) else pace,
            iterations=iteration_range(iterations),
            layers=layer_numbers(layers),
            verify=verify,
            scaling=Scaling(**scaling),
            **options,
        )
        result = replay(request, nproc=ranks)
        if request.fidelity is not None:
            result.write_fidelity(request.fidelity)
    return result
