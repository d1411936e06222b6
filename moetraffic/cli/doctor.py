"""``moetraffic doctor``: whether this machine can capture and replay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moetraffic.errors import LayoutError
from moetraffic.launch import RankEnvironment, current_rank
from moetraffic.launch.machine_resources import check_rank_count

from .output import console, print_json

STOPS = 1
"""Exit code where something would stop a run."""


def doctor(
    trace: Annotated[
        Path | None,
        typer.Option("--for", help="Look at what a replay of this trace needs, too."),
    ] = None,
    nproc: Annotated[
        int | None,
        typer.Option(help="Ranks to start here.", show_default="the trace's"),
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Where a trace will be written.")
    ] = Path("run.h5"),
    exchange: Annotated[
        bool,
        typer.Option(help="Start two ranks that exchange rows and compare clocks."),
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Examine this machine: software, backends, GPUs, network, files, before a replay.

    The exit code is 1 if something would stop a capture or a replay.

    Example: moetraffic doctor --for run.h5 --nproc 4
    """
    if nproc is not None:
        if trace is None:
            raise LayoutError(
                f"{nproc} ranks are of a replay, but no trace is given: add --for"
            )
        check_rank_count(nproc)
    # torch takes seconds to import
    from moetraffic.health import before_replay, examine, stops
    from moetraffic.report import health as report

    rank_env, folder = _seat(), output.absolute().parent
    found = examine(folder, exchange=exchange)
    if trace is not None:
        ranks = rank_env.world if rank_env is not None else nproc
        found += before_replay(trace, nproc=ranks, folder=folder)
    if rank_env is None or rank_env.local_rank == 0:
        if as_json:
            print_json(report.as_dict(found))
        else:
            console.print(report.table(found))
            console.print(f"\n{report.conclusion(found)}")
    if stops(found):
        raise typer.Exit(STOPS)


def _seat() -> RankEnvironment | None:
    """This process's place among another launcher's ranks, if it has a sound one."""
    try:
        return current_rank()
    except LayoutError:
        return None  # examine() says what is wrong with it
