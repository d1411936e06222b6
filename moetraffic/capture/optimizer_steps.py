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
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from moetraffic.capture.hook.calls import now_ns

_task = torch._C._current_graph_task_id
_node = torch._C._current_autograd_node

Skipped = bool | Sequence[torch.Tensor]
"""Whether a step was skipped, or tensors of which one is positive if it was."""
Reader = Callable[[Any, tuple[Any, ...], Any, bool], Skipped]
"""``reader(scaler, arguments, result, stepped)``; stepped: an optimizer has stepped."""


def _torch_scaler(
    scaler: Any, args: tuple[Any, ...], _result: Any, stepped: bool
) -> Skipped:
    optimizer = args[0]
    if not stepped and isinstance(optimizer, torch.optim.Optimizer):
        return True
    if stepped and not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    # a fused optimizer is called always, and compares the tensor on the device
    state = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    return [found.detach().clone() for found in state.values()]


def _megatron(_scaler: Any, _args: Any, result: Any, stepped: bool) -> Skipped:
    # (successful, gradient norm, zeros)
    return not stepped and isinstance(result, tuple) and result[0] is False


SCALERS: dict[str, Reader] = {
    "torch.amp.grad_scaler.GradScaler.step": _torch_scaler,
    # DeepSpeed 0.19
    "deepspeed.runtime.engine.DeepSpeedEngine._take_model_step": (
        lambda engine, args, result, stepped: (
            not stepped and bool(getattr(engine.optimizer, "overflow", False))
        )
    ),
    # Megatron-Core 0.16
    "megatron.core.optimizer.optimizer.MixedPrecisionOptimizer.step": _megatron,
    "megatron.core.optimizer.optimizer.ChainedOptimizer.step": _megatron,
}
"""Methods of the known scalers, and the readers of their results."""


class _Thread(threading.local):
    depth = 0  # of nested scalers
    stepped = False  # whether an optimizer has stepped within the scaler


class OptimizerSteps:
    """Hooks on optimizers and gradient scalers.

    ``ended(end, in_backward, skipped)`` is called at each step, and ``failed`` with an
    error of the observation, which does not reach the training.
    """

    def __init__(
        self,
        ended: Callable[[int, bool, Skipped], None],
        failed: Callable[[str, Exception], None],
    ) -> None:
        self._ended, self._failed = ended, failed
        self._here = _Thread()
        self._awaited = -1  # backward pass whose end is observed
        self._undo = contextlib.ExitStack()
        self.undo = self._undo.close
        self._undo.callback(register_optimizer_step_post_hook(self._stepped).remove)
        for path, read in SCALERS.items():
            module, name, method = path.rsplit(".", 2)
            kind = getattr(sys.modules.get(module), name, None)
            if isinstance(kind, type) and method in vars(kind):
                self._wrap(kind, method, read)

    @contextlib.contextmanager
    def _guard(self, what: str = "optimizer step") -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._failed(what, error)

    def _stepped(self, *_: Any) -> None:
        if self._here.depth:
            self._here.stepped = True
        else:
            self._observe(skipped=False)

    def _observe(self, *, skipped: Skipped) -> None:
        """Report a step, or await the end of the backward pass that it is within."""
        with self._guard():
            task = _task()
            if task == -1:
                self._ended(now_ns(), False, skipped)
            elif task != self._awaited:
                self._awaited = task
                engine: Any = torch.autograd.Variable._execution_engine
                engine.queue_callback(self._passed)

    def _passed(self) -> None:
        """Report the optimizer steps of a backward pass at its end."""
        with self._guard():
            # a checkpointed segment has a pass of its own within another one
            self._ended(now_ns(), _node() is not None, False)

    def _wrap(self, kind: type, method: str, read: Reader) -> None:
        """Observe the steps of a scaler's class, which its optimizers take or not."""
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
                stepped, skipped = here.stepped, None
                with self._guard("gradient scaler"):
                    skipped = read(scaler, (*args, *named.values()), result, stepped)
                if stepped or skipped:
                    self._observe(skipped=skipped or False)
            return result

        setattr(kind, method, step)
        self._undo.callback(setattr, kind, method, original)
