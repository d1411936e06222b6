"""Write snapshots of a run in progress for TensorBoard and Weights & Biases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from moetraffic.errors import MoetrafficError, install_command
from moetraffic.trace.hdf5.durable import write_errors
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


class StepLog(ABC):
    """Log of scalars of every step, and of load heatmaps, each written once."""

    target: str  # where it is written, for errors

    def __init__(self) -> None:
        self._last = self._drawn = -1  # iterations

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
        with write_errors(self.target):
            self._scalars(snapshot, np.flatnonzero(when > self._last).tolist())
            if when[0] > self._drawn or (snapshot.ended and when[-1] > self._drawn):
                self._heatmap(snapshot)
                self._drawn = int(when[-1])
            self._last = int(when[-1])
            self._flush()

    def _scalars(self, snapshot: Snapshot, rows: list[int]) -> None:
        values = {tag: getattr(snapshot, name) for tag, name in OF_STEP.items()}
        for each in snapshot.layers:
            layer = f"layer_{each.layer:03d}" if each.layer >= 0 else "layer_unknown"
            for tag, name in OF_LAYER.items():
                values[f"{tag}/{layer}"] = getattr(each, name)
        for row in rows:
            finite = {
                t: float(c[row]) for t, c in values.items() if np.isfinite(c[row])
            }
            self._write(int(snapshot.iteration[row]), finite)

    def _heatmap(self, snapshot: Snapshot) -> None:
        if (chart := load_chart(snapshot)) is not None:
            self._draw(int(snapshot.iteration[-1]), draw(chart))

    @abstractmethod
    def _write(self, step: int, values: dict[str, float]) -> None:
        """Write the scalars of a step, by tag."""

    @abstractmethod
    def _draw(self, step: int, figure: Figure) -> None:
        """Write the heatmap of a window of steps."""

    @abstractmethod
    def _flush(self) -> None:
        """Write what is buffered."""

    @abstractmethod
    def close(self) -> None:
        """Write what is buffered, and end the log."""


class EventFiles(StepLog):
    """Writer of a log into a TensorBoard folder.

    Parameters
    ----------
    folder
        Folder of the event files, which is made if it does not exist.  Files in it are
        kept: TensorBoard shows all of a folder together.

    Raises
    ------
    MoetrafficError
        If tensorboard is not installed, or the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.target = str(folder)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MoetrafficError(
                "event files need the package tensorboard, which is not installed: "
                f"run {install_command('tensorboard')}"
            ) from None
        self._open = partial(SummaryWriter, str(folder))
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)

    @cached_property
    def _writer(self) -> Any:
        """Writer, which makes an event file; from the first step on."""
        return self._open()

    def _write(self, step: int, values: dict[str, float]) -> None:
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step)

    def _draw(self, step: int, figure: Figure) -> None:
        self._writer.add_figure("load", figure, step)

    def _flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        """Write what is buffered, and close the files."""
        if "_writer" in vars(self):
            self._writer.close()


class WandbRun(StepLog):
    """Writer of a log into a run of Weights & Biases.

    Whether it is uploaded is decided by wandb's own settings: ``WANDB_MODE=offline``
    writes files alone.

    Parameters
    ----------
    project
        Project of the run.
    name
        Name of the run.

    Raises
    ------
    MoetrafficError
        If wandb is not installed, or it cannot start a run.
    """

    def __init__(self, project: str, name: str) -> None:
        super().__init__()
        self.target = f"the run {name} of the project {project}"
        try:
            import wandb
        except ImportError:
            raise MoetrafficError(
                "a run of Weights & Biases needs the package wandb, which is not "
                f"installed: run {install_command('wandb')}"
            ) from None
        try:
            self._run: Any = wandb.init(project=project, name=name)
        except (wandb.Error, OSError) as error:
            raise MoetrafficError(
                f"wandb cannot start {self.target} ({error}): set WANDB_MODE=offline "
                "to write files alone"
            ) from None
        self._image = wandb.Image

    def _write(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def _draw(self, step: int, figure: Figure) -> None:
        import matplotlib.pyplot  # noqa: F401  # wandb takes it as imported

        self._run.log({"load": self._image(figure)}, step=step)

    def _flush(self) -> None:
        pass  # wandb has a process that writes

    def close(self) -> None:
        """Write what is buffered, and finish the run."""
        self._run.finish()
