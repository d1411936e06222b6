"""A process that is one rank of a replay, whoever started it."""

from __future__ import annotations

import torch

from moetraffic.launch import Seat, heartbeat
from moetraffic.trace.trace import Trace

from .agreement import agree, gather
from .backends import backend
from .engine import Engine
from .failure import at
from .plan import make_plan
from .request import Request
from .result import Summary, replayed, summarize


def run_rank(request: Request, seat: Seat) -> Summary | None:
    """Be one rank; the summary is on rank 0, None on the others.

    Raises
    ------
    MoetrafficError
        If the replay cannot start, or a rank failed in it.
    """
    heartbeat.beat("start")
    if seat.rank == 0:
        request.refuse_overwriting()
    torch.set_num_threads(1)
    moves = backend(request.backend)
    with Trace.open(request.trace) as trace:
        planned = make_plan(
            trace,
            world=seat.world,
            ranks=(seat.rank,),
            iterations=request.iterations,
        )
        everyone = tuple(range(seat.world))
        with at(seat.rank, "the meeting of the ranks"):
            moves.start(seat, (*planned.groups, everyone), request.timeout_s)
        nodes = agree(planned, seat.rank, moves)
        engine = Engine(planned, seat.rank, moves)
        heartbeat.beat("ready")
        if request.verify:
            engine.verify()
        times = gather(planned, seat.rank, moves, engine.run())
        summary = None
        if seat.rank == 0:
            if request.out is not None:
                replayed(
                    trace,
                    planned,
                    times,
                    backend=request.backend,
                    nodes=nodes,
                    torch_version=torch.__version__,
                ).save(request.out, force=request.force)
            summary = summarize(
                planned,
                times,
                backend=request.backend,
                nodes=nodes,
                verified=request.verify,
                out=str(request.out or ""),
            )
    moves.stop()
    heartbeat.beat("done")
    return summary
