"""A process that is one rank of a replay, whoever started it."""

from __future__ import annotations

from functools import partial

import torch

import moetraffic
from moetraffic.launch import RankEnvironment, heartbeat
from moetraffic.launch.machine_resources import available_bytes
from moetraffic.launch.watchdog import Watchdog
from moetraffic.replay.backends.backend import backend
from moetraffic.replay.execution.background_pairs import without
from moetraffic.replay.execution.background_passes import compare
from moetraffic.replay.execution.clocks import knots
from moetraffic.replay.execution.control import agree_on_sizes, gather
from moetraffic.replay.execution.engine import Engine
from moetraffic.replay.rendezvous.rendezvous import Rendezvous
from moetraffic.replay.rendezvous.store import PLACE
from moetraffic.replay.results.output import WRITING, WRITING_S
from moetraffic.replay.results.result import Summary
from moetraffic.trace.file_format import VERSION
from moetraffic.trace.trace import Trace

from .failure import at
from .request import Request


def run_rank(request: Request, rank_env: RankEnvironment) -> Summary | None:
    """Be one rank; the summary is on rank 0, None on the others.

    Raises
    ------
    MoetrafficError
        If the replay cannot start, or a rank failed in it.
    """
    heartbeat.send("start", "start-up")
    torch.set_num_threads(1)
    watchdog = Watchdog(
        rank_env.rank,
        start_s=request.start_timeout_s,
        operation_s=request.silence_s,
        grace_s=2 * request.grace_s,
    )
    if not heartbeat.supervised():
        watchdog.start()
    heartbeat.send("start", PLACE)
    meeting = Rendezvous(rank_env, request.start_timeout_s)
    heartbeat.send("start", "start-up")
    with meeting.reporting(
        lambda: heartbeat.latest().counted,
        lambda n: watchdog.namer(n) if watchdog.namer else "",
    ):
        summary = _replay(request, rank_env, meeting, watchdog)
    watchdog.stop()
    heartbeat.send("done")
    return summary


def _replay(
    request: Request, rank_env: RankEnvironment, meeting: Rendezvous, watchdog: Watchdog
) -> Summary | None:
    if rank_env.rank == 0:
        request.validate_outputs()
    moves = backend(request.backend, registered=request.registered)
    with Trace.open(request.trace) as trace:
        planned = request.plan(trace, world=rank_env.world, ranks=(rank_env.rank,))
        program = planned.programs[rank_env.rank]
        watchdog.namer = lambda n: planned.name(
            int(program.operation[n % len(program)])
        )
        nodes = meeting.agree(
            planned,
            {
                "moetraffic": moetraffic.__version__,
                "format": str(VERSION),
                "torch": torch.__version__,
                **request.terms(),
            },
        )
        everyone = tuple(range(rank_env.world))
        with at(rank_env.rank, PLACE):
            moves.start(rank_env, (*planned.groups, everyone), request.timeout_s)
        request.pace.validate(
            planned,
            rank_env.rank,
            device=moves.device.type,
            timeout_s=request.timeout_s,
        )
        agree_on_sizes(planned, rank_env.rank, moves)
        on_host = moves.device.type == "cpu"
        meeting.announce(
            pool="host" if on_host else str(moves.device),
            needs=sum(program.buffer_bytes),
            free=available_bytes()
            if on_host
            else torch.cuda.mem_get_info(moves.device)[0],
        )
        drive = partial(
            Engine,
            rank=rank_env.rank,
            backend=moves,
            pace=request.pace,
            dtype=getattr(torch, request.dtype),
            graphs=request.graphs,
        )
        engine = drive(planned)
        heartbeat.send("ready")
        if request.passes > 1:
            engine.verify(request.verify.chosen(planned))
        engine.warm_up(request.warm_up)
        timing = engine.run()
        heartbeat.send("step", "the gathering of times")
        times = gather(planned, rank_env.rank, moves, timing)
        pairs = []
        if request.pairs:
            counted = request.passes * len(program)
            alone = drive(without(planned), passed=counted)
            pairs = compare(
                *(planned, rank_env.rank, moves),
                beside=engine,
                alone=alone,
                pairs=request.pairs,
            )
        clocks = knots(planned, rank_env.rank, moves)
        summary = None
        if rank_env.rank == 0:
            heartbeat.send("step", WRITING, within_s=WRITING_S)
            # its imports take long, and the other ranks need none of it
            from moetraffic.replay.results.conclusion import conclude

            summary = conclude(
                request,
                trace,
                planned,
                times,
                nodes=nodes,
                torch_version=torch.__version__,
                clocks=clocks,
                scale=request.scaling.scale(trace),
                pace=str(request.pace),
                alone=pairs,
            )
    moves.stop()
    return summary
