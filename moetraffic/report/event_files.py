"""Write snapshots of a run in progress: Prometheus, TensorBoard, Weights & Biases."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from prometheus_client import Metric, generate_latest

from moetraffic.errors import MoetrafficError, install_command
from moetraffic.files import write_errors, write_whole
from moetraffic.watch import Snapshot
from moetraffic.watch.snapshot import mean

from .results.watch import load_chart

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class SnapshotWriter(Protocol):
    """Output of snapshots."""

    def add(self, snapshot: Snapshot) -> None:
        """Write what is new in a snapshot.

        Raises
        ------
        MoetrafficError
            If it cannot be written.
        """

    def close(self) -> None:
        """Write what is buffered, and end."""


# ---- Prometheus ----------------------------------------------------------------------

PREFIX = "moetraffic_watch"

LAYER_METRICS = {
    "imbalance_ratio": ("imbalance", "Largest over mean load."),
    "imbalance_floor_ratio": ("floor", "The same of a balanced router."),
    "dropped_ratio": ("dropped_share", "Share of token copies dropped."),
    "sent_bytes": ("bytes", "Bytes of a step's all-to-alls, also rank-local."),
    "local_bytes": ("local_bytes", "Of these, bytes of a rank to itself."),
    "time_ratio": ("time_share", "Share of a step in all-to-alls."),
}
"""Field of a layer's snapshot, and help, of each metric."""


class MetricsFile:
    """File of metrics for node exporter's textfile collector.

    It reads every ``*.prom`` in a folder periodically, as another user: the file is
    replaced atomically, and readable by all users.

    References
    ----------
    Prometheus, "Exposition formats", text format 0.0.4; "Metric and label naming".
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, snapshot: Snapshot) -> None:
        """Replace the file by the metrics of a snapshot."""
        known = [metric for metric in metrics(snapshot) if metric.samples]
        registry: Any = SimpleNamespace(collect=lambda: known)
        with write_errors(self.path):
            write_whole(self.path, generate_latest(registry))
            self.path.chmod(0o644)

    def close(self) -> None:
        """Do nothing: the file is whole."""


def metrics(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield metrics of a snapshot; those of layers are means of the steps shown.

    Names end in their unit, as Prometheus requires: ``_seconds``, ``_bytes``, and
    ``_total`` for counters.  A value that is not finite has no sample.
    """

    def metric(
        name: str, help: str, *samples: tuple[Mapping[str, object], float]
    ) -> Metric:
        """Create a metric of samples: labels and value."""
        base = name.removesuffix("_total")
        kind = "gauge" if base == name else "counter"
        made = Metric(f"{PREFIX}_{base}", help, kind)
        for labels, value in samples:
            if math.isfinite(value):
                labels = {"trace": snapshot.path.name, **labels}
                shown = {key: str(label) for key, label in labels.items()}
                made.add_sample(f"{PREFIX}_{name}", shown, float(value))
        return made

    ended = float(snapshot.iteration[-1] + 1) if len(snapshot.iteration) else math.nan
    for name, value, help in (
        (
            *("running", snapshot.state == "recording"),
            "1 while the run is recorded, 0 before and after.",
        ),
        ("world_ranks", snapshot.world, "Ranks of the run."),
        ("ranks", len(snapshot.ranks), "Ranks whose logs are read."),
        (
            *("iterations_total", ended),
            "Iterations up to the last training step ended on all ranks seen.",
        ),
        ("ahead_steps", snapshot.ahead, "Steps of the furthest rank after these."),
        ("idle_seconds", snapshot.idle_s, "Time since a log was last written."),
        ("log_bytes", snapshot.log_bytes, "Bytes of the logs of all ranks per step."),
        ("step_time_seconds", mean(snapshot.duration_s), "Mean time of a step."),
        ("loss", mean(snapshot.loss), "Loss, mean of the ranks."),
        ("sent_bytes", mean(snapshot.bytes), LAYER_METRICS["sent_bytes"][1]),
        ("local_bytes", mean(snapshot.local_bytes), LAYER_METRICS["local_bytes"][1]),
        (
            *("all_to_all_time_ratio", mean(snapshot.time_share)),
            "Share of a step in all-to-alls, mean of the ranks.",
        ),
    ):
        yield metric(name, help, ({}, value))
    layers = [
        ({"layer": layer.layer if layer.layer >= 0 else "unknown"}, layer)
        for layer in snapshot.layers
    ]
    for name, (field, help) in LAYER_METRICS.items():
        samples = [(label, mean(getattr(layer, field))) for label, layer in layers]
        yield metric(f"layer_{name}", help, *samples)
    collapsed = [
        (label, float(layer.collapsed))
        for label, layer in layers
        if layer.collapsed is not None
    ]
    help = "1 if the layer has collapsed, 0 if not; absent if unknown."
    yield metric("layer_collapsed", help, *collapsed)
    for cell, help in (
        ("expert", "Load of an expert relative to the mean."),
        ("rank", "Dispatch bytes that a rank receives, relative to the mean."),
    ):
        loads = [
            ({**label, cell: number}, float(load))
            for label, layer in layers
            if layer.of == cell
            for number, load in enumerate(layer.ratio)
        ]
        yield metric(f"{cell}_load_ratio", help, *loads)


# ---- scalars of every step -----------------------------------------------------------

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


class StepWriter:
    """Writer of scalars of every step, and of load heatmaps, each written once.

    Parameters
    ----------
    target
        Name of the output in errors.
    start
        Called with the first step: returns an object with the methods of TensorBoard's
        ``SummaryWriter``.
    output
        This object, if it exists already.
    """

    def __init__(
        self, target: str, start: Callable[[], Any] | None, output: Any = None
    ) -> None:
        self._target, self._start, self._output = target, start, output
        self._last = self._drawn = -1  # iterations

    def add(self, snapshot: Snapshot) -> None:
        """Write the steps that are new, and a heatmap of each full window of steps."""
        steps = snapshot.iteration
        if not len(steps):
            return
        if steps[-1] < self._last:  # another capture has replaced the run
            self._last = self._drawn = -1
        with write_errors(self._target):
            if self._start is not None and self._output is None:
                self._output = self._start()
            output = self._output
            scalars = _scalars(snapshot)
            for row in np.flatnonzero(steps > self._last).tolist():
                for tag, values in scalars.items():
                    if np.isfinite(values[row]):
                        output.add_scalar(tag, float(values[row]), int(steps[row]))
            self._last = int(steps[-1])
            if steps[0] > self._drawn or (snapshot.ended and self._last > self._drawn):
                self._draw(snapshot)
                self._drawn = self._last
            output.flush()

    def _draw(self, snapshot: Snapshot) -> None:
        from .figures import draw  # matplotlib

        if (chart := load_chart(snapshot)) is not None:
            self._output.add_figure("load", draw(chart), self._last)

    def close(self) -> None:
        """Write what is buffered, and end."""
        if self._output is not None:
            self._output.close()


def _scalars(snapshot: Snapshot) -> dict[str, Any]:
    """Return the values of all steps, ``[n]`` each, by tag."""
    values = {tag: getattr(snapshot, field) for tag, field in OF_STEP.items()}
    for layer in snapshot.layers:
        name = f"layer_{layer.layer:03d}" if layer.layer >= 0 else "layer_unknown"
        for tag, field in OF_LAYER.items():
            values[f"{tag}/{name}"] = getattr(layer, field)
    return values


def event_files(folder: Path) -> StepWriter:
    """Open a writer of TensorBoard's event files in a folder, made if necessary.

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
    return StepWriter(str(folder), partial(SummaryWriter, str(folder)))


def wandb_run(project: str, name: str) -> StepWriter:
    """Start a run of Weights & Biases.

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
    # started now, so that it is ended even if no step comes
    return StepWriter(target, None, _WandbRun(run, wandb.Image))


class _WandbRun:
    """Run of Weights & Biases with the methods of a SummaryWriter."""

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
