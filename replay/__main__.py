"""Command line ``python -m moetraffic.replay``: start ranks, or run as one rank.

Without a rank in the environment, the process starts the ranks on this host; under
torchrun, srun or the launcher of moetraffic, it is a rank.  Exit codes: 0; 2 for an
error (printed as one sentence); 130 after Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from moetraffic.launch import current_rank
from moetraffic.replay.backends.nccl_environment import nccl_settings
from moetraffic.replay.execution.pace import Pace, parse_pace
from moetraffic.replay.plan.background import parse_background
from moetraffic.replay.plan.program import Plan
from moetraffic.replay.plan.selection import Verification
from moetraffic.replay.results.console import print_result, progress_display
from moetraffic.replay.results.machine_load import load_now
from moetraffic.replay.results.result import Replay
from moetraffic.replay.results.summary import sentences
from moetraffic.replay.results.summary_tables import PARTS, replay_tables
from moetraffic.report.console.command import Command
from moetraffic.report.console.options import (
    AllTables,
    AsJson,
    Iterations,
    Layers,
    Setting,
    field_options,
    only_option,
    option,
    parts_of,
    takes,
    trace_output,
)
from moetraffic.report.console.terminal import announce, run
from moetraffic.trace.iterations import layer_numbers
from moetraffic.trace.what_if.rescale import Scaling, factor_of

from .failure import run_to_exit
from .local import replay
from .request import Request

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

DRY, TRAFFIC = "Dry run", "Ranks, bytes and background traffic"
EXECUTION, RESULTS = "Execution", "Baselines and results"

SCALING = field_options(
    Scaling,
    TRAFFIC,
    {
        "fold": "Combine ranks into N: N, N:strided, or nodes.",
        "expand": "Share each rank among more, N in total.",
        "ranks": "Replay only the ranks of a list, renumbered: 0,4:8.",
        "dispatcher": "Algorithm that moves the captured routing: plain, padded, "
        "by-rank (a token once for each rank), two-level, or deduplicated (once for "
        "each node).",
        "ranks_per_node": "Ranks of a node, for --dispatcher; 0 for the trace's nodes.",
        "rank_map": "Replay rank of each rank: a file, or 0,0,1,- (- leaves one out).",
        "factor": Setting(
            "Multiply all bytes by a factor: x0.1, x1/8.",
            "--bytes",
            kind=str,
            default="x1",
        ),
        "self_traffic": Setting(
            "Keep or drop rank-local (self) traffic, which is a copy in memory.",
            kind=str,
            default="keep",
            rule={"choices": ("keep", "drop")},
        ),
        "missing": Setting(
            "Complete missing records by a rule: peers or mean.", "--complete-missing"
        ),
    },
)
VERIFICATION = field_options(
    Verification,
    EXECUTION,
    {
        "depth": Setting(
            "Check the bytes of all operations, of a sample, or of none, in a pass "
            "before the timed one; sizes are always checked.",
            "--verify",
        ),
        "share": Setting("Share of each site's operations in a sample.", "--sample"),
        "seed": Setting("Seed of the sample.", "--sample-seed"),
    },
)
PACE = field_options(
    Pace, EXECUTION, {"gaps": "How to spend gaps; gemm needs a CUDA device."}
)
EXECUTED = field_options(
    Request,
    EXECUTION,
    {
        "backend": "Communication backend: gloo, gloo-duplex, nccl, or another one of "
        "torch.",
        "dense": "Replay the collectives of the trace other than all-to-alls.",
        "dtype": "Data type in which reductions compute.",
        "warm_up": "Number of iterations that run before, untimed.",
        "repeat": "Number of timed passes (runs), for intervals between runs.",
        "probe": Setting(
            "Measure the rate of each rank's port, and an even all-to-all, before.",
            "--probe",
        ),
        "graphs": Setting("Run each iteration as one CUDA graph (NCCL).", "--graphs"),
        "timeout_s": Setting("Seconds that an operation may take.", "--timeout"),
        "start_timeout_s": Setting(
            "Seconds until all ranks must be ready.", "--start-timeout"
        ),
        "pairs": "Number of pairs of passes with and without background traffic.",
    },
)
COMPARED = field_options(
    Request,
    RESULTS,
    {
        "capacity": "Link capacity of a rank, for the lower bound: 400Gbps, 50GB/s.",
        "topology": "Network for the lower bound: a name as in moetraffic fabric, or a "
        "JSON file.",
        "bandwidth": "Table of moetraffic bench to compare the times with.",
        "fidelity": "JSON file to write: comparison with the captured run.",
        "force": Setting("Overwrite existing outputs.", "--force"),
    },
)

_STARTING_RANKS = """
Ranks on several hosts are started by torchrun or srun instead of --nproc, the same
command on each host; one process is one rank, and rank 0 writes and prints.

The rendezvous is on rank 0's host. torchrun sets it (--rdzv-endpoint HOST:PORT). Under
srun it is the step's first host, with a port that follows from the job. MASTER_ADDR and
MASTER_PORT, set for all ranks, override it, and set it for any other launcher that sets
RANK, WORLD_SIZE and LOCAL_RANK. The port must be free, and reachable from all hosts;
every rank needs the trace, at a path of its host.

torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node1:29500
-m moetraffic.replay run.h5 -o replayed.h5 --backend nccl

srun --nodes 2 --ntasks-per-node 8 --kill-on-bad-exit=1 python -m moetraffic.replay
run.h5 -o replayed.h5 --backend nccl
"""


@app.command(cls=Command, epilog=_STARTING_RANKS)
@takes(
    scaling=SCALING,
    verification=VERIFICATION,
    waiting=PACE,
    executed=EXECUTED,
    compared=COMPARED,
)
def command(
    trace: Annotated[Path, typer.Argument(help="Trace file to replay.")],
    output: Path | None = trace_output(None, "Trace to write, with the new times."),
    nproc: int | None = option(
        None, "Ranks to start on this host.", shown="the trace's"
    ),
    iterations: Iterations = None,
    layers: Layers = None,
    alongside: str = option(
        "",
        "Layout of background traffic: tp=2,pp=2,dp=2.",
        "--background",
        panel=TRAFFIC,
    ),
    model: str = option(
        "", "Model preset of background traffic: see moetraffic models."
    ),
    pace: str = option(
        "asap", "asap, captured (gaps), scaled:X (gaps times X), or open-loop."
    ),
    dry_run: bool = option(
        False, "Print the plan; start no ranks.", "--dry-run", panel=DRY
    ),
    program: Path | None = option(None, "CSV file of every operation.", panel=DRY),
    hockney: str = option(
        "", "Estimate times by Hockney's model: 10us,50GB/s.", panel=DRY
    ),
    tables: AllTables = False,
    only: str | None = only_option(None, PARTS),
    as_json: AsJson = False,
    summary: Annotated[Path | None, typer.Option(hidden=True)] = None,
    *,
    scaling: dict[str, Any],
    verification: dict[str, Any],
    waiting: dict[str, Any],
    executed: dict[str, Any],
    compared: dict[str, Any],
) -> int:
    """Replay the traffic of a trace on the network, and measure its times.

    Example: moetraffic replay run.h5 -o replayed.h5 --nproc 4
    """
    rank_env = current_rank()
    names = parts_of(only, PARTS)

    def work() -> Replay | None:
        scaling["factor"] = factor_of(scaling["factor"])
        scaling["self_traffic"] = scaling["self_traffic"] == "keep"
        request = Request(
            trace=trace,
            out=output,
            iterations=iterations,
            layers=layer_numbers(layers),
            scaling=Scaling(**scaling),
            alongside=parse_background(alongside, model),
            verify=Verification(**verification),
            pace=parse_pace(pace, **waiting),
            **executed,
            **compared,
        )
        if dry_run:
            # the network model takes long to import
            from moetraffic.replay.results.dry_run import print_dry_run

            if rank_env is None or rank_env.rank == 0:
                print_dry_run(
                    request,
                    nproc=nproc,
                    hockney=hockney,
                    program=program,
                    as_json=as_json,
                )
            return None
        told = rank_env is None or (rank_env.rank == 0 and summary is None)
        if request.backend == "nccl" and told:
            announce(nccl_settings(os.environ))
        with progress_display() as display:

            def planned(plan: Plan, expected: str) -> None:
                """Print plan, duration and memory; warn if this machine is busy."""
                display.plan(plan, expected)
                before = load_now()
                if before is not None and before.busy:
                    spread = ", or give --repeat 5 for the spread between runs"
                    also = spread if request.repeat == 1 else ""
                    announce(f"{before.warning('replay')}{also}")

            if rank_env is None:
                result: Replay | None = replay(
                    request, nproc=nproc, on_plan=planned, on_event=display.event
                )
            else:
                # its log has stack traces; errors are reported in a sentence here,
                # those of NCCL's threads apart
                level = "ERROR" if request.backend == "nccl" else "FATAL"
                os.environ.setdefault("TORCH_CPP_LOG_LEVEL", level)
                # torch takes seconds to import, and the parent of the ranks needs none
                from .rank import run_rank

                result = run_rank(request, rank_env, planned if told else None)
        if result is not None and summary is None and request.fidelity is not None:
            result.write_fidelity(request.fidelity)
        return result

    result = run_to_exit(work, rank_env)
    if result is None:
        return 0  # rank 0 prints the result
    if summary is not None:
        summary.write_text(result.to_json())
    elif as_json:
        print(result.to_json())
    else:
        print_result(sentences(result), replay_tables(result), names, tables=tables)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run the ``moetraffic replay`` command line and return the exit code."""
    return run(app, arguments, "moetraffic replay", verb="replay")


if __name__ == "__main__":
    sys.exit(main())
