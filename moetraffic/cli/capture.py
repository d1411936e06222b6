"""``moetraffic capture``: train a MoE GPT and record its traffic."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from moetraffic.errors import CaptureError, Interrupted, LayoutError
from moetraffic.launch import Event, current_rank, launch
from moetraffic.patterns import Workload
from moetraffic.trace import Trace
from moetraffic.trace.merge import merge_into
from moetraffic.trace.spool import segments_folder

from .info import overview, show
from .output import print_json, progress, refuse_existing
from .workload import describe, takes_workload

RANKS = 4


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

    Starts its ranks itself, or is one of them under torchrun and srun.

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
    ranks = nproc if seat is None else seat.world
    workload = describe(
        ranks, {**chosen, "virtual": virtual, "until_steady": until_steady}
    )
    if seat is None or seat.rank == 0:
        refuse_existing(output, force)
    if seat is not None:
        _become_rank(workload, output, force)
    trace = captured(workload, output, force=force, quiet=as_json)
    with trace:
        if as_json:
            print_json(overview(trace, output))
        else:
            show(trace, output)


def captured(
    workload: Workload, output: Path, *, force: bool = False, quiet: bool = False
) -> Trace:
    """Train on ranks of this host and return the trace that they leave.

    Raises
    ------
    CaptureError, Interrupted
        If a rank failed, which the sentence names, or the user ended it; what was
        captured is kept.
    """
    ranks, steps = workload.layout.world, workload.training.iterations
    if workload.training.virtual:
        ranks = 1
    before = _written(output)
    with progress("training", steps, quiet=quiet) as tick:

        def hear(event: Event) -> None:
            if event.event == "step" and event.rank == 0:
                done = int(event.fields["iteration"]) + 1
                tick(done, f"loss {float(event.fields['loss']):.3f}")

        outcome = launch(
            [sys.executable, "-m", "moetraffic.models"],
            ranks=ranks,
            environment=_environment(workload, output, force),
            grace_s=10.0,
            on_event=hear,
        )
    if outcome.ok and _written(output) != before:
        return Trace.open(output)
    why = outcome.sentence or "the capture ended early"
    said = f"{why}; {_kept(output, before, force)}"
    if outcome.interrupted:
        raise Interrupted(said, outcome.interrupted)
    raise CaptureError(said)


def _written(path: Path) -> int:
    """When a file was written, 0 if it does not exist."""
    return path.stat().st_mtime_ns if path.exists() else 0


def _kept(output: Path, before: int, force: bool) -> str:
    """Merge what an ended capture left, and say what that is."""
    folder, missing = segments_folder(output), ""
    if any(folder.glob("rank-*/segment-*.h5")):
        merged = merge_into(folder, output, force=force)
        missing = "; ".join(merged.missing)
    if _written(output) == before:
        return "nothing was captured"
    with Trace.open(output) as trace:
        steps = len(trace.steps.iteration)
    return f"{steps} iterations are kept in {output}" + (
        f" ({missing})" if missing else ""
    )


def _environment(workload: Workload, output: Path, force: bool) -> dict[str, str]:
    return {
        "MOETRAFFIC_WORKLOAD": workload.to_json(),
        "MOETRAFFIC_CAPTURE": str(output.absolute()),
        "MOETRAFFIC_FORCE": "1" if force else "",
    }


def _become_rank(workload: Workload, output: Path, force: bool) -> None:
    """Go on as the rank that torchrun or srun made this process."""
    environment = os.environ | _environment(workload, output, force)
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", "moetraffic.models"], environment)
