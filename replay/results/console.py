"""What a replay shows: its ranks on a terminal, lines in a log, tables at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from moetraffic.errors import ReplayError
from moetraffic.launch import Heartbeat
from moetraffic.replay.plan.program import Plan
from moetraffic.report.terminal import Paper, say
from moetraffic.units import byte_size

from .fidelity import LATE_S
from .fidelity_tables import tables
from .metrics import progress_metrics, write_metrics
from .progress import STAGES, Progress
from .reports import common_labels
from .result import Summary

_LINE_EVERY_S = 10.0
_METRICS_EVERY_S = 1.0
_RANKS_SHOWN = 16
_COLUMNS = ("min", "p50", "mean", "p90", "p99", "max")


class ProgressDisplay:
    """Tells how far the ranks are, from their heartbeats.

    Parameters
    ----------
    live
        Where to draw; None prints a line from time to time instead.
    metrics
        Prometheus text file to keep up to date; None for none.
    """

    def __init__(self, live: Live | None, metrics: Path | None = None) -> None:
        self._live = live
        self._metrics = metrics
        self._labels: dict[str, str] = {}
        self.progress = Progress(1)
        self._said_s = self._wrote_s = time.monotonic()

    def plan(self, plan: Plan) -> None:
        """Announce what will be done, before it starts."""
        self.progress = Progress(plan.world)
        self._labels = common_labels(plan.source)
        largest = int(plan.largest_bytes.max())
        note = (
            f"{len(plan)} operations of {plan.source}, "
            f"{byte_size(int(plan.total_bytes.sum()))} on {plan.world} ranks, "
            f"buffers of up to 2 x {byte_size(largest)} a rank"
        )
        if plan.left_out:
            note += f"; left out: {_counted(plan.left_out)}"
        note = "\n".join((note, *plan.notes))
        if self._live is None:
            say(note)
        else:
            self._live.console.print(note, highlight=False)

    def event(self, event: Heartbeat) -> None:
        """Take in a heartbeat."""
        if not self.progress.take(event):
            return
        now = time.monotonic()
        if self._live is not None:
            self._live.update(render_progress(self.progress))
        elif now - self._said_s > _LINE_EVERY_S:
            self._said_s = now
            say(self.progress.line())
        if self._metrics is not None and now - self._wrote_s > _METRICS_EVERY_S:
            self._wrote_s = now
            self._write(self._metrics)

    def _write(self, path: Path) -> None:
        told = self.progress
        ranks = dict(enumerate(told.of_rank))
        metrics = progress_metrics(
            told.stage,
            {r: own.done for r, own in ranks.items()},
            {r: own.of for r, own in ranks.items()},
            told.elapsed_s,
        )
        try:
            write_metrics(path, metrics, self._labels)
        except ReplayError as error:
            # a full disk is no reason to stop; the end of the replay says it again
            self._metrics = None
            say(f"moetraffic: {error}")


@contextmanager
def progress_display(
    *, live: bool | None = None, metrics: Path | None = None
) -> Iterator[ProgressDisplay]:
    """A view of the ranks on stderr if that is a terminal, else lines.

    Parameters
    ----------
    live
        Whether to draw; None where stderr is a terminal.
    metrics
        See :class:`ProgressDisplay`.
    """
    console = Paper(stderr=True, force_terminal=live or None)
    if not (console.is_terminal if live is None else live):
        yield ProgressDisplay(None, metrics)
        return
    with Live(console=console, transient=True, refresh_per_second=4) as view:
        yield ProgressDisplay(view, metrics)


def render_progress(progress: Progress) -> Group:
    """The pass that is on: all ranks, the rate, who is late, the slowest operation.

    Of many ranks those that are furthest behind.
    """
    left_s = (progress.of - progress.done) / progress.rate if progress.rate else 0.0
    head = Text(
        f"{STAGES.get(progress.stage, 'starting')}  {progress.done} of {progress.of}"
        + (f"  {progress.rate:.4g} a second" if progress.rate else "")
        + (f"  {left_s:.0f} s left" if left_s else "")
    )
    table = Table.grid(padding=(0, 1))
    late = set(progress.late)
    ranks = sorted(range(len(progress.of_rank)), key=progress.share)[:_RANKS_SHOWN]
    for rank in sorted(ranks):
        own = progress.of_rank[rank]
        table.add_row(
            f"rank {rank}",
            ProgressBar(total=max(own.of, 1), completed=own.done, width=32),
            f"{progress.share(rank):.0%}",
            Text("behind", style="yellow") if rank in late else "",
            f"{own.late_s * 1e3:.3g} ms late" if own.late_s > LATE_S else "",
        )
    parts: list[RenderableType] = [head, table]
    if len(progress.of_rank) > _RANKS_SHOWN:
        parts.append(Text(f"the {_RANKS_SHOWN} last of {len(progress.of_rank)} ranks"))
    if progress.slowest:
        parts.append(Text(f"slowest: {progress.slowest_us:.4g} us, {progress.slowest}"))
    return Group(*parts)


def show(summary: Summary) -> None:
    """The summary as a table on stdout."""
    s = summary
    table = Table(title=f"replay of {s.source}", title_justify="left", box=None)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    checked = {
        "full": "every size and byte verified",
        "none": "every size verified, no bytes",
    }.get(s.verified, f"every size verified, bytes of a {s.verified}")
    table.add_row(
        "operations",
        f"{_counted(s.kinds)} of iterations {s.first_iteration} to "
        f"{s.last_iteration}, {checked}",
    )
    if len(s.streams) > 1:
        table.add_row("streams", f"{', '.join(s.streams)}, side by side")
    for note in s.notes:
        table.add_row("note", note)
    if s.left_out:
        table.add_row("left out", _counted(s.left_out))
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
    if s.fidelity is not None:
        console.print(tables(s.fidelity), "")


def _counted(kinds: Mapping[str, int]) -> str:
    """How many of each kind, in words."""
    return ", ".join(
        f"{count} {name.replace('_', '-')}{'s' if count > 1 else ''}"
        for name, count in kinds.items()
    )


def _figure(value: float) -> str:
    return f"{value:.1f}" if value >= 100 else f"{value:.3g}"
