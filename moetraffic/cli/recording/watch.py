"""``moetraffic watch``: live statistics of a run while it is recorded."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.live import Live

from moetraffic.errors import MoetrafficError
from moetraffic.files import LOGS, validate_other_than_input, validate_output
from moetraffic.report.console.options import AsJson, option
from moetraffic.report.console.terminal import Paper, announce
from moetraffic.tables import plain

if TYPE_CHECKING:
    from moetraffic.report.event_files import SnapshotWriter
    from moetraffic.watch import Snapshot

ABOVE_LAYERS = 20
"""Lines of a terminal that the state of the run and the legends take."""


def watch(
    trace: Annotated[
        Path,
        typer.Argument(
            help="Trace that is being recorded (run.h5), or its folder of logs "
            "(run.h5.logs)."
        ),
    ],
    last: int = option(32, "Number of steps to summarize.", min=1),
    layers: str | None = option(
        None,
        "Layers to show, with a table of their experts, a list: 1,3:6.",
        shown="all",
    ),
    interval: float = option(2.0, "Time between two refreshes, in s.", min=0.1),
    once: bool = option(False, "Print the state of the run once.", "--once"),
    metrics: Path | None = option(
        None,
        "File for Prometheus' textfile collector, .prom, replaced at each refresh.",
    ),
    tensorboard: Path | None = option(None, "Folder for TensorBoard event files."),
    wandb: str | None = option(
        None,
        "Project of Weights & Biases in which to log a run; WANDB_MODE=offline "
        "writes files alone.",
    ),
    as_json: AsJson = False,
) -> None:
    """Watch a run while it trains: expert load, imbalance, bytes and time by layer.

    Reads the logs that the ranks write; it does not contact the ranks. Ends when the
    run has ended.

    Example: moetraffic watch run.h5 --last 100 --metrics /var/lib/node/moe.prom
    """
    from moetraffic.report.results.watch import summary
    from moetraffic.watch import watch_run

    if metrics is not None:
        validate_output(metrics, force=True)
        validate_other_than_input(trace, metrics)
        if metrics.suffix != ".prom":
            raise MoetrafficError(
                "metrics are written in the text format of Prometheus, whose textfile "
                f"collector reads files that end with .prom, but {metrics.name} does "
                "not: give --metrics run.prom"
            )
    snapshots = watch_run(
        trace, last=last, layers=layers, interval_s=interval, follow=not once
    )
    with _output(_writers(trace, metrics, tensorboard, wandb)) as write:
        written = map(write, snapshots)
        if as_json:
            for snapshot in written:
                print(json.dumps(plain(summary(snapshot))), flush=True)
        else:
            _show(written, once=once, experts=layers is not None)


def _show(snapshots: Iterator[Snapshot], *, once: bool, experts: bool) -> None:
    """Show snapshots on a terminal that refreshes, or as lines; the last one whole."""
    from moetraffic.report.results.watch import line, tables

    paper = Paper()
    live = Live(console=paper, transient=True, auto_refresh=False)
    refreshes = paper.is_terminal and not once
    last: Snapshot | None = None
    said = ""
    try:
        with live if refreshes else contextlib.nullcontext():
            for last in snapshots:
                if refreshes:
                    most = max(1, paper.height - ABOVE_LAYERS)
                    found = tables(last, experts=experts, most=most)
                    live.update(Group(*found), refresh=True)
                elif not (once or last.ended) and (new := line(last)) != said:
                    paper.print(new, soft_wrap=True)  # one line of a log
                    said = new
    finally:
        # also after Ctrl-C
        if last is not None:
            paper.show(tables(last, experts=experts))


def _writers(
    trace: Path, metrics: Path | None, tensorboard: Path | None, wandb: str | None
) -> list[SnapshotWriter]:
    """Open the outputs that were asked for."""
    if metrics is None and tensorboard is None and wandb is None:
        return []
    if wandb is not None:  # before imports that take seconds
        announce("starting a run of Weights & Biases; its service may need a minute")
    from moetraffic.report.event_files import MetricsFile, event_files, wandb_run

    writers: list[SnapshotWriter] = []
    if metrics is not None:
        writers.append(MetricsFile(metrics))
    if tensorboard is not None:
        writers.append(event_files(tensorboard))
    if wandb is not None:
        name = trace.name.removesuffix(LOGS).removesuffix(".h5")
        writers.append(wandb_run(wandb, name))
    return writers


@contextlib.contextmanager
def _output(
    writers: list[SnapshotWriter],
) -> Iterator[Callable[[Snapshot], Snapshot]]:
    """Yield the function that writes a snapshot to all outputs; close them."""
    written = 0

    def write(snapshot: Snapshot) -> Snapshot:
        nonlocal written
        try:
            for writer in writers:
                writer.add(snapshot)
        except MoetrafficError as error:
            if not written:
                raise
            # a full disk does not end the view
            announce(f"{error}; files are no longer written")
            while writers:
                writers.pop().close()
        written += 1
        return snapshot

    try:
        yield write
    finally:
        for writer in writers:
            writer.close()
