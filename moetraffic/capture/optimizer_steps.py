"""Observe the optimizer steps of a program, and those that a gradient scaler skips.

Every step of a torch optimizer is observed.  A gradient scaler skips the step if a
gradient is infinite; then the optimizer is not called, or leaves the parameters as they
are.  Scalers are functions of classes of torch and other libraries, found by name:
within such a function, the steps of all optimizers are one.

Optimizers may step within a backward pass, one for each parameter: these steps are
observed as one at the end of that pass.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from moetraffic.capture.hook.call_recording import now_ns

from .record_format import OPTIMIZER

_task = torch._C._current_graph_task_id
_node = torch._C._current_autograd_node

Skipped = bool | Iterable[torch.Tensor]
"""Whether a step was skipped, or tensors of which one is positive if it was."""


def _torch_scaler(
    scaler: Any, args: tuple[Any, ...], _result: Any, stepped: bool
) -> Skipped | None:
    """Read ``torch.amp.GradScaler.step(optimizer)``."""
    optimizer = args[0]
    if not stepped and isinstance(optimizer, torch.optim.Optimizer):
        return True
    if stepped and not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    # a fused optimizer is called always, and compares the tensor on the device
    state = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    return [found.detach().clone() for found in state.values()]


def _deepspeed_engine(
    engine: Any, _args: tuple[Any, ...], _result: Any, stepped: bool
) -> Skipped | None:
    """Read DeepSpeed's engine, which takes one optimizer step per iteration."""
    return not stepped and bool(getattr(engine.optimizer, "overflow", False))


def _megatron_optimizer(
    _optimizer: Any, _args: tuple[Any, ...], result: Any, stepped: bool
) -> Skipped | None:
    """Read ``(successful, gradient norm, zeros)`` of Megatron-Core's optimizers."""
    return not stepped and isinstance(result, tuple) and result[0] is False


Reader = Callable[[Any, tuple[Any, ...], Any, bool], "Skipped | None"]
SCALERS: tuple[tuple[str, str, str, Reader], ...] = (
    ("torch.amp.grad_scaler", "GradScaler", "step", _torch_scaler),
    # DeepSpeed 0.19, deepspeed/runtime/engine.py
    (
        "deepspeed.runtime.engine",
        "DeepSpeedEngine",
        "_take_model_step",
        _deepspeed_engine,
    ),
    # Megatron-Core 0.16, megatron/core/optimizer/optimizer.py
    (
        "megatron.core.optimizer.optimizer",
        "MixedPrecisionOptimizer",
        "step",
        _megatron_optimizer,
    ),
    (
        "megatron.core.optimizer.optimizer",
        "ChainedOptimizer",
        "step",
        _megatron_optimizer,
    ),
)
"""Module, class and method of each known scaler, and the reader of its result."""


class _Thread(threading.local):
    depth = 0  # of nested scalers
    stepped = False  # whether an optimizer has stepped within the scaler


class OptimizerSteps:
    """Hooks on optimizers and gradient scalers.

    ``put`` receives the record ``(OPTIMIZER, end, in_backward, skipped)`` of each step,
    and ``failed`` an error of the observation, which does not reach the training.
    """

    def __init__(
        self,
        put: Callable[[tuple[Any, ...]], None],
        failed: Callable[[str, Exception], None],
    ) -> None:
        self._put, self._failed = put, failed
        self._here = _Thread()
        self._awaited = -1  # backward pass whose end is observed
        self._undo = contextlib.ExitStack()
        hook = register_optimizer_step_post_hook(self._stepped)
        self._undo.callback(hook.remove)
        for module, name, method, read in SCALERS:
            kind = getattr(sys.modules.get(module), name, None)
            if isinstance(kind, type) and method in vars(kind):
                self._wrap(kind, method, read)

    def undo(self) -> None:
        """Remove all hooks."""
        self._undo.close()

    def _stepped(self, *_: Any) -> None:
        if self._here.depth:
            self._here.stepped = True
            return
        try:
            self._observe(skipped=False)
        except Exception as error:
            self._failed("optimizer step", error)

    def _observe(self, *, skipped: Skipped) -> None:
        task = _task()
        if task == -1:
            self._put((OPTIMIZER, now_ns(), False, skipped))
        elif task != self._awaited:
            self._awaited = task
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._passed)

    def _passed(self) -> None:
        """Record the optimizer steps of a backward pass at its end."""
        try:
            # a checkpointed segment has a pass of its own within another one
            nested = _node() is not None
            self._put((OPTIMIZER, now_ns(), nested, False))
        except Exception as error:
            self._failed("optimizer step", error)

    def _wrap(self, kind: type, method: str, read: Reader) -> None:
        """Observe the skipped steps of a scaler's class."""
        original: Any = vars(kind)[method]

        @wraps(original)
        def step(scaler: Any, *args: Any, **named: Any) -> Any:
            here = self._here
            if not here.depth:
                here.stepped = False
            here.depth += 1
            try:
                result = original(scaler, *args, **named)
            finally:
                here.depth -= 1
            if not here.depth:
                self._scaled(read, scaler, (*args, *named.values()), result)
            return result

        setattr(kind, method, step)

        def restore() -> None:
            if vars(kind).get(method) is step:
                setattr(kind, method, original)

        self._undo.callback(restore)

    def _scaled(
        self, read: Reader, scaler: Any, args: tuple[Any, ...], result: Any
    ) -> None:
        """Record the step of a scaler, which its optimizers took or did not take."""
        stepped, skipped = self._here.stepped, None
        try:
            skipped = read(scaler, args, result, stepped)
        except Exception as error:
            self._failed("gradient scaler", error)
        try:
            if stepped or skipped:
                self._observe(skipped=skipped or False)
        except Exception as error:
            self._failed("optimizer step", error)
