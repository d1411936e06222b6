"""What a replay shows: a progress bar on a terminal, lines in a log, a table."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TimeRemainingColumn,
)
from rich.table import Table

from moetraffic.launch import Event
from moetraffic.report.terminal import Paper, say
from moetraffic.report.units import byte_size

from .plan import Plan
from .result import Summary

_LINE_EVERY_S = 10.0
_COLUMNS = ("min", "p50", "mean", "p90", "p99", "max")
_STAGES = {"verify": "verifying", "replay": "replaying"}


class Watcher:
    """Shows how far the slowest rank is, from the ranks' heartbeats.

    Parameters
    ----------
    progress
        The bar to move; None prints a line from time to time instead.
    """

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._done: dict[str, dict[int, int]] = {}
        self._ranks = 1
        self._tasks: dict[str, TaskID] = {}
        self._said_s = time.monotonic()

    def plan(self, plan: Plan) -> None:
        """Announce what will be done, before it starts."""
        self._ranks = plan.world
        largest = int(plan.largest_bytes.max())
        note = (
            f"{len(plan)} operations of {plan.source}, "
            f"{byte_size(int(plan.total_bytes.sum()))} on {plan.world} ranks, "
            f"buffers of up to 2 x {byte_size(largest)} a rank"
        )
        if plan.left_out:
            others = ", ".join(f"{n} {name}" for name, n in plan.left_out.items())
            note += f"; left out: {others}"
        if self._progress is None:
            say(note)
        else:
            self._progress.console.print(note, highlight=False)

    def event(self, event: Event) -> None:
        """Take in a heartbeat."""
        stage, of = event.fields.get("stage"), event.fields.get("of")
        done = event.fields.get("done")
        if stage not in _STAGES or not isinstance(of, int) or not isinstance(done, int):
            return
        ranks = self._done.setdefault(stage, dict.fromkeys(range(self._ranks), 0))
        ranks[event.rank] = done
        slowest = min(ranks.values())
        if self._progress is not None:
            if stage not in self._tasks:
                self._tasks[stage] = self._progress.add_task(_STAGES[stage], total=of)
            self._progress.update(self._tasks[stage], completed=slowest, total=of)
        elif time.monotonic() - self._said_s > _LINE_EVERY_S:
            self._said_s = time.monotonic()
            say(f"{_STAGES[stage]}: {slowest} of {of} operations")


@contextmanager
def watching() -> Iterator[Watcher]:
    """A progress bar on stderr if that is a terminal, else lines."""
    console = Paper(stderr=True)
    if not console.is_terminal:
        yield Watcher(None)
        return
    columns = (
        "[progress.description]{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield Watcher(progress)


def show(summary: Summary) -> None:
    """The summary as a table on stdout."""
    s = summary
    table = Table(title=f"replay of {s.source}", title_justify="left", box=None)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    checked = "every size and byte verified" if s.verified else "not verified"
    table.add_row(
        "operations",
        f"{s.operations} all-to-alls of iterations {s.first_iteration} to "
        f"{s.last_iteration}, {checked}",
    )
    if s.left_out:
        others = ", ".join(f"{n} {name}" for name, n in s.left_out.items())
        table.add_row("left out", others)
    hosts = len(set(s.nodes))
    table.add_row(
        "ranks",
        f"{s.ranks} on {hosts} host{'s' if hosts > 1 else ''}, {s.backend}, {s.pace}",
    )
    table.add_row(
        "bytes",
        f"{byte_size(s.total_bytes)}, of these {byte_size(s.network_bytes)} between "
        f"ranks; a rank sent {byte_size(min(s.rank_bytes))} to "
        f"{byte_size(max(s.rank_bytes))}",
    )
    table.add_row("wall time", f"{s.wall_s:.3f} s")
    if s.straggler is not None:
        table.add_row(
            "straggler",
            f"rank {s.straggler} came last in {s.straggler_share:.0%} of operations",
        )
    if s.total_busbw_gbs is not None:
        table.add_row("busbw", f"{s.total_busbw_gbs:.3g} GB/s over all operations")
    if s.out:
        table.add_row("written to", s.out)

    figures = Table(box=None, title="operations", title_justify="left")
    figures.add_column("", style="bold")
    for name in _COLUMNS:
        figures.add_column(name, justify="right")
    for label, spread in (
        ("time, us", s.time_us),
        ("algbw, GB/s", s.algbw_gbs),
        ("busbw, GB/s", s.busbw_gbs),
    ):
        if spread is not None:
            figures.add_row(label, *(_figure(getattr(spread, n)) for n in _COLUMNS))

    slowest = Table(box=None, title="slowest operations", title_justify="left")
    slowest.add_column("time, us", justify="right")
    slowest.add_column("bytes", justify="right")
    slowest.add_column("rank", justify="right")
    slowest.add_column("operation", overflow="fold")
    for slow in s.slowest:
        slowest.add_row(
            _figure(slow.time_us), byte_size(slow.bytes), str(slow.rank), slow.operation
        )

    # a log or a pipe has no width of its own: tables keep theirs
    console = Paper(highlight=False, width=None if sys.stdout.isatty() else 120)
    for part in (table, figures, slowest):
        console.print(part, "")


def _figure(value: float) -> str:
    return f"{value:.1f}" if value >= 100 else f"{value:.3g}"
