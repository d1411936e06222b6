"""Replay a trace: plan it, start and supervise the ranks, or be one of them.

Ranks of this host are ``python -m moetraffic.replay.run OPTIONS RESULT``, files of
JSON; under torchrun and srun the command line calls :func:`run_rank`.  The parent of
ranks does not import torch, which takes seconds.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import moetraffic
from moetraffic.errors import Interrupted, ReplayError
from moetraffic.files import write_text
from moetraffic.launch import devices
from moetraffic.launch.board import State, own
from moetraffic.launch.environment import RankEnvironment, current_rank
from moetraffic.launch.ranks import OnRows, launch
from moetraffic.result import Result
from moetraffic.tables import plain
from moetraffic.trace.iterations import iteration_range, layer_numbers
from moetraffic.trace.model import ALL_TO_ALL
from moetraffic.trace.storage import VERSION
from moetraffic.trace.trace import Trace
from moetraffic.trace.what_if.rescale import Scaling, factor_of, rescaled

from .failure import backend_errors, run_to_exit
from .options import Options, check_backend, on_gpu
from .pace import Pace, parse_pace
from .plan.background import (
    check_comparable,
    expert_exchanges,
    smallest,
    traffic_of,
)
from .plan.operations import KINDS, REDUCTIONS, Plan, operations
from .plan.program import Program, Timing, program

if TYPE_CHECKING:
    from .transport import Bound

OnPlan = Callable[[Plan, tuple[str, ...]], None]
"""Gets the plan and what is expected of the replay, in sentences, before it starts."""

GATHERING = "the gathering of times"
WRITING = "the writing of the trace"
WRITING_S = 900.0
"""Longest time, in s, that writing the trace may take."""

BETWEEN_RUNS_S = 1.0
"""Pause between runs, s: the load of a machine or network lasts longer than a short
pass, and runs one right after the other would share it."""

LOCAL_BYTES_S = 1e8
"""Slowest rate at which a rank computes payloads, bytes/s: others wait for it."""


def planned(
    options: Options, trace: Trace, nproc: int | None = None
) -> tuple[Trace, Plan]:
    """Plan the replay of a trace: on other ranks, with other bytes, with background.

    Returns the trace that is replayed, read lazily from ``trace``, and its plan.

    Raises
    ------
    MoetrafficError
        If the replay cannot be planned with these options.
    """
    replayed, ledger = trace, None
    if options.scaling:
        replayed, ledger = rescaled(trace, options.scaling)
    world = replayed.meta.world
    if ledger is not None and nproc not in (None, world):
        raise ReplayError(
            f"{trace.name}, mapped to other ranks or bytes, takes {world}, "
            f"but there are {nproc} ranks: start {world} (--nproc {world})"
        )
    background = None
    if options.background:
        background = traffic_of(options.background, options.model, world)
    plan = operations(
        replayed,
        world=nproc,
        iterations=options.iterations,
        layers=options.layers,
        dense=options.dense,
        background=background,
        # NCCL requires one order of launches on communicators that overlap
        in_common=on_gpu(options.backend)
        or (ledger is not None and ledger.in_common_order),
    )
    options.pace.check_plan(plan)
    if options.pairs:
        check_comparable(plan)
    if ledger is not None:
        exchanges = plan.occurrence[plan.kind == KINDS.index(ALL_TO_ALL)]
        plan = replace(plan, notes=(*ledger.lines(exchanges), *plan.notes))
    return replayed, plan


def passes(options: Options, plan: Plan, of_rank: Program) -> list[tuple[str, Program]]:
    """List the passes of a rank that count operations: name and program of each.

    "verify", "run", and of pairs "beside" background traffic, "alone", and "smallest",
    which has the operations of "beside" at their smallest sizes.
    """
    listed = [("verify", of_rank)] * options.verifies
    listed += [("run", of_rank)] * options.repeat
    if options.pairs:
        trial = [
            ("beside", of_rank),
            ("smallest", smallest(plan, of_rank)),
            ("alone", expert_exchanges(of_rank)),
        ]
        for pair in range(options.pairs):  # drift of the machine affects all
            listed += trial[::-1] if pair % 2 else trial
    return listed


def counted_name(options: Options, plan: Plan, of_rank: Program, count: int) -> str:
    """Return the name of a rank's operation, counted from 0 over all its passes."""
    for name, of_pass in passes(options, plan, of_rank):
        if count < len(of_pass):
            calls = of_pass.operation
            calls = plan.order(calls) if name == "verify" else calls
            return plan.name(int(calls[count]))
        count -= len(of_pass)
    return ""


# ---- the parent of ranks -----------------------------------------------------------


def replay(
    options: Options,
    *,
    nproc: int | None = None,
    on_plan: OnPlan | None = None,
    on_rows: OnRows | None = None,
) -> Result:
    """Replay a trace on ranks that are started on this host.

    ``on_rows`` gets the rows of the ranks' board when one of them has changed.

    Raises
    ------
    MoetrafficError
        If the replay cannot start, or if a rank fails: names rank and operation.
    Interrupted
        After SIGINT or SIGTERM, when all ranks have ended.
    """
    from .results.dry_run import dry_run

    options.check_outputs()
    check_backend(options.backend, here=True)
    with Trace.open(options.trace) as trace:
        replayed, plan = planned(options, trace, nproc)
        expected = dry_run(options, replayed, plan).verdict
        if on_plan is not None:
            on_plan(plan, expected)

        def name(rank: int, count: int) -> str:
            return counted_name(options, plan, program(replayed, plan, rank), count)

        return start_ranks(
            "moetraffic.replay.run",
            options.to_json(),
            ranks=plan.world,
            start_s=options.start_timeout_s,
            silence_s=options.silence_s,
            grace_s=options.grace_s,
            on_rows=on_rows,
            namer=name,
        )


def start_ranks(module: str, settings: str, **supervision: Any) -> Result:
    """Run a module as ranks of this host and return the result of rank 0.

    The module gets two files: with ``settings``, and for :func:`rank_result`.
    ``supervision`` are options of :func:`moetraffic.launch.ranks.launch`.

    Raises
    ------
    ReplayError
        If a rank failed: names the rank and the operation.
    Interrupted
        If this process was interrupted.
    """
    with tempfile.TemporaryDirectory(prefix="moetraffic-") as folder:
        given, made = Path(folder) / "settings.json", Path(folder) / "result.json"
        given.write_text(settings)
        outcome = launch(["-m", module, str(given), str(made)], **supervision)
        if outcome.interrupted:
            raise Interrupted(
                "interrupted before it was done: start it again", outcome.interrupted
            )
        if not outcome.ok:
            raise ReplayError(outcome.sentence)
        values = json.loads(made.read_text())
    for name in ("screen", "verdict", "notes"):
        values[name] = tuple(values[name])
    return Result(**values)


def rank_result(
    settings: str, result: str, work: Callable[[str, RankEnvironment], Result | None]
) -> None:
    """Be a rank of :func:`start_ranks`: run a function, and write its result."""
    rank_env = current_rank()
    assert rank_env is not None
    text = Path(settings).read_text()
    made = run_to_exit(lambda: work(text, rank_env), rank_env)
    if made is not None:
        values = {f.name: getattr(made, f.name) for f in fields(Result)}
        values["tables"] = {name: made.rows(name) for name in made.tables}
        text = json.dumps(values, default=plain)
        write_text(Path(result), text, error=ReplayError)


def replay_trace(
    trace: Trace | str | Path,
    output: str | Path | None = None,
    *,
    ranks: int | None = None,
    pace: str | Pace = "asap",
    iterations: range | str | None = None,
    layers: Sequence[int] | str | int | None = None,
    **options: Any,
) -> Result:
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
    **options
        Other fields of :class:`~moetraffic.replay.options.Options`, such as
        ``backend``, ``verify``, ``repeat``, ``capacity``, ``topology`` and ``force``,
        and of its :class:`~moetraffic.trace.what_if.rescale.Scaling`, such as
        ``fold="2"`` and ``factor="x0.1"``.

    Returns
    -------
    Result
        Bytes, times, bandwidths and the comparison with the captured run.

    Raises
    ------
    MoetrafficError
        If the replay cannot start, or if a rank fails: names rank and operation.

    Examples
    --------
    >>> result = replay_trace("run.h5", "replayed.h5")  # doctest: +SKIP
    >>> result.frame("kinds")  # doctest: +SKIP
    """
    names = {f.name for f in fields(Options)} - {"trace", "out", "scaling"}
    scaled = {f.name for f in fields(Scaling)} - {"ranks"}
    if unknown := sorted(options.keys() - names - scaled):
        raise ReplayError(
            f"an option of a replay is one of {', '.join(sorted(names | scaled))}, not "
            f"{', '.join(unknown)}: choose one"
        )
    scaling = {name: options.pop(name) for name in scaled & options.keys()}
    if isinstance(scaling.get("factor"), str):
        scaling["factor"] = factor_of(scaling["factor"])
    with tempfile.TemporaryDirectory(prefix="moetraffic-") as folder:
        path = Path(folder) / "trace.h5"
        if isinstance(trace, Trace):
            trace.save(path)
        else:
            path = Path(trace)
        made = Options(
            trace=path,
            out=None if output is None else Path(output),
            pace=parse_pace(pace) if isinstance(pace, str) else pace,
            iterations=iteration_range(iterations),
            layers=layer_numbers(layers),
            scaling=Scaling(**scaling),
            **options,
        )
        return replay(made, nproc=ranks)


# ---- a rank ------------------------------------------------------------------------


def run_rank(
    options: Options, rank_env: RankEnvironment, on_plan: OnPlan | None = None
) -> Result | None:
    """Run one rank of a replay; return the result on rank 0, None on other ranks.

    ``on_plan`` gets the plan, and what is expected, when all ranks agree.
    """
    own().note("start-up", State.STARTING)
    import torch

    from .agree import PLAN, meeting
    from .payload import verify
    from .results.dry_run import dry_run
    from .results.facts import stack_rows
    from .results.load import reading
    from .results.ports import measure_ports
    from .results.result import conclude
    from .transport import Bound, Transport

    rank, world, _ = rank_env
    made: list[tuple[Trace, Plan]] = []

    def name(rank: int, count: int) -> str:
        if not made:
            return ""
        replayed, plan = made[0]
        return counted_name(options, plan, program(replayed, plan, rank), count)

    with meeting(
        rank_env,
        name,
        start_s=options.start_timeout_s,
        silence_s=options.silence_s,
        grace_s=2 * options.grace_s,
    ) as met:
        # Step 1: agree, without the backend
        if rank == 0:
            options.check_outputs()
        trace = Trace.open(options.trace)
        replayed, plan = planned(options, trace, world)
        made.append((replayed, plan))
        of_rank = program(replayed, plan, rank)
        nodes = met.handshake(
            {
                "moetraffic": moetraffic.__version__,
                "format": str(VERSION),
                "torch": torch.__version__,
                **options.common(),
                PLAN: plan.digest,
            }
        )
        options.pace.check_program(plan, of_rank, options.timeout_s)
        # Step 2: groups and buffers
        # others compute payloads while an operation waits for them
        patience_s = options.timeout_s + _computing_s(plan) * options.verifies
        transport = Transport(options.backend)
        with backend_errors(rank, "the creation of groups"):
            transport.start(rank_env, plan.used_groups, patience_s, met.store)
        on_host = transport.device.type == "cpu"
        met.memory(sum(of_rank.buffer_bytes) * on_host, devices.available_bytes())
        if on_plan is not None:
            on_plan(plan, dry_run(options, replayed, plan).verdict)
        knots = [met.clocks("start")]
        bound = Bound(plan, of_rank, transport)
        own().note("", State.READY)
        # Step 3: passes
        listed, done = passes(options, plan, of_rank), 0
        if options.verifies:
            verify(bound)
            listed, done = listed[1:], len(of_rank)
        transport.set_timeout(options.timeout_s)
        own().note("the warm-up")
        bound.warm_up()
        ports: list[dict[str, Any]] = []
        if options.ports:
            own().note("the measurement of ports")
            with backend_errors(rank, "the measurement of ports"):
                ports = measure_ports(transport, nodes)
        times: dict[str, list[dict[int, Timing]]] = defaultdict(list)
        load = reading()
        for number, (name_of_pass, of_pass) in enumerate(listed):
            if number and name_of_pass == "run":
                time.sleep(BETWEEN_RUNS_S)
            own().note("")
            timing = timed_pass(
                options, Bound(plan, of_pass, transport, like=bound), done
            )
            done += len(of_pass)
            own().note(GATHERING, within_s=options.start_timeout_s)
            tables = met.gather(f"pass {number}", timing.columns())
            times[name_of_pass].append(
                {r: Timing.of(columns) for r, columns in enumerate(tables)}
            )
            met.answer(f"pass {number}")  # all wait until rank 0 has them
            if name_of_pass == "run" or number + 1 == len(listed):
                knots.append(met.clocks(f"pass {number}"))
        meters = met.gather("load", (reading() - load)[None])
        # Step 4: the result
        result = None
        if rank == 0:
            own().note(WRITING, within_s=WRITING_S)
            trials = (times[name] for name in ("alone", "beside", "smallest"))
            result = conclude(
                options,
                replayed,
                plan,
                times["run"],
                nodes=nodes,
                clocks=np.concatenate(knots),
                stack=stack_rows(options.backend, transport.device),
                meters=np.concatenate(meters),
                ports=ports,
                trials=list(zip(*trials, strict=True)),
            )
        transport.stop()
        trace.close()
    return result


def timed_pass(options: Options, bound: Bound, passed: int = 0) -> Timing:
    """Run a timed pass through a program, after ``passed`` operations of this rank."""
    from .host_loop import TimedPass, run

    timed = TimedPass(bound, options.pace, passed)
    if bound.transport.device.type == "cuda":
        from .device_loop import DevicePass

        DevicePass(timed, options.timeout_s).run()
    else:
        run(timed, overlap=bool(options.pairs))
    return timed.timing()


def _computing_s(plan: Plan) -> float:
    """Return the longest time that a rank computes payloads in a verification, s."""
    sums = np.isin(plan.kind, [KINDS.index(kind) for kind in REDUCTIONS])
    nbytes = plan.largest_bytes + np.where(
        sums, plan.size * plan.width, plan.largest_bytes
    )
    return float(plan.by_rank(nbytes).max(initial=0)) / LOCAL_BYTES_S


def main(settings: str, result: str) -> None:
    """Run this process as a rank of a supervisor."""
    rank_result(
        settings, result, lambda text, env: run_rank(Options.from_json(text), env)
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
