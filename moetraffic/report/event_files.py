"""Write snapshots of a run in progress for TensorBoard and Weights & Biases."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from moetraffic.errors import MoetrafficError, install_command
from moetraffic.files import write_errors
from moetraffic.watch import Snapshot

from .figures import draw
from .results.watch import load_chart

OF_STEP = {
    "step_time_s": "duration_s",
    "loss": "loss",
    "all_to_all_bytes": "bytes",
    "all_to_all_time_share": "time_share",
}
OF_LAYER = {
    "imbalance": "imbalance",
    "imbalance_noise_floor": "floor",
    "dropped_share": "dropped_share",
    "bytes": "bytes",
    "time_share": "time_share",
}
"""Scalars of every step, by their tag: fields of a snapshot and of its layers."""


class StepLog:
    """Log of scalars of every step, and of load heatmaps, each written once.

    ``target`` names it in errors; ``start`` returns what writes it, from the first step
    on: an object with the methods of TensorBoard's ``SummaryWriter``.
    """

    def __init__(self, target: str, start: Callable[[], Any]) -> None:
        self._target, self._start = target, start
        self._last = self._drawn = -1  # iterations

    @cached_property
    def _writer(self) -> Any:
        return self._start()

    def add(self, snapshot: Snapshot) -> None:
        """Write the steps that are new, and a heatmap of each full window of steps.

        Raises
        ------
        MoetrafficError
            If a file cannot be written.
        """
        when = snapshot.iteration
        if not len(when):
            return
        if when[-1] < self._last:  # another capture has replaced the run
            self._last = self._drawn = -1
        with write_errors(self._target):
            self._scalars(snapshot, np.flatnonzero(when > self._last).tolist())
            if when[0] > self._drawn or (snapshot.ended and when[-1] > self._drawn):
                if (chart := load_chart(snapshot)) is not None:
                    self._writer.add_figure("load", draw(chart), int(when[-1]))
                self._drawn = int(when[-1])
            self._last = int(when[-1])
            self._writer.flush()

    def _scalars(self, snapshot: Snapshot, rows: list[int]) -> None:
        values = {tag: getattr(snapshot, name) for tag, name in OF_STEP.items()}
        for each in snapshot.layers:
            layer = f"layer_{each.layer:03d}" if each.layer >= 0 else "layer_unknown"
            for tag, name in OF_LAYER.items():
                values[f"{tag}/{layer}"] = getattr(each, name)
        for row in rows:
            for tag, column in values.items():
                if np.isfinite(column[row]):
                    step = int(snapshot.iteration[row])
                    self._writer.add_scalar(tag, float(column[row]), step)

    def close(self) -> None:
        """Write what is buffered, and end the log."""
        if "_writer" in vars(self):
            self._writer.close()


def event_files(folder: Path) -> StepLog:
    """Open a log of TensorBoard's event files in a folder, made if it does not exist.

    Files in it are kept: TensorBoard shows all of a folder together.

    Raises
    ------
    MoetrafficError
        If tensorboard is not installed, or the folder cannot be written.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MoetrafficError(
            "event files need the package tensorboard, which is not installed: "
            f"run {install_command('tensorboard')}"
        ) from None
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return StepLog(str(folder), partial(SummaryWriter, str(folder)))


def wandb_run(project: str, name: str) -> StepLog:
    """Start a run of Weights & Biases as a log.

    Whether it is uploaded is decided by wandb's own settings: ``WANDB_MODE=offline``
    writes files alone.

    Raises
    ------
    MoetrafficError
        If wandb is not installed, or it cannot start a run.
    """
    target = f"the run {name} of the project {project}"
    try:
        import wandb
    except ImportError:
        raise MoetrafficError(
            "a run of Weights & Biases needs the package wandb, which is not "
            f"installed: run {install_command('wandb')}"
        ) from None
    try:
        run: Any = wandb.init(project=project, name=name)
    except (wandb.Error, OSError) as error:
        raise MoetrafficError(
            f"wandb cannot start {target} ({error}): set WANDB_MODE=offline "
            "to write files alone"
        ) from None
    writer = _WandbWriter(run, wandb.Image)
    log = StepLog(target, lambda: writer)
    _ = log._writer  # started, so that it is ended even if no step comes
    return log


class _WandbWriter:
    """Writer of a run of Weights & Biases, with the methods of a SummaryWriter."""

    def __init__(self, run: Any, image: Callable[[Figure], Any]) -> None:
        self._run, self._image = run, image
        self.close = run.finish

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """Log a value of a step; wandb joins all of one step."""
        self._run.log({tag: value}, step=step)

    def add_figure(self, tag: str, figure: Figure, step: int) -> None:
        """Log a picture of a step."""
        import matplotlib.pyplot  # noqa: F401  # wandb takes it as imported

        self._run.log({tag: self._image(figure)}, step=step)

    def flush(self) -> None:
        """Do nothing: wandb has a process that writes."""
