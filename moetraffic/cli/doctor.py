"""``moetraffic doctor``: whether this machine can capture and replay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moetraffic.errors import LayoutError
from moetraffic.launch import RankEnvironment, current_rank
from moetraffic.launch.machine_resources import check_rank_count
from moetraffic.report.console.options import AsJson, option

from .output import present

STOPS = 1
"""Exit code where something would stop a run."""


def doctor(
    trace: Annotated[
        Path | None, option("Check the needs of a replay of this trace, too.", "--for")
    ] = None,
    nproc: Annotated[
        int | None,
        option("Number of ranks to start on this host.", shown="the trace's"),
    ] = None,
    output: Annotated[
        Path, option("Path where a trace will be written.", "-o", "--output")
    ] = Path("run.h5"),
    exchange: Annotated[
        bool, option("Start two ranks that exchange rows and compare clocks.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Check this machine's software, backends, GPUs, network and files.

    The exit code is 1 if something would stop a capture or a replay.

    Example: moetraffic doctor --for run.h5 --nproc 4
    """
    if nproc is not None:
        if trace is None:
            raise LayoutError(
                f"--nproc {nproc} is for a replay, but no trace is given: add --for"
            )
        check_rank_count(nproc)
    # torch takes seconds to import
    from moetraffic.health import before_replay, examine, stops
    from moetraffic.report.results import health as report

    rank_env, folder = _seat(), output.absolute().parent
    found = examine(folder, exchange=exchange)
    if trace is not None:
        ranks = rank_env.world if rank_env is not None else nproc
        found += before_replay(trace, nproc=ranks, folder=folder)
    if rank_env is None or rank_env.local_rank == 0:
        shown = (report.table(found), f"\n{report.conclusion(found)}")
        present(report.as_dict(found), *shown, as_json=as_json)
    if stops(found):
        raise typer.Exit(STOPS)


def _seat() -> RankEnvironment | None:
    """This process's place among another launcher's ranks, if it has a sound one."""
    try:
        return current_rank()
    except LayoutError:
        return None  # examine() reports what is wrong with it
