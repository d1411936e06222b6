"""Callbacks that record the training loops of Lightning and of transformers.

Each function returns an instance of the framework's own callback class, which it
imports when it is called. The arguments are those of :class:`.recorder.Recorder`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .recorder import Recorder


class _OwnsRecorder:
    """What the callbacks of both frameworks share."""

    def __init__(self, path: str | Path, options: dict[str, Any]) -> None:
        super().__init__()
        self.recorder = Recorder(path, **options)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Write the trace."""
        self.recorder.close()


def lightning_callback(path: str | Path, **options: Any) -> Any:
    """Create a callback for ``Trainer(callbacks=[...])`` of Lightning.

    A step ends with each optimizer step (``trainer.global_step``); validation batches
    are evaluation steps. If the training ends by an exception, the segments are kept
    for ``moetraffic merge``. The arguments are those of :class:`.recorder.Recorder`.

    Raises
    ------
    ImportError
        If neither ``lightning`` nor ``pytorch_lightning`` is installed.
    """
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

    class RecorderCallback(_OwnsRecorder, Callback):  # type: ignore[misc]
        """Callback that owns a recorder."""

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            """Start after the sanity check, which is no part of the training."""
            self._steps = trainer.global_step
            self.recorder.start()

        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, *_: Any
        ) -> None:
            """End a step if the optimizer stepped in this batch."""
            if trainer.global_step != self._steps:
                self._steps = trainer.global_step
                loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
                self.recorder.step(loss=loss)

        def on_validation_batch_end(self, *_: Any) -> None:
            """End an evaluation step, if the training has started."""
            self.recorder.step(kind="evaluation")

        def on_exception(self, trainer: Any, pl_module: Any, exception: Any) -> None:
            """Keep what was recorded: other ranks may have died."""
            self.recorder.__exit__(type(exception), exception, None)

    return RecorderCallback(path, options)


def transformers_callback(path: str | Path, **options: Any) -> Any:
    """Create a callback for ``Trainer(callbacks=[...])`` of transformers.

    A step ends with each optimizer step. The Trainer passes no loss to callbacks, so
    steps have none. The arguments are those of :class:`.recorder.Recorder`.

    Raises
    ------
    ImportError
        If transformers is not installed.
    """
    from transformers import TrainerCallback

    class RecorderCallback(_OwnsRecorder, TrainerCallback):  # type: ignore[misc]
        """Callback that owns a recorder."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            """Start recording."""
            self.recorder.start()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            """End a step."""
            self.recorder.step()

        def on_prediction_step(self, *_: Any, **__: Any) -> None:
            """End an evaluation step."""
            self.recorder.step(kind="evaluation")

    return RecorderCallback(path, options)
