"""Record all-to-alls in the process group's method, without entering the dispatcher.

Torch takes most of the overhead of a hook in Python for entering and leaving a kernel
of the dispatcher that is written in Python.  The method calls the backend itself, as
torch's kernel for the device does, where nothing comes between the two: for dense
tensors on a CPU or CUDA device whose gradients are not recorded, outside of dispatch
modes, transforms, profilers and compilers, and without kernels of other libraries.  All
other calls go to the operator, whose kernel in :mod:`.python` records them: each call
is recorded once.
"""

from __future__ import annotations

import ctypes
import re
import sys
from array import array
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C import DispatchKey, DispatchKeySet

from .call_recording import EXCHANGE, KEY, OPERATOR, CallSink, GroupNames, recording

METHODS = "all_to_all_single", "alltoall_base"
"""Names of the method that ``torch.distributed`` calls, newest first."""
DEVICES = "CPU", "CUDA"
IRRELEVANT = {"Meta", "XPU", "HPU", "MPS", "PrivateUse1"}  # keys of other devices
HAS_CALLBACKS = "_ZN2at12hasCallbacksEv"
"""Symbol of ``at::hasCallbacks()``: profilers and observers that see operators."""
_REGISTERED = re.compile(r"^(?!debug)([\w ()]+): registered at (\S+)", re.MULTILINE)
_grad = torch.is_grad_enabled
_task = torch._C._current_graph_task_id
_raw: Any = getattr(DispatchKeySet, "raw_repr", None)  # torch 2.4 has none
_keys, _included = torch._C._dispatch_keys, torch._C._dispatch_tls_local_include_set


def install(sink: CallSink, names: GroupNames) -> Callable[[], None]:
    """Replace the process group's method; return the function that restores it.

    Nothing is replaced where this release of torch lacks what the method relies on.
    """
    try:
        has_callbacks = ctypes.PyDLL(torch._C.__file__)[HAS_CALLBACKS]
        in_flight = torch._C._distributed_c10d._allow_inflight_collective_as_graph_input
    except (AttributeError, OSError):
        return lambda: None
    if _raw is None:
        return lambda: None
    has_callbacks.restype = ctypes.c_bool
    methods: Any = vars(dist.ProcessGroup)
    name = next(name for name in METHODS if name in methods)
    original = methods[name]
    method = _method(original, sink, names, _Route(has_callbacks, in_flight))
    # pybind11 recognizes a call from a method that overrides its own by this name
    method.__code__ = method.__code__.replace(co_name=name)
    method.__name__ = name
    setattr(dist.ProcessGroup, name, method)
    return lambda: setattr(dist.ProcessGroup, name, original)


class _Route:
    """Choice of the calls that may go to the backend directly."""

    def __init__(
        self, has_callbacks: Callable[[], bool], in_flight: Callable[[], bool]
    ) -> None:
        self._has_callbacks, self._in_flight = has_callbacks, in_flight
        self._usual = _raw(_set(KEY) | _set("ADInplaceOrView"))
        self._plain = {
            _raw(
                _set(device)
                | _set("ADInplaceOrView")
                | _set(f"Autograd{device}")
                | _set(f"Autocast{device}")
            )
            for device in DEVICES
        }
        self._loaded: tuple[int, int, int] | None = None
        self._own = False

    def backend(
        self, group: dist.ProcessGroup, output: Any, tensor: Any, options: Any
    ) -> Any:
        """Return the backend of a call, None if it must go to the operator."""
        if (
            type(group) is not dist.ProcessGroup
            or type(output) is not torch.Tensor
            or type(tensor) is not torch.Tensor
            or type(options) is not dist.AllToAllOptions
        ):
            return None
        keys = _raw(_keys(output))
        if keys not in self._plain or keys != _raw(_keys(tensor)):
            return None  # negated, sparse, functional, meta ...
        if _raw(_included()) != self._usual or self._has_callbacks():
            return None  # a mode, a transform or a tracer; a profiler
        if self._in_flight():
            return None  # torch.compile follows the work
        if _grad() and (tensor.requires_grad or output.requires_grad):
            return None  # autograd warns of a missing formula
        loaded = (
            len(sys.modules),
            len(torch.library._impls),
            len(torch.ops.loaded_libraries),
        )
        if loaded != self._loaded:
            self._loaded, self._own = loaded, _only_own_kernels()
        return group._get_backend(output.device) if self._own else None


def _set(key: str) -> DispatchKeySet:
    return DispatchKeySet(getattr(DispatchKey, key))


def _only_own_kernels() -> bool:
    """Return whether all kernels of the operator are torch's and the recorder's."""
    kernels = _REGISTERED.findall(torch._C._dispatch_dump(f"c10d::{OPERATOR}"))
    others = [
        key
        for key, source in kernels
        if key not in IRRELEVANT
        and not (key in DEVICES and "torch/csrc/distributed/c10d/Ops.cpp" in source)
    ]
    return others == [KEY]


def _method(
    original: Any, sink: CallSink, names: GroupNames, route: _Route
) -> Callable[..., Any]:
    call = original.__get__(None, dist.ProcessGroup)
    record, waiting = recording(sink, names), sink.waiting

    def method(self: Any, *given: Any, **named: Any) -> Any:
        if named or len(given) != 5:
            return call(self, *given, **named)
        output, tensor, received, sent, options = given
        try:
            backend = route.backend(self, output, tensor, options)
            # copies, because the program may change its lists before they are encoded
            splits = array("q", sent), array("q", received)
        except Exception:
            backend = None  # the operator raises the error that there is
        if backend is None:
            return call(self, *given)
        number, event = -1, None
        try:
            described = -1, -1, 0, tensor.shape, output.shape, *splits
            number = record(self, EXCHANGE, tensor.dtype, described)
            if output.is_cuda:
                event = sink.before(output)
        except Exception as error:
            # no error of the recording may reach the training
            number = -1
            sink.failed(OPERATOR, error)
        work = backend.alltoall_base(*given)
        if number < 0:
            return work
        try:
            if event is None and not options.asyncOp:
                waiting.call = number, work  # synchronous: the caller waits next
            else:
                kind = 2 * EXCHANGE + (_task() != -1)
                sink.launched(number, work, output, kind, event)
        except Exception as error:
            sink.failed(OPERATOR, error)
        return work

    return method
