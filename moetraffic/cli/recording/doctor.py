"""``moetraffic doctor``: whether this machine can capture and replay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from moetraffic.cli.output import Printing, printed
from moetraffic.errors import LayoutError
from moetraffic.launch.devices import check_rank_count
from moetraffic.report.console.options import option
from moetraffic.report.console.terminal import seat
from moetraffic.tables import Table, plain

if TYPE_CHECKING:
    from moetraffic.health import Finding

STYLES = {"ok": "green", "note": "yellow", "stop": "bold red"}
"""Colors of the states of a check."""

STOPS = 1
"""Exit code where something would stop a run."""


@printed(("checks",))
def doctor(
    trace: Path | None = option(
        None, "Check the needs of a replay of this trace, too.", "--for"
    ),
    nproc: int | None = option(
        None, "Number of ranks to start on this host.", shown="the trace's"
    ),
    output: Path = option(
        Path("run.h5"), "Path where a trace will be written.", "-o", "--output"
    ),
    no_exchange: bool = option(
        False,
        "Start no two ranks that exchange rows.",
        "--no-exchange",
    ),
    *,
    printing: Printing,
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

    # examine() reports what is wrong with a seat
    rank_env, folder = seat(), output.absolute().parent
    found = examine(folder)
    if not (no_exchange or any(f.name == "launcher" for f in stops(found))):
        from moetraffic.health.exchange import try_ranks

        found += try_ranks(rank_env)
    if trace is not None:
        ranks = rank_env.world if rank_env is not None else nproc
        found += before_replay(trace, nproc=ranks, folder=folder)
    names = [f.name for f in stops(found)]
    if rank_env is None or rank_env.local_rank == 0:
        data = {"stops": names, "findings": plain(found)}
        unusual = [f for f in found if f.state.value != "ok"]
        printing.present(
            data,
            _conclusion(found),
            *([_table(unusual)] if unusual and not printing.tables else []),
            parts={"checks": [_table(found)]},
            code=STOPS if names else 0,
        )
    if names:
        raise typer.Exit(STOPS)


def _table(findings: Sequence[Finding]) -> Table:
    """Tabulate the checks, with a remedy for each problem."""
    return Table(
        columns=("area", "check", "state", "finding", "remedy"),
        rows=[(f.area, f.name, f.state.value, f.said, f.remedy) for f in findings],
        styles=STYLES,
    )


def _conclusion(findings: Sequence[Finding]) -> str:
    """Describe in one sentence whether a check would stop a run."""
    number = len(findings)
    bad = [f.name for f in findings if f.state.value == "stop"]
    if bad:
        return f"{len(bad)} of {number} checks would stop a run: {', '.join(bad)}."
    notes = sum(f.state.value == "note" for f in findings)
    also = f", {notes} with a note" if notes else ""
    return f"Nothing would stop a run ({number} checks{also})."
