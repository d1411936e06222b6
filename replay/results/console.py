"""Console output of a replay: progress on a terminal or in a log, tables at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from moetraffic.launch import Heartbeat
from moetraffic.replay.plan.program import Plan
from moetraffic.report.console.selection import selected
from moetraffic.report.console.terminal import Paper, say
from moetraffic.tables import Table
from moetraffic.units import byte_size

from .summary_tables import counts

STAGES = {"verify": "verifying", "replay": "replaying"}
"""Displayed names of the passes, by their names in heartbeats."""

_LINE_EVERY_S = 10.0


class ProgressDisplay:
    """Operations that the slowest rank has done in a pass, from the heartbeats.

    They are shown by a bar; without one, a line is printed every ten seconds.
    """

    def __init__(self, bar: Progress | None) -> None:
        self._bar = bar
        self._task = None if bar is None else bar.add_task("starting", total=None)
        self._line_s = time.monotonic()
        self._ranks = 1
        self._stage = ""
        self._counts: dict[int, tuple[int, int]] = {}  # done and planned, by rank

    def plan(self, plan: Plan, *more: str) -> None:
        """Print operations, bytes and buffer sizes of a replay before it starts.

        ``more`` are further lines.
        """
        self._ranks = plan.world
        line = (
            f"{len(plan)} operations of {plan.source}, "
            f"{byte_size(int(plan.total_bytes.sum()))} with rank-local bytes, on "
            f"{plan.world} rank{'s' * (plan.world > 1)}"
        )
        if plan.left_out:
            line += f"; not replayed: {counts(plan.left_out)}"
        text = "\n".join((line, *more))  # the summary has the notes of the plan
        if self._bar is None:
            say(text)
        else:
            self._bar.console.print(text, highlight=False)

    def event(self, event: Heartbeat) -> None:
        """Update the display from a heartbeat."""
        stage, done, of = (event.fields.get(name) for name in ("stage", "done", "of"))
        if stage not in STAGES or not isinstance(done, int) or not isinstance(of, int):
            return
        if stage != self._stage:
            if self._stage == "replay":
                return  # a rank that still verifies when others are timed
            self._stage, self._counts = stage, {}
        self._counts[event.rank] = done, of
        if len(self._counts) < self._ranks:
            return
        rank, (done, of) = min(
            self._counts.items(), key=lambda item: item[1][0] / max(item[1][1], 1)
        )
        if self._bar is not None and self._task is not None:
            title = STAGES[stage]
            self._bar.update(self._task, description=title, completed=done, total=of)
        elif (now := time.monotonic()) - self._line_s > _LINE_EVERY_S:
            self._line_s = now
            say(
                f"{STAGES[stage]}: the slowest rank ({rank}) has done {done} of {of} "
                "operations"
            )


@contextmanager
def progress_display() -> Iterator[ProgressDisplay]:
    """Show the progress on stderr: a bar on a terminal, otherwise lines."""
    console = Paper(stderr=True)
    if not console.is_terminal:
        yield ProgressDisplay(None)
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True
    ) as bar:
        yield ProgressDisplay(bar)


def print_result(
    summary: Sequence[str],
    parts: Mapping[str, Sequence[Table]],
    only: Sequence[str] = (),
    *,
    tables: bool = False,
) -> None:
    """Print the summary of a result, all its tables, or those of some parts."""
    Paper().show(selected(summary, parts, only=only, tables=tables))
