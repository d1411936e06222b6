"""Console output of a replay: progress on a terminal or in a log, tables at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table as Grid
from rich.text import Text

from moetraffic.errors import ReplayError
from moetraffic.launch import Heartbeat
from moetraffic.replay.plan.program import Plan
from moetraffic.report.console.selection import selected
from moetraffic.report.console.terminal import Paper, say
from moetraffic.tables import Table
from moetraffic.units import byte_size, duration

from .metrics import STAGES, Progress, progress_metrics, write_metrics
from .summary_tables import counts

_LINE_EVERY_S = 10.0
_METRICS_EVERY_S = 1.0
_RANKS_SHOWN = 16


class ProgressDisplay:
    """Display of the ranks' progress, updated from their heartbeats.

    Without a live display, a line is printed periodically instead.
    """

    def __init__(self, live: Live | None, metrics: Path | None = None) -> None:
        self._live = live
        self._metrics = metrics
        self._source = ""
        self.progress = Progress(1)
        self._line_s = self._metrics_s = time.monotonic()

    def plan(self, plan: Plan, *more: str) -> None:
        """Print operations, bytes and buffer sizes of a replay before it starts.

        ``more`` are further lines.
        """
        self.progress = Progress(plan.world)
        self._source = plan.source
        line = (
            f"{len(plan)} operations of {plan.source}, "
            f"{byte_size(int(plan.total_bytes.sum()))} with rank-local bytes, on "
            f"{plan.world} rank{'s' * (plan.world > 1)}"
        )
        if plan.left_out:
            line += f"; not replayed: {counts(plan.left_out)}"
        text = "\n".join((line, *more))  # the summary has the notes of the plan
        if self._live is None:
            say(text)
        else:
            self._live.console.print(text, highlight=False)

    def event(self, event: Heartbeat) -> None:
        """Update the display and the metrics file from a heartbeat."""
        if not self.progress.update(event):
            return
        now = time.monotonic()
        if self._live is not None:
            self._live.update(render_progress(self.progress))
        elif now - self._line_s > _LINE_EVERY_S:
            self._line_s = now
            say(self.progress.line())
        if self._metrics is not None and now - self._metrics_s > _METRICS_EVERY_S:
            self._metrics_s = now
            try:
                metrics = progress_metrics(self.progress)
                write_metrics(self._metrics, metrics, self._source)
            except ReplayError as error:
                # a full disk does not stop the replay; its end reports it again
                self._metrics = None
                say(f"moetraffic: {error}")


@contextmanager
def progress_display(
    *, live: bool | None = None, metrics: Path | None = None
) -> Iterator[ProgressDisplay]:
    """Display replay progress on stderr: bars on a terminal, otherwise lines."""
    console = Paper(stderr=True, force_terminal=live or None)
    if not (console.is_terminal if live is None else live):
        yield ProgressDisplay(None, metrics)
        return
    with Live(console=console, transient=True, refresh_per_second=4) as view:
        yield ProgressDisplay(view, metrics)


def render_progress(progress: Progress) -> Group:
    """Render progress bars of the ranks, the rate and the slowest operation.

    If there are many ranks, only those furthest behind are shown.
    """
    left_s = (progress.of - progress.done) / progress.rate if progress.rate else 0.0
    head = Text(
        f"{STAGES.get(progress.stage, 'starting')}  {progress.done} of {progress.of}"
        + (f"  {progress.rate:.4g} a second" if progress.rate else "")
        + (f"  {left_s:.0f} s left" if left_s else "")
    )
    grid = Grid.grid(padding=(0, 1))
    late = set(progress.late)
    shares = progress.shares
    ranks = sorted(range(len(shares)), key=shares.__getitem__)[:_RANKS_SHOWN]
    for rank in sorted(ranks):
        done, of = progress.done_of[rank], progress.planned_of[rank]
        grid.add_row(
            f"rank {rank}",
            ProgressBar(total=max(of, 1), completed=done, width=32),
            f"{shares[rank]:.0%}",
            Text("behind", style="yellow") if rank in late else "",
        )
    parts: list[RenderableType] = [head, grid]
    if len(shares) > _RANKS_SHOWN:
        parts.append(Text(f"the slowest {_RANKS_SHOWN} of {len(shares)} ranks"))
    if progress.slowest:
        slowest = duration(progress.slowest_us / 1e6)
        parts.append(Text(f"slowest: {slowest}, {progress.slowest}"))
    return Group(*parts)


def print_result(
    summary: Sequence[str],
    parts: Mapping[str, Sequence[Table]],
    only: Sequence[str] = (),
    *,
    tables: bool = False,
) -> None:
    """Print the summary of a result, all its tables, or those of some parts."""
    Paper().show(selected(summary, parts, only=only, tables=tables))
