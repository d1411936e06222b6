"""Run one rank of a benchmark of collectives."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from datetime import datetime, timezone

import numpy as np
import torch
import torch.distributed as dist

import moetraffic
from moetraffic.launch import RankEnvironment, heartbeat
from moetraffic.patterns.collectives import UNEVEN, uneven_bytes, wire_bytes
from moetraffic.replay.backends.backend import Backend, create
from moetraffic.replay.execution.control import gathered
from moetraffic.replay.failure import backend_errors
from moetraffic.replay.plan.program import REDUCTIONS

from .operations import ROOT, Operation
from .result import Bench, Row
from .sweep import ROOTED, BenchmarkCall, Sweep, validate_sweep

_NODE_BYTES = 64


def run_rank(sweep: Sweep, rank_env: RankEnvironment) -> Bench | None:
    """Run one rank of a benchmark; return the result on rank 0, None on others.

    Raises
    ------
    MoetrafficError
        If the benchmark cannot start, or a rank failed.
    """
    heartbeat.send("start")
    validate_sweep(sweep, rank_env.world)
    torch.set_num_threads(1)
    moves = create(sweep.backend)
    with backend_errors(rank_env.rank, "the rendezvous"):
        moves.start(rank_env, [tuple(range(rank_env.world))], sweep.timeout_s)
        name = np.array([platform.node().encode()], f"S{_NODE_BYTES}")
        every = gathered(moves, 0, rank_env.world, name)[:, 0].tolist()
    nodes = tuple(node.decode(errors="replace") for node in every)
    heartbeat.send("ready")
    counter = heartbeat.counter()
    rows = []
    calls = sweep.calls(rank_env.world)
    for number, call in enumerate(calls):
        with backend_errors(rank_env.rank, str(call)):
            rows.append(_measure(call, sweep, rank_env, moves, counter, nodes))
        heartbeat.send("step", stage="bench", done=number + 1, of=len(calls))
    moves.stop()
    heartbeat.send("done")
    if rank_env.rank:
        return None
    return Bench(
        backend=sweep.backend,
        ranks=rank_env.world,
        nodes=nodes,
        warmup=sweep.warmup,
        iterations=sweep.iterations,
        check=sweep.check,
        moetraffic=moetraffic.__version__,
        torch=torch.__version__,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        rows=tuple(rows),
    )


def _measure(
    call: BenchmarkCall,
    sweep: Sweep,
    rank_env: RankEnvironment,
    moves: Backend,
    counter: memoryview,
    nodes: Sequence[str],
) -> Row:
    device = moves.device
    operation = Operation(call, sweep, rank_env.rank, rank_env.world, moves)

    def settle() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def times(number: int) -> None:
        for _ in range(number):
            counter[0] += 1
            operation.run()
            counter[0] += 1

    # Step 1: check the results before anything is timed.
    wrong = torch.zeros(1, dtype=torch.int64, device=device)
    for salt in range(sweep.check):
        counter[0] += 1
        wrong += operation.wrong(salt)
        counter[0] += 1
    # Step 2: warm up, synchronize, and time the whole loop.
    times(sweep.warmup)
    settle()
    dist.barrier()
    begin = time.perf_counter_ns()
    times(sweep.iterations)
    settle()
    took = (time.perf_counter_ns() - begin) / sweep.iterations
    # Step 3: the time of the operation is that of the slowest rank.
    slowest = torch.tensor([took], dtype=torch.float64, device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    dist.all_reduce(wrong)
    nanoseconds = float(slowest.item())
    kind, size = call.collective, call.size_bytes
    if kind == UNEVEN:
        wire = uneven_bytes(sweep.scaled(size))[1]
    else:
        wire = round(float(wire_bytes(kind, rank_env.world, size)))
    return Row(
        collective=kind,
        platform=sweep.platform,
        protocol=sweep.protocol,
        ranks=rank_env.world,
        span=len(set(nodes)),
        place=call.place,
        size_bytes=size,
        wire_bytes=wire,
        count=operation.count,
        dtype=sweep.dtype,
        redop="sum" if kind in REDUCTIONS else "none",
        root=ROOT if kind in ROOTED else -1,
        time_us=nanoseconds / 1e3,
        algbw_gbs=size / nanoseconds,
        busbw_gbs=wire / nanoseconds,
        wrong=int(wrong.item()) if sweep.check else -1,
    )
