"""``moetraffic capture``: train a MoE GPT and record its traffic."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from moetraffic.errors import LayoutError
from moetraffic.launch import Outcome, RankEnvironment, current_rank
from moetraffic.launch.machine_resources import check_rank_count, check_workload
from moetraffic.launch.root_cause import AFTERMATH
from moetraffic.launch.training import RankEnded, capture_run
from moetraffic.patterns import Workload, preset
from moetraffic.report.overview import overview, tables
from moetraffic.report.terminal import say

from .output import console, print_json, progress
from .workload import describe, takes_workload

RANKS = 4
OVERWRITE = "give --force"


@takes_workload
def capture(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Trace to write.")
    ] = Path("run.h5"),
    nproc: Annotated[
        int | None,
        typer.Option(
            help="Ranks to start on this host (not under torchrun).",
            show_default="4; with --virtual as many as --ep",
        ),
    ] = None,
    virtual: Annotated[
        bool,
        typer.Option(
            "--virtual",
            help="Train all ranks' shards in one process and record what expert "
            "parallelism over them would send.",
        ),
    ] = False,
    until_steady: Annotated[
        bool,
        typer.Option(
            "--until-steady",
            help="With --virtual: end when the load over experts has settled, at most "
            "after --iterations.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option(help="Overwrite the output.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    *,
    chosen: dict[str, Any],
) -> None:
    """Train a MoE GPT under expert parallelism and record every collective.

    Starts its ranks itself, or is one of them under torchrun and srun, where rank 0
    tells.

    Example: moetraffic capture -o run.h5 --nproc 4 --experts 8 --iterations 200
    """
    rank_env = current_rank()
    if nproc is None:
        nproc = (chosen["ep"] if virtual else None) or RANKS
    if virtual and rank_env is not None:
        raise LayoutError(
            "virtual expert parallelism trains all ranks in one process, but this is "
            f"one of {rank_env.world} processes: start moetraffic capture by itself"
        )
    if rank_env is None and not virtual:
        check_rank_count(nproc)
    if chosen.get("corpus") == "":
        raise LayoutError(
            "a corpus is a file, a folder or a glob, but --corpus is empty: leave it "
            "out for the source text of Python's standard library"
        )
    ranks = nproc if rank_env is None else rank_env.world
    _refuse_uneven(ranks, chosen)
    workload = describe(
        ranks, {**chosen, "virtual": virtual, "until_steady": until_steady}
    )
    if rank_env is None or rank_env.local_rank == 0:
        here = ranks if rank_env is None else _local_ranks(rank_env)
        check_workload(workload, ranks=here)
    steps, elsewhere = workload.training.iterations, rank_env is not None
    quiet = as_json or not (rank_env is None or rank_env.rank == 0)
    with progress("training", steps, quiet=quiet, plain=elsewhere) as tick:
        try:
            trace = capture_run(
                workload,
                output,
                force=force,
                rank_env=rank_env,
                on_step=tick,
                overwrite=OVERWRITE,
            )
        except RankEnded as error:
            _leave(error.outcome)
    if trace is None:
        return  # rank 0 tells
    with trace:
        if as_json:
            print_json(overview(trace, output))
        else:
            console.print(*tables(trace, output))


def _refuse_uneven(ranks: int, chosen: Mapping[str, Any]) -> None:
    """Refuse experts that do not spread over all ranks, where no ep was asked for."""
    others = math.prod(chosen.get(axis) or 1 for axis in ("tp", "pp", "cp"))
    width = chosen.get("dp") or ranks // max(1, others)
    named = chosen.get("model")
    base = preset(named).model if named else Workload().model
    experts = base.experts if chosen.get("experts") is None else chosen["experts"]
    if chosen.get("ep") is None and experts > 0 and width > 0 and experts % width:
        raise LayoutError(
            "the experts are spread evenly over all data-parallel ranks unless --ep "
            f"says otherwise, but {experts} experts do not spread over {width}: change "
            "--experts or the number of ranks, or give --ep a divisor of both"
        )


def _local_ranks(rank_env: RankEnvironment) -> int:
    """Ranks of this host, as torchrun or srun tell; at least this one."""
    for name in ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE"):
        told = os.environ.get(name, "")
        if told.isdecimal():
            return min(max(1, int(told)), rank_env.world)
    return 1


def _leave(outcome: Outcome) -> NoReturn:
    """End a rank that does not tell: it says only what it alone knows."""
    if outcome.interrupted:
        raise typer.Exit(128 + outcome.interrupted)
    if not AFTERMATH.search(outcome.sentence):
        say(f"moetraffic: {outcome.sentence}")
    raise typer.Exit(2)
