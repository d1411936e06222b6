"""Command line ``python -m moetraffic.replay``: start ranks, or run as one rank.

Without a rank in the environment, the process starts the ranks on this host; under
torchrun and srun it is a rank.  Exit codes: 0; 2 for an error (printed as one
sentence); 130 after Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from typer import Argument, Option

from moetraffic.cli.output import progress
from moetraffic.cli.show import AllTables, AsJson, Force, Only, show
from moetraffic.launch.environment import current_rank
from moetraffic.report.console.command import Command
from moetraffic.report.console.options import Iterations, Layers, option, trace_output
from moetraffic.report.console.terminal import announce, run, say
from moetraffic.report.write import validate
from moetraffic.result import Result
from moetraffic.trace.iterations import layer_numbers
from moetraffic.trace.trace import Trace
from moetraffic.trace.what_if.rescale import Scaling, factor_of

from .failure import run_to_exit
from .options import DEPTHS, Options, check_backend
from .pace import parse_pace
from .plan.operations import Plan
from .results.dry_run import dry_run
from .results.load import load_now
from .run import planned, replay, run_rank

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

TRAFFIC, EXECUTION = "Ranks, bytes and background traffic", "Execution"
NETWORK, RESULTS = "Lower bound and dry run", "Results"

STARTING_RANKS = """
Ranks on several hosts are started by torchrun or srun instead of --nproc, the same
command on each host; one process is one rank, and rank 0 writes and prints. Every rank
needs the trace, at a path of its host.

The rendezvous is on rank 0's host. torchrun sets it (--rdzv-endpoint HOST:PORT). Under
srun it is the step's first host, with a port that follows from the job. MASTER_ADDR and
MASTER_PORT, set for all ranks, override it, and set it for any other launcher that sets
RANK, WORLD_SIZE and LOCAL_RANK.

torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node1:29500
-m moetraffic.replay run.h5 -o replayed.h5 --backend nccl

srun --nodes 2 --ntasks-per-node 8 --kill-on-bad-exit=1 python -m moetraffic.replay
run.h5 -o replayed.h5 --backend nccl
"""


@app.command(cls=Command, epilog=STARTING_RANKS)
def command(
    trace: Annotated[Path, Argument(help="Trace file to replay.")],
    output: Path | None = trace_output(None, "Trace to write, with the new times."),
    nproc: Annotated[
        int | None,
        Option(help="Ranks to start on this host.", show_default="the trace's"),
    ] = None,
    iterations: Iterations = None,
    layers: Layers = None,
    fold: str = option("", "Combine ranks into N: N, N:strided, nodes.", panel=TRAFFIC),
    expand: str = option("", "Share each rank among more, N in all.", panel=TRAFFIC),
    ranks: str = option("", "Replay only these ranks: 0,4:8.", panel=TRAFFIC),
    rank_map: str = option(
        "", "Replay rank of each rank: a file, or 0,0,1,- (-: none).", panel=TRAFFIC
    ),
    factor: str = option("x1", "Multiply all bytes: x0.1.", "--bytes", panel=TRAFFIC),
    self_traffic: str = option(
        "keep",
        "Rank-local traffic: keep or drop.",
        choices=("keep", "drop"),
        panel=TRAFFIC,
    ),
    missing: str = option(
        "",
        "Complete missing records: peers or mean.",
        "--complete-missing",
        panel=TRAFFIC,
    ),
    dispatcher: str = option(
        "",
        "Send what another dispatcher would: plain, padded, by-rank, two-level, "
        "deduplicated.",
        panel=TRAFFIC,
    ),
    ranks_per_node: int = option(
        0, "Ranks of a node for --dispatcher.", shown="the trace's", panel=TRAFFIC
    ),
    dense: bool = option(
        True,
        "Replay other collectives than all-to-alls, too.",
        "--dense/--no-dense",
        panel=TRAFFIC,
    ),
    background: str = option(
        "", "Add the dense traffic of a layout: tp=2,pp=2,dp=2.", panel=TRAFFIC
    ),
    model: str = option("", "Model preset of --background.", panel=TRAFFIC),
    pairs: int = option(
        0, "Pairs of passes with and without --background.", min=0, panel=TRAFFIC
    ),
    backend: str = option(
        "gloo", "gloo, gloo-duplex, nccl, or another of torch.", panel=EXECUTION
    ),
    pace: str = option(
        "asap",
        "asap, captured (gaps), scaled:X (gaps times X), or open-loop.",
        panel=EXECUTION,
    ),
    verify: str = option(
        "full",
        "Check the bytes of all operations, or of none, in a pass before.",
        choices=DEPTHS,
        panel=EXECUTION,
    ),
    repeat: int = option(1, "Timed passes, for intervals.", min=1, panel=EXECUTION),
    ports: bool = option(
        False,
        "Measure the rate of each rank's port, before.",
        "--ports",
        panel=EXECUTION,
    ),
    timeout: float = option(
        60.0, "Seconds that an operation may take.", above=0, panel=EXECUTION
    ),
    start_timeout: float = option(
        300.0, "Seconds until all ranks must be ready.", above=0, panel=EXECUTION
    ),
    capacity: str | None = option(None, "Of a rank's link: 400Gbps.", panel=NETWORK),
    topology: str | None = option(
        None, "Network: a name as in moetraffic fabric, or a JSON file.", panel=NETWORK
    ),
    dry: bool = option(
        False, "Print the plan; start no ranks.", "--dry-run", panel=NETWORK
    ),
    tables: AllTables = False,
    only: Only = None,
    as_json: AsJson = False,
    result: Path | None = option(
        None, "File of the result: .json, .csv, .parquet or .xlsx.", panel=RESULTS
    ),
    force: Force = False,
) -> int:
    """Replay the traffic of a trace on the network, and measure its times.

    Example: moetraffic replay run.h5 -o replayed.h5 --nproc 4
    """
    rank_env = current_rank()

    def work() -> Result | None:
        options = Options(
            trace=trace,
            out=output,
            force=force,
            backend=backend,
            iterations=iterations,
            layers=layer_numbers(layers),
            dense=dense,
            scaling=Scaling(
                fold=fold,
                expand=expand,
                ranks=ranks,
                rank_map=rank_map,
                missing=missing,
                dispatcher=dispatcher,
                ranks_per_node=ranks_per_node,
                factor=factor_of(factor),
                self_traffic=self_traffic == "keep",
            ),
            background=background,
            model=model,
            pairs=pairs,
            pace=parse_pace(pace),
            verify=verify,
            repeat=repeat,
            ports=ports,
            timeout_s=timeout,
            start_timeout_s=start_timeout,
            capacity=capacity,
            topology=topology,
        )
        if result is not None and (rank_env is None or rank_env.rank == 0):
            validate(result, force=force)
        if dry:
            check_backend(options.backend)
            with Trace.open(options.trace) as opened:
                return dry_run(options, *planned(options, opened, nproc))
        if rank_env is None:
            return _replay(options, nproc, quiet=as_json)
        # stack traces of torch's log are left out: errors are one sentence here
        level = "ERROR" if backend == "nccl" else "FATAL"
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", level)
        return run_rank(options, rank_env, _announced if rank_env.rank == 0 else None)

    found = run_to_exit(work, rank_env)
    if found is not None:  # rank 0 prints the result
        show(
            found,
            tables=tables,
            only=only,
            as_json=as_json,
            output=result,
            force=force,
        )
        if output is not None and not (dry or as_json):
            print(f"written: {output}")
    return 0


def _replay(options: Options, nproc: int | None, *, quiet: bool) -> Result:
    """Replay on ranks of this host; show the operations done by all of them."""
    with ExitStack() as shown:
        total, tick = 0, None

        def on_plan(plan: Plan, sentences: tuple[str, ...]) -> None:
            nonlocal total, tick
            _announced(plan, sentences)
            each = plan.by_rank(np.ones(len(plan), np.int64))
            total = options.passes * int(each.sum())
            tick = shown.enter_context(progress("replaying", total, quiet=quiet))

        def on_rows(rows: Any) -> None:
            if tick is not None:
                tick(min(total, int((rows["position"] // 2).sum())))

        return replay(options, nproc=nproc, on_plan=on_plan, on_rows=on_rows)


def _announced(plan: Plan, sentences: tuple[str, ...]) -> None:
    """State operations, passes and memory before the start, and other load."""
    say(
        f"{len(plan):,} operations of {plan.source} on {plan.world} ranks. "
        + " ".join(sentences)
    )
    if warning := load_now():
        announce(warning)


def main(arguments: list[str] | None = None) -> int:
    """Run the ``moetraffic replay`` command line and return the exit code."""
    return run(app, arguments, "moetraffic replay", verb="replay")


if __name__ == "__main__":
    sys.exit(main())
