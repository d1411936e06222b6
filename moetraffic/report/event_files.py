"""Write snapshots of a run in progress as TensorBoard event files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.errors import MoetrafficError, install_command
from moetraffic.trace.hdf5.durable import remedy
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


class EventFiles:
    """Writer of scalars of every step, and of load heatmaps, into a TensorBoard folder.

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
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MoetrafficError(
                "event files need the package tensorboard, which is not installed: "
                f"run {install_command('tensorboard')}"
            ) from None
        try:
            self._writer: Any = SummaryWriter(str(folder))
        except OSError as error:
            raise MoetrafficError(
                f"{folder} cannot be written ({error.strerror}): {remedy(error)}"
            ) from None
        self._folder = folder
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
        try:
            self._scalars(snapshot, np.flatnonzero(when > self._last).tolist())
            if when[0] > self._drawn or (snapshot.ended and when[-1] > self._drawn):
                self._heatmap(snapshot)
                self._drawn = int(when[-1])
            self._last = int(when[-1])
            self._writer.flush()
        except OSError as error:
            raise MoetrafficError(
                f"{self._folder} cannot be written ({error.strerror}): {remedy(error)}"
            ) from None

    def _scalars(self, snapshot: Snapshot, rows: list[int]) -> None:
        values = {tag: getattr(snapshot, name) for tag, name in OF_STEP.items()}
        for each in snapshot.layers:
            layer = f"layer_{each.layer:03d}" if each.layer >= 0 else "layer_unknown"
            for tag, name in OF_LAYER.items():
                values[f"{tag}/{layer}"] = getattr(each, name)
        for tag, column in values.items():
            for row in rows:
                if np.isfinite(column[row]):
                    step = int(snapshot.iteration[row])
                    self._writer.add_scalar(tag, float(column[row]), step)

    def _heatmap(self, snapshot: Snapshot) -> None:
        if (chart := load_chart(snapshot)) is not None:
            step = int(snapshot.iteration[-1])
            self._writer.add_figure("load", draw(chart), step)

    def close(self) -> None:
        """Write what is buffered, and close the files."""
        self._writer.close()
