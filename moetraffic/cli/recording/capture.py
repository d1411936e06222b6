"""``moetraffic capture``: train a MoE GPT and record its traffic."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import typer

from moetraffic.capture.training import RankEnded, capture_run, check_workload
from moetraffic.cli.output import progress
from moetraffic.cli.show import AllTables, AsJson, Force, Only, show_trace
from moetraffic.cli.workload import WORKLOAD, describe
from moetraffic.errors import LayoutError
from moetraffic.launch.blame import AFTERMATH
from moetraffic.launch.devices import check_rank_count
from moetraffic.launch.environment import RankEnvironment, current_rank
from moetraffic.launch.ranks import Outcome
from moetraffic.patterns import Workload, preset
from moetraffic.report.console.options import (
    Every,
    MaxSize,
    TokenSample,
    option,
    takes,
    trace_output,
)
from moetraffic.report.console.terminal import announce

RANKS = 4
OVERWRITE = "give --force"


@takes(chosen=WORKLOAD)
def capture(
    output: Path = trace_output(Path("run.h5")),
    nproc: int | None = option(
        None,
        "Number of ranks to start on this host (not under torchrun).",
        shown="4; with --virtual as many as --ep",
    ),
    virtual: bool = option(
        False,
        "Train the shards of all ranks in one process and record what expert "
        "parallelism over them would send.",
        "--virtual",
    ),
    every: Every = 1,
    most_bytes: MaxSize = None,
    token_sample: TokenSample = 0,
    force: Force = False,
    tables: AllTables = False,
    only: Only = None,
    as_json: AsJson = False,
    *,
    chosen: dict[str, Any],
) -> None:
    """Train a MoE GPT under expert parallelism and record every collective.

    Starts its ranks itself, or is one of them under torchrun and srun, where rank 0
    prints the result.

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
    if virtual and (every > 1 or most_bytes):
        raise LayoutError(
            "--every and --max-size limit the record of real ranks, but --virtual has "
            "none: leave them out"
        )
    if rank_env is None and not virtual:
        check_rank_count(nproc)
    ranks = nproc if rank_env is None else rank_env.world
    _refuse_uneven(ranks, chosen)
    workload = describe(ranks, {**chosen, "virtual": virtual})
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
                say=announce,
                overwrite=OVERWRITE,
                every=every,
                most_bytes=most_bytes,
                token_sample=token_sample,
            )
        except RankEnded as error:
            _leave(error.outcome)
    if trace is not None:  # rank 0 prints
        trace.close()
        show_trace(output, as_json=as_json, tables=tables, only=only)


def _refuse_uneven(ranks: int, chosen: Mapping[str, Any]) -> None:
    """Refuse experts that are not a multiple of the ranks, unless --ep is given."""
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
    """Number of ranks on this host, from the variables of torchrun or srun."""
    for name in ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE"):
        number = os.environ.get(name, "")
        if number.isdecimal():
            return min(max(1, int(number)), rank_env.world)
    return 1


def _leave(outcome: Outcome) -> NoReturn:
    """End a rank that is not rank 0, with its own error only."""
    if outcome.interrupted:
        raise typer.Exit(128 + outcome.interrupted)
    if not AFTERMATH.search(outcome.sentence):
        announce(outcome.sentence)
    raise typer.Exit(2)
