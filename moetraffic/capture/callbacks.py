"""Callbacks that record the training loops of Lightning and of transformers.

Each function returns an instance of the framework's own callback class, which it
imports when it is called. The arguments are those of :class:`.recorder.Recorder`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .recorder import Recorder


def lightning_callback(path: str | Path, **options: Any) -> Any:
    """Create a callback for ``Trainer(callbacks=[...])`` of Lightning.

    A step ends with each optimizer step; validation batches are evaluation steps.
    """
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

    class RecorderCallback(Callback):  # type: ignore[misc]
        recorder = Recorder(path, **options)
        steps = 0

        def on_train_start(self, trainer: Any, *_: Any) -> None:
            # after the sanity check, which is no part of the training
            self.steps = trainer.global_step
            self.recorder.start()

        def on_train_batch_end(
            self, trainer: Any, _module: Any, outputs: Any, *_: Any
        ) -> None:
            if trainer.global_step != self.steps:
                self.steps = trainer.global_step
                loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
                self.recorder.step(loss=loss)

        def on_validation_batch_end(self, *_: Any) -> None:
            self.recorder.step(kind="evaluation")

        def on_exception(self, _trainer: Any, _module: Any, error: Any) -> None:
            # other ranks may have died: keep what was recorded
            self.recorder.__exit__(type(error), error, None)

        def on_train_end(self, *_: Any) -> None:
            self.recorder.close()

    return RecorderCallback()


def transformers_callback(path: str | Path, **options: Any) -> Any:
    """Create a callback for ``Trainer(callbacks=[...])`` of transformers.

    A step ends with each optimizer step.  The Trainer passes no loss to callbacks.
    """
    from transformers import TrainerCallback

    class RecorderCallback(TrainerCallback):  # type: ignore[misc]
        recorder = Recorder(path, **options)

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.recorder.start()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.recorder.step()

        def on_prediction_step(self, *_: Any, **__: Any) -> None:
            self.recorder.step(kind="evaluation")

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self.recorder.close()

    return RecorderCallback()
