"""Command line ``python -m moetraffic.replay``: start ranks, or run as one rank.

Without a rank in the environment, the process starts the ranks on this host; under
torchrun, srun or the launcher of moetraffic, it is a rank.  Exit codes: 0; 2 for an
error (printed as one sentence); 130 after Ctrl-C.
"""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import Annotated

import typer

from moetraffic.errors import ReplayError
from moetraffic.launch import current_rank
from moetraffic.replay.execution.pace import Gaps, parse_pace
from moetraffic.replay.plan.background import parse_background
from moetraffic.replay.plan.verification import Depth, Verification
from moetraffic.replay.results.console import progress_display, show
from moetraffic.replay.results.metrics import write_reports
from moetraffic.replay.results.result import Replay
from moetraffic.replay.scale.byte_factor import factor_of
from moetraffic.replay.scale.rank_map import numbers
from moetraffic.replay.scale.rescaling import Scaling
from moetraffic.report.console.terminal import run
from moetraffic.trace.iterations import iteration_range

from .local import replay
from .process_exit import run_to_exit
from .request import Request

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class SelfTraffic(str, enum.Enum):
    """Whether to replay rank-local (self) traffic, which is a copy in memory."""

    KEEP = "keep"
    DROP = "drop"


_MEETING = """
Ranks on several hosts are started by torchrun or srun instead of --nproc, the same
command on each host; one process is one rank, and rank 0 writes and tells.

They meet at rank 0's host. torchrun sets it (--rdzv-endpoint HOST:PORT). Under srun it
is the step's first host, with a port that follows from the job; MASTER_ADDR and
MASTER_PORT, set for all ranks, say otherwise, and do for any other launcher that sets
RANK, WORLD_SIZE and LOCAL_RANK. The port must be free, and reachable from all hosts;
every rank needs the trace, at a path of its host.

torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node1:29500
-m moetraffic.replay run.h5 -o replayed.h5 --backend nccl

srun --nodes 2 --ntasks-per-node 8 --kill-on-bad-exit=1 python -m moetraffic.replay
run.h5 -o replayed.h5 --backend nccl
"""


@app.command(epilog=_MEETING)
def command(
    trace: Annotated[Path, typer.Argument(help="Trace file to replay.")],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Trace to write, with the new times."),
    ] = None,
    nproc: Annotated[
        int | None,
        typer.Option(help="Ranks to start here.", show_default="the trace's"),
    ] = None,
    backend: Annotated[
        str, typer.Option(help="gloo, nccl, mpi, ucc, or an installed one.")
    ] = "gloo",
    iterations: Annotated[
        str | None, typer.Option(help="Only iterations A:B, A up to, not with, B.")
    ] = None,
    # ranks, bytes and background traffic
    layers: Annotated[
        str | None,
        typer.Option("--layers", "--layer", help="Only layers of a list: 1,3:6."),
    ] = None,
    fold: Annotated[
        str,
        typer.Option(help="Fewer ranks: N, N:strided, or nodes: blocks are summed."),
    ] = "",
    expand: Annotated[
        str,
        typer.Option(help="More ranks: N, or N:experts: rows and experts are split."),
    ] = "",
    ranks: Annotated[
        str, typer.Option(help="Only ranks of a list, renumbered: 0,4:8.")
    ] = "",
    rank_map: Annotated[
        str,
        typer.Option(help="Where each rank goes: a file, or 0,0,1,- (- leaves out)."),
    ] = "",
    nbytes: Annotated[
        str, typer.Option("--bytes", help="All bytes times a factor: x0.1, x1/8.")
    ] = "x1",
    self_traffic: Annotated[
        SelfTraffic, typer.Option(help="What a rank would send itself.")
    ] = SelfTraffic.KEEP,
    complete_missing: Annotated[
        str,
        typer.Option(help="Fill missing records by a rule: peers or mean."),
    ] = "",
    alongside: Annotated[
        str,
        typer.Option(help="Dense traffic of a layout beside it: tp=2,pp=2,dp=2."),
    ] = "",
    model: Annotated[
        str, typer.Option(help="Whose dense traffic: a preset, see moetraffic models.")
    ] = "",
    pairs: Annotated[
        int,
        typer.Option(help="Passes with and without dense traffic, for a slowdown."),
    ] = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done; start nothing.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="With --dry-run: every operation.")
    ] = False,
    program: Annotated[
        Path | None,
        typer.Option(help="With --dry-run: every operation, to a .json or .csv file."),
    ] = None,
    hockney: Annotated[
        str, typer.Option(help="With --dry-run: an estimate by 10us,50GB/s.")
    ] = "",
    verify: Annotated[
        Depth,
        typer.Option(
            help="In a pass before the timed one, check the bytes of all operations, "
            "of a sample, or of none; sizes always."
        ),
    ] = Depth.FULL,
    sample: Annotated[
        float, typer.Option(help="Share of each site's operations in a sample.")
    ] = Verification.share,
    sample_seed: Annotated[int, typer.Option(help="What draws the sample.")] = 0,
    timeout: Annotated[
        float, typer.Option(help="Seconds that an operation may take.")
    ] = Request.timeout_s,
    start_timeout: Annotated[
        float, typer.Option(help="Seconds until all ranks must be ready.")
    ] = Request.start_timeout_s,
    # execution
    dense: Annotated[
        bool, typer.Option(help="Replay what the trace holds beside all-to-alls.")
    ] = True,
    pace_name: Annotated[
        str,
        typer.Option(
            "--pace", help="asap, captured (gaps), scaled:X (times X), open-loop."
        ),
    ] = "asap",
    gaps: Annotated[
        Gaps, typer.Option(help="Spend gaps so; gemm needs a CUDA device.")
    ] = Gaps.SPIN,
    dtype: Annotated[
        str, typer.Option(help="Type in which all-reduces add up.")
    ] = "float32",
    warm_up: Annotated[
        int, typer.Option(help="Iterations that run before, untimed.")
    ] = 0,
    graphs: Annotated[
        bool, typer.Option("--graphs", help="NCCL: an iteration as one CUDA graph.")
    ] = False,
    registered: Annotated[
        bool, typer.Option("--registered", help="NCCL: register the buffers.")
    ] = False,
    capacity: Annotated[
        str | None,
        typer.Option(help="Of a rank's link, for the lower bound: 400Gbps, 50GB/s."),
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option(
            help="Network for the lower bound: a name as in moetraffic fabric, or a "
            "JSON file."
        ),
    ] = None,
    bandwidth: Annotated[
        Path | None,
        typer.Option(help="What moetraffic bench wrote, to hold the times against."),
    ] = None,
    fidelity: Annotated[
        Path | None, typer.Option(help="JSON to write: how true the replay was.")
    ] = None,
    metrics: Annotated[
        Path | None,
        typer.Option(help="Prometheus text file to keep up to date: run.prom."),
    ] = None,
    live: Annotated[
        bool | None,
        typer.Option(help="Show the ranks.", show_default="on a terminal"),
    ] = None,
    force: Annotated[bool, typer.Option(help="Overwrite the output.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    summary: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> int:
    """Replay the traffic of a trace on the network, and measure its times.

    Example: moetraffic replay run.h5 -o replayed.h5 --nproc 4
    """
    rank_env = current_rank()

    def work() -> Replay | None:
        request = Request(
            trace=trace,
            out=out,
            backend=backend,
            iterations=iteration_range(iterations),
            layers=None if layers is None else numbers(layers, "layers"),
            scaling=Scaling(
                fold=fold,
                expand=expand,
                ranks=ranks,
                rank_map=rank_map,
                factor=factor_of(nbytes),
                self_traffic=self_traffic is SelfTraffic.KEEP,
                missing=complete_missing,
            ),
            alongside=parse_background(alongside, model),
            pairs=pairs,
            verify=Verification(depth=verify, share=sample, seed=sample_seed),
            timeout_s=timeout,
            start_timeout_s=start_timeout,
            force=force,
            dense=dense,
            pace=parse_pace(pace_name, gaps),
            dtype=dtype,
            warm_up=warm_up,
            graphs=graphs,
            registered=registered,
            capacity=capacity,
            topology=topology,
            bandwidth=bandwidth,
            fidelity=fidelity,
            metrics=metrics,
        )
        only_dry = {"--verbose": verbose, "--program": program, "--hockney": hockney}
        if dry_run:
            # the network model takes long to import
            from moetraffic.replay.results.dry_run import DryRunOptions, print_dry_run

            options = DryRunOptions(
                capacity=request.capacity,
                topology=request.topology,
                bandwidth=request.bandwidth,
                hockney=hockney,
                program=program,
                verbose=verbose,
                force=force,
            )
            if rank_env is None or rank_env.rank == 0:
                print_dry_run(request, options, nproc=nproc, as_json=as_json)
            return None
        if any(only_dry.values()):
            named = " and ".join(name for name, given in only_dry.items() if given)
            raise ReplayError(
                f"{named} is of a dry run: add --dry-run, or leave it out"
            )
        if rank_env is None:
            told: Replay | None = _start_ranks(request, nproc, live)
        else:
            # torch takes seconds to import, and the parent of the ranks needs none
            from .rank import run_rank

            told = run_rank(request, rank_env)
        if told is not None and summary is None:
            write_reports(request, told)
        return told

    told = run_to_exit(work, rank_env)
    if told is None:
        return 0  # rank 0 prints the result
    if summary is not None:
        summary.write_text(told.to_json())
    elif as_json:
        print(told.to_json())
    else:
        show(told)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run the ``moetraffic replay`` command line and return the exit code."""
    return run(app, arguments, "moetraffic replay", verb="replay")


def _start_ranks(request: Request, nproc: int | None, live: bool | None) -> Replay:
    with progress_display(live=live, metrics=request.metrics) as display:
        return replay(
            request, nproc=nproc, on_plan=display.plan, on_event=display.event
        )


if __name__ == "__main__":
    sys.exit(main())
