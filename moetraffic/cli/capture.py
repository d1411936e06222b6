"""``moetraffic capture``: train a MoE GPT and record its traffic."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from moetraffic.errors import CaptureError, Interrupted, LayoutError
from moetraffic.launch import Event, Outcome, Seat, current_rank, launch
from moetraffic.launch.blame import AFTERMATH
from moetraffic.launch.machine import refuse_too_many, refuse_unable
from moetraffic.patterns import Workload, preset
from moetraffic.report.terminal import say
from moetraffic.trace import Trace
from moetraffic.trace.merge import NothingRecorded, merge, write
from moetraffic.trace.segment import PATTERN
from moetraffic.trace.spool import RANKS as RANK_FOLDERS
from moetraffic.trace.spool import prepare, segments_folder

from .info import overview, show
from .output import Tick, print_json, progress
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
    seat = current_rank()
    if nproc is None:
        nproc = (chosen["ep"] if virtual else None) or RANKS
    if virtual and seat is not None:
        raise LayoutError(
            "virtual expert parallelism trains all ranks in one process, but this is "
            f"one of {seat.world} processes: start moetraffic capture by itself"
        )
    if seat is None and not virtual:
        refuse_too_many(nproc)
    if chosen.get("corpus") == "":
        raise LayoutError(
            "a corpus is a file, a folder or a glob, but --corpus is empty: leave it "
            "out for the source text of Python's standard library"
        )
    ranks = nproc if seat is None else seat.world
    _refuse_uneven(ranks, chosen)
    workload = describe(
        ranks, {**chosen, "virtual": virtual, "until_steady": until_steady}
    )
    if seat is None or seat.local_rank == 0:
        here = ranks if seat is None else _local_ranks(seat)
        refuse_unable(workload, ranks=here)
    if seat is None or seat.rank == 0:
        prepare(output, force=force, overwrite=OVERWRITE)
    trace = captured(workload, output, force=force, quiet=as_json, seat=seat)
    if trace is None:
        return  # rank 0 tells
    with trace:
        if as_json:
            print_json(overview(trace, output))
        else:
            show(trace, output)


def captured(
    workload: Workload,
    output: Path,
    *,
    force: bool = False,
    quiet: bool = False,
    seat: Seat | None = None,
) -> Trace | None:
    """Train, on ranks of this host or as one of another launcher's.

    Parameters
    ----------
    workload, output
        What to train and where the trace goes; both have been checked.
    force
        Replace a trace that is there.
    quiet
        Show no progress.
    seat
        This process's place among another launcher's ranks.

    Returns
    -------
    Trace or None
        The trace; None on another rank than rank 0.

    Raises
    ------
    CaptureError, Interrupted
        If a rank failed, which the sentence names, or the user ended it; what was
        captured is kept.
    """
    tells = seat is None or seat.rank == 0
    ranks, steps = workload.layout.world, workload.training.iterations
    if workload.training.virtual or seat is not None:
        ranks = 1
    before = _written(output)
    plain = seat is not None
    with progress("training", steps, quiet=quiet or not tells, plain=plain) as tick:
        heard = Heard(ranks, tick, "rank 0's loss" if plain else "mean loss")
        outcome = launch(
            [sys.executable, "-m", "moetraffic.models"],
            ranks=ranks,
            environment={
                "MOETRAFFIC_WORKLOAD": workload.to_json(),
                "MOETRAFFIC_CAPTURE": str(output.absolute()),
                "MOETRAFFIC_FORCE": "1" if force else "",
            },
            # of ranks elsewhere nothing is known: torch's own deadlines end those
            start_deadline_s=math.inf if plain else 120.0,
            operation_deadline_s=math.inf if plain else 300.0,
            grace_s=10.0,
            on_event=heard,
            seat=seat,
        )
    if outcome.ok and (not tells or _written(output) != before):
        return Trace.open(output) if tells else None
    if not tells:
        _leave(outcome)
    why = outcome.sentence or "the capture ended early"
    many = seat is not None and seat.world > 1
    said = f"{why}; {_kept(output, before, heard.steps, force=force, others=many)}"
    if outcome.interrupted:
        raise Interrupted(said, outcome.interrupted)
    raise CaptureError(said)


class Heard:
    """What the ranks' heartbeats tell: how far they are, and their loss.

    Parameters
    ----------
    ranks
        How many tell.
    tick
        Told of each step that all have ended, with the mean of their losses.
    name
        What the mean is called.
    """

    def __init__(self, ranks: int, tick: Tick, name: str) -> None:
        self._ranks, self._tick, self._name = ranks, tick, name
        self._losses: dict[int, dict[int, float]] = {}  # iteration -> rank -> loss
        self.steps = 0  # that at least one rank has ended

    def __call__(self, event: Event) -> None:
        """Take in a heartbeat."""
        iteration, loss = event.fields.get("iteration"), event.fields.get("loss")
        if event.event != "step" or not isinstance(iteration, int):
            return
        self.steps = max(self.steps, iteration + 1)
        told = self._losses.setdefault(iteration, {})
        told[event.rank] = float(loss) if isinstance(loss, int | float) else math.nan
        if len(told) < self._ranks:
            return
        # a full pipe loses a line: the steps before are not waited for
        self._losses = {i: t for i, t in self._losses.items() if i > iteration}
        mean = sum(told.values()) / len(told)
        self._tick(iteration + 1, f"{self._name} {mean:.3f}")


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


def _local_ranks(seat: Seat) -> int:
    """Ranks of this host, as torchrun or srun tell; at least this one."""
    for name in ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE"):
        told = os.environ.get(name, "")
        if told.isdecimal():
            return min(max(1, int(told)), seat.world)
    return 1


def _leave(outcome: Outcome) -> None:
    """End a rank that does not tell: it says only what it alone knows."""
    if outcome.interrupted:
        raise typer.Exit(128 + outcome.interrupted)
    if not AFTERMATH.search(outcome.sentence):
        say(f"moetraffic: {outcome.sentence}")
    raise typer.Exit(2)


def _written(path: Path) -> int:
    """When a file was written, 0 if it does not exist."""
    return path.stat().st_mtime_ns if path.exists() else 0


def _kept(output: Path, before: int, trained: int, *, force: bool, others: bool) -> str:
    """Merge what an ended capture left, and say what that is.

    Parameters
    ----------
    before
        When the output was written before the capture.
    trained
        Steps that some rank has ended.
    others
        Ranks that another launcher started may still be writing.
    """
    folder = segments_folder(output)
    left = any(folder.glob(f"{RANK_FOLDERS}/{PATTERN}"))
    if left and others and _written(output) == before:
        return (
            f"what was captured is kept in {folder}: when all ranks have ended, "
            f"moetraffic merge {folder} makes a trace of it"
        )
    if left and _written(output) == before:
        try:
            merged = merge(folder)
        except NothingRecorded:
            merged = None
        if merged is None or not len(merged.trace.steps.iteration):
            # of a step that did not end nothing can be told: the folder would only
            # stand in the way of the next attempt
            shutil.rmtree(folder)
            return "nothing was captured, for no step ended"
        write(merged, folder, output, force=force)
    if _written(output) == before:
        return "nothing was captured"
    with Trace.open(output) as trace:
        steps, missing = len(trace.steps.iteration), trace.meta.missing
    of = f" of {trained}" if trained > steps else ""
    return f"{steps}{of} iterations are kept in {output}" + (
        f" ({missing})" if missing else ""
    )
