"""Run one rank of a replay, under any launcher."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

import moetraffic
from moetraffic.arrays import Float64
from moetraffic.launch import RankEnvironment, heartbeat
from moetraffic.launch.machine_resources import available_bytes
from moetraffic.launch.watchdog import Watchdog
from moetraffic.replay.backends.backend import Backend, create
from moetraffic.replay.execution.control import (
    agree_on_memory,
    agree_on_sizes,
    gather_clocks,
    gather_times,
    gathered,
)
from moetraffic.replay.execution.engine import Engine
from moetraffic.replay.plan.background import (
    expert_exchanges,
    pass_order,
    without_bytes,
)
from moetraffic.replay.plan.program import Plan, Timing
from moetraffic.replay.rendezvous.rendezvous import Rendezvous
from moetraffic.replay.rendezvous.store import PLACE
from moetraffic.replay.results.expectation import expectation
from moetraffic.replay.results.machine_load import LoadMeter, host_loads
from moetraffic.replay.results.output import WRITING, WRITING_S
from moetraffic.replay.results.result import Replay
from moetraffic.trace.storage import VERSION
from moetraffic.trace.trace import Trace

from .failure import backend_errors
from .port_probe import PortProbe
from .request import Request, grace_s, silence_s

Times = dict[int, Timing]

BETWEEN_RUNS_S = 1.0
"""Pause between runs, s: the load of a machine or network lasts longer than a short
pass, and runs one right after the other would share it."""
Trial = tuple[Times, Times, Times]


def run_rank(
    request: Request,
    rank_env: RankEnvironment,
    on_plan: Callable[[Plan, str], None] | None = None,
) -> Replay | None:
    """Run one rank of a replay; return the summary on rank 0, None on other ranks.

    ``on_plan`` gets the plan and its :func:`expectation` when all ranks agree.

    Raises
    ------
    MoetrafficError
        If the replay cannot start, or a rank failed in it.
    """
    began_s = time.monotonic()
    heartbeat.send("start", "start-up")
    torch.set_num_threads(1)
    watchdog = Watchdog(
        rank_env.rank,
        start_s=request.start_timeout_s,
        operation_s=silence_s(request.timeout_s),
        grace_s=2 * grace_s(request.timeout_s),
    )
    if not heartbeat.supervised():
        watchdog.start()
    heartbeat.send("start", PLACE)
    rendezvous = Rendezvous(rank_env, request.start_timeout_s, began_s)
    watchdog.extend_start(request.start_timeout_s)  # rank 0 may have started later
    heartbeat.send("start", "start-up")
    with rendezvous.reporting(
        lambda: heartbeat.latest().counted,
        lambda n: watchdog.namer(n) if watchdog.namer else "",
    ):
        summary = _replay(request, rank_env, rendezvous, watchdog, on_plan)
    watchdog.stop()
    heartbeat.send("done")
    return summary


def _replay(
    request: Request,
    rank_env: RankEnvironment,
    rendezvous: Rendezvous,
    watchdog: Watchdog,
    on_plan: Callable[[Plan, str], None] | None,
) -> Replay | None:
    if rank_env.rank == 0:
        request.validate_outputs()
    moves = create(request.backend)
    with Trace.open(request.trace) as trace:
        planned = request.plan(trace, world=rank_env.world, ranks=(rank_env.rank,))
        watchdog.namer = lambda n: planned.counted_name(
            rank_env.rank, n, verified=request.verifies
        )
        expected = ""
        if on_plan is not None:
            # before agree(), whose timeout is the longest, because the other ranks
            # wait meanwhile
            expected = expectation(request.rescaled(trace), planned, request)
        nodes = rendezvous.agree(
            planned,
            {
                "moetraffic": moetraffic.__version__,
                "format": str(VERSION),
                "torch": torch.__version__,
                **request.common_settings(),
            },
        )
        everyone = tuple(range(rank_env.world))
        with backend_errors(rank_env.rank, PLACE):
            moves.start(rank_env, (*planned.used_groups, everyone), request.timeout_s)
        request.pace.validate(
            planned,
            rank_env.rank,
            device=moves.device.type,
            timeout_s=request.timeout_s,
        )
        agree_on_sizes(planned, rank_env.rank, moves)
        free = available_bytes()
        if moves.device.type != "cpu":
            free = torch.cuda.mem_get_info(moves.device)[0]
        agree_on_memory(planned, rank_env.rank, moves, nodes, free)
        if on_plan is not None:
            on_plan(planned, expected)
        rendezvous.ready = True
        store = rendezvous.store.client
        clocks = [gather_clocks(planned, rank_env.rank, moves, store, "start")]

        def engine_of(plan: Plan, passed: int = 0) -> Engine:
            return Engine(
                plan,
                rank_env.rank,
                moves,
                pace=request.pace,
                dtype=getattr(torch, request.dtype),
                graphs=request.graphs,
                passed=passed,
                timeout_s=request.timeout_s,
                threads=bool(request.pairs),
            )

        engine = engine_of(planned)
        heartbeat.send("ready")
        if request.verifies:
            engine.verify(request.verify.chosen(planned))
        engine.warm_up(request.warm_up)
        ports = None
        if request.probe:
            ports = PortProbe(planned, rank_env.rank, moves).run()
        meter, runs = LoadMeter(), []
        for run in range(request.repeat):
            if run:
                time.sleep(BETWEEN_RUNS_S)
            timing = engine.run()
            heartbeat.send("step", "the gathering of times")
            runs.append(gather_times(planned, rank_env.rank, moves, timing))
            moment = f"run {run}"
            clocks.append(gather_clocks(planned, rank_env.rank, moves, store, moment))
        meters = _gather_meters(planned, rank_env.rank, moves, meter)
        pairs = _run_pairs(request, planned, rank_env.rank, moves, engine, engine_of)
        if request.pairs:
            clocks.append(gather_clocks(planned, rank_env.rank, moves, store, "pairs"))
        summary = None
        if rank_env.rank == 0:
            heartbeat.send("step", WRITING, within_s=WRITING_S)
            # slow imports that the other ranks do not need
            from moetraffic.replay.results.conclusion import conclude

            summary = conclude(
                request,
                trace,
                planned,
                runs,
                nodes=nodes,
                torch_version=torch.__version__,
                clocks=np.concatenate(clocks),
                pairs=pairs,
                ports=ports,
                load=host_loads(nodes, meters),
            )
    moves.stop()
    return summary


def _gather_meters(
    plan: Plan, rank: int, backend: Backend, meter: LoadMeter
) -> Float64:
    """Gather the readings of all ranks' load meters, ``[R, 3]`` s, on every rank."""
    with backend_errors(rank, "the gathering of times"):
        own = np.asarray(meter.read(), "<f8")
        return gathered(backend, len(plan.groups), plan.world, own)


def _run_pairs(
    request: Request,
    plan: Plan,
    rank: int,
    backend: Backend,
    engine: Engine,
    engine_of: Callable[[Plan, int], Engine],
) -> list[Trial]:
    """Run passes with, without and with empty background traffic; rank 0 has times."""
    if not request.pairs:
        return []
    counted = request.passes * len(plan.programs[rank])
    engines = {True: engine, False: engine_of(expert_exchanges(plan), counted)}
    empty = engine_of(without_bytes(plan), counted)

    def timed(one: Engine) -> Times:
        return gather_times(plan, rank, backend, one.run())

    found: dict[bool, list[Times]] = {True: [], False: []}
    controls: list[Times] = []
    for number, background in enumerate(pass_order(request.pairs)):
        if number % 2:  # between the two passes of a pair
            controls.append(timed(empty))
        found[background].append(timed(engines[background]))
    return [] if rank else list(zip(found[False], found[True], controls, strict=True))
