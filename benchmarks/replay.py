"""What replaying costs, how punctual it is, and what a long trace takes.

- *asap*: whole passes on gloo, with times and under supervision, in pairs with a bare
  loop of ``all_to_all_single`` with the same splits on preallocated buffers of its own.
  Which goes first alternates.  A pass is from the first issue to the last end, of the
  rank for which that is longest.
- *asap, dense*: the same with the trace's all-reduces, one after each exchange.
- *captured pace*: gaps of 0.5 to 3 ms between exchanges; how late each is issued.
- *a million operations*: time and memory to plan them for one rank, and how memory
  grows while one rank goes through them.

Run ``python benchmarks/replay.py``; in small ``--pairs 5 --operations 500 --large
20000``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from exchanges import exchanges
from page import save

from moetraffic.launch.board import State, own
from moetraffic.launch.environment import RankEnvironment, current_rank
from moetraffic.launch.ranks import launch
from moetraffic.replay.options import Options
from moetraffic.replay.pace import parse_pace
from moetraffic.replay.plan.operations import operations
from moetraffic.replay.plan.program import Program, program
from moetraffic.replay.run import timed_pass
from moetraffic.replay.transport import Bound, Transport
from moetraffic.trace.trace import Trace

LIMITS = {"ratio": 1.05, "ratio_high": 1.10, "p50_us": 100.0, "p99_us": 2000.0}
LIMITS_PLAN = {"plan_s": 30.0, "plan_gb": 1.0}
DRAWS = 2000
PAGE = resource.getpagesize()


# ---- ranks -----------------------------------------------------------------------


def bare(program: Program, moves: Transport) -> Any:
    """The loop to compare with, and its buffers."""
    send, receive = (torch.zeros(n, dtype=torch.uint8) for n in program.buffer_bytes)
    floats = torch.zeros(len(receive) // 4 + 1)
    group = [dist.group.WORLD if g is None else g for g in moves._groups]
    calls: list[Any] = []
    for n in range(len(program)):
        sends, gets = program.sends(n).tolist(), program.receives(n).tolist()
        own = group[int(program.group[n])]
        if sends:
            buffers = receive[: sum(gets)], send[: sum(sends)]
            calls.append((*buffers, gets, sends, own))
        else:
            into = floats[: int(program.receive_size[n]) // 4]
            calls.append((into, None, None, None, own))

    def loop() -> float:
        dist.barrier()
        begin = time.perf_counter()
        for output, given, gets, sends, of in calls:
            if given is None:
                dist.all_reduce(output, group=of)
            else:
                dist.all_to_all_single(output, given, gets, sends, group=of)
        return time.perf_counter() - begin

    return loop


def as_rank(rank_env: RankEnvironment, options: argparse.Namespace) -> None:
    """Be one rank; rank 0 writes what it measured."""
    torch.set_num_threads(1)
    own().note("start-up", State.STARTING)
    path = Path(options.trace)
    pace = "captured" if options.rank_task == "pace" else "asap"
    asked = Options(trace=path, pace=parse_pace(pace))
    with Trace.open(path) as trace:
        plan = operations(trace)
        own_program = program(trace, plan, rank_env.rank)
    moves = Transport("gloo")
    moves.start(rank_env, plan.groups, 60.0)
    own().note("", State.READY)
    found: dict[str, Any] = {}
    before = resident()
    bound = Bound(plan, own_program, moves)
    if options.rank_task == "pairs":
        loop = bare(own_program, moves)

        def replayed() -> float:
            timing = timed_pass(asked, bound)
            return float(timing.end[-1] - timing.issue[0]) / 1e9

        loop(), replayed()
        rows = []
        for pair in range(options.pairs):
            ways = (replayed, loop) if pair % 2 else (loop, replayed)
            took = {way: way() for way in ways}
            both = torch.tensor([took[replayed], took[loop]], dtype=torch.float64)
            dist.all_reduce(both, dist.ReduceOp.MAX)
            rows.append(both.tolist())
        found = {"pairs": rows, "operations": len(own_program)}
    elif options.rank_task == "pace":
        timing = timed_pass(asked, bound)
        found = {"late_us": ((timing.issue - timing.due) / 1e3).tolist()}
    else:
        most = [0]

        def watched(n: int, **more: Any) -> Any:
            most[0] = max(most[0], resident())
            return plain(n, **more)

        plain, bound.bind = bound.bind, watched  # type: ignore
        begin = time.perf_counter()
        timed_pass(asked, bound)
        found = {
            "run_s": time.perf_counter() - begin,
            "before_mb": before / 1e6,
            "grown_mb": (most[0] - before) / 1e6,
        }
    if rank_env.rank == 0:
        Path(options.result).write_text(json.dumps(found))
    moves.stop()
    own().note(state=State.DONE)


def resident() -> int:
    """Memory of this process that is its own and in place, bytes."""
    words = Path("/proc/self/statm").read_text().split()
    return (int(words[1]) - int(words[2])) * PAGE


# ---- the measurements ------------------------------------------------------------


def on_ranks(
    task: str, trace: Trace, folder: Path, ranks: int, pairs: int
) -> dict[str, Any]:
    """Run this file as ranks under supervision; what rank 0 found."""
    path, result = folder / "trace.h5", folder / "result.json"
    trace.save(path, force=True)
    command = [__file__, "--rank-task", task, "--trace", str(path)]
    command += ["--result", str(result), "--pairs", str(pairs)]
    outcome = launch(command, ranks=ranks)
    if not outcome.ok:
        raise SystemExit(outcome.sentence)
    told: dict[str, Any] = json.loads(result.read_text())
    return told


def ratio(pairs: list[list[float]]) -> tuple[float, float, float]:
    """Median of the pairs' ratios, with its bootstrap interval of 95%."""
    ratios = np.array([a / b for a, b in pairs])
    drawn = np.random.default_rng(0).choice(ratios, (DRAWS, len(ratios)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return float(np.median(ratios)), float(low), float(high)


def planned(path: Path) -> dict[str, float]:
    """Plan a trace for rank 0, in this process: time, and most memory."""
    begin = time.perf_counter()
    with Trace.open(path) as trace:
        plan = operations(trace)
        count = len(program(trace, plan, 0))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "operations": count,
        "plan_s": time.perf_counter() - begin,
        "plan_gb": most / 1e9,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--operations", type=int, default=4000, help="of 2 ranks")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4], help="asap")
    parser.add_argument("--bytes", type=int, default=65536, help="a rank sends")
    parser.add_argument("--large", type=int, default=1_000_000, help="operations")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--rank-task", default="")
    parser.add_argument("--trace", default="")
    parser.add_argument("--result", default="")
    parser.add_argument("--plan", default="")
    options = parser.parse_args()
    rank_env = current_rank()
    if rank_env is not None and options.rank_task:
        as_rank(rank_env, options)
        return 0
    if options.plan:
        print(json.dumps(planned(Path(options.plan))))
        return 0
    found: dict[str, Any] = {"processors": os.cpu_count(), "limits": LIMITS}
    with tempfile.TemporaryDirectory(prefix="moetraffic-") as name:
        folder = Path(name)
        for ranks in options.ranks:
            # ranks that share processors wait for each other most of the time
            operations = options.operations * 4 // ranks**2
            for dense in (False, True):
                trace = exchanges(
                    ranks, operations, bytes_a_rank=options.bytes, dense=dense
                )
                told = on_ranks("pairs", trace, folder, ranks, options.pairs)
                middle, low, high = ratio(told["pairs"])
                of = f"asap, {ranks} ranks{', dense' if dense else ''}"
                found[of] = {"ratio": middle, "low": low, "high": high}
                print(f"{of}: {middle:.3f} x a bare loop ({low:.3f} to {high:.3f})")
        trace = exchanges(
            2, min(options.operations, 2000), bytes_a_rank=options.bytes, dense=False
        )
        late = np.array(on_ranks("pace", trace, folder, 2, 0)["late_us"])
        p50, p99 = np.percentile(np.abs(late), [50, 99]).tolist()
        found["captured pace, 2 ranks"] = {"p50_us": p50, "p99_us": p99}
        print(f"captured pace, 2 ranks: late {p50:.1f} us p50, {p99:.1f} us p99")
        found |= large(folder, options.large)
    save(options.json, found)
    return 0


def large(folder: Path, operations: int) -> dict[str, Any]:
    """A long trace: planning, and memory while it is replayed."""
    trace = exchanges(1, operations, bytes_a_rank=64, dense=False)
    told = on_ranks("memory", trace, folder, 1, 0)
    wide = folder / "wide.h5"
    exchanges(4, operations, bytes_a_rank=65536, dense=False).save(wide)
    command = [sys.executable, __file__, "--plan", str(wide)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    plan = json.loads(ran.stdout)
    print(
        f"{plan['operations']} operations planned in {plan['plan_s']:.1f} s and "
        f"{plan['plan_gb']:.2f} GB; replayed by one rank in {told['run_s']:.1f} s, "
        f"memory grew by {told['grown_mb']:.1f} MB over {told['before_mb']:.0f} MB"
    )
    return {"planning": plan, "limits of planning": LIMITS_PLAN, "replaying": told}


if __name__ == "__main__":
    sys.exit(main())
