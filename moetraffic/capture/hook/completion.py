"""Measure completion times of collectives from the waits for their results.

The end of a wait is the time at which the result is available to the program.  Waits
are observed in Python (``Work.wait``) and for functional collectives (``wait_tensor``).
Collectives that only C++ code waits for (DDP's reducer) are found as completed works
without an observed wait; later calls of the same kind report completion by a callback.
On CUDA a wait orders streams and returns at once: there, events before the call and
after the wait are read once the device has completed them (:mod:`.device_clock`).
Nothing here synchronizes with a device.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor

from moetraffic.capture.pipe_format import END
from moetraffic.trace.model import UNKNOWN_TIME

from .device_clock import DeviceClock
from .python import KEY, SynchronousCall, now_ns

Entry = tuple[Any, int, int, Any, int]  # work, number, kind, event before, output
SWEEP = 16  # works without a wait after which completed ones are dropped
_unbox = dist.Work.unbox
Put = Callable[[tuple[Any, ...]], None]


class CompletionTracker:
    """Tracker of launched collectives until the program waits for their results.

    Parameters
    ----------
    put
        Called with ``(END, number, start, end)``, times in ns.
    device
        Converter of CUDA events to host times.
    native
        The compiled hook, if it records the calls.
    """

    def __init__(
        self, put: Put, device: DeviceClock, native: ModuleType | None = None
    ) -> None:
        self._put, self._device, self._native = put, device, native
        self.waiting = SynchronousCall()
        # a work is kept until it is waited for, as the waiting code itself does
        self._works: dict[int, Entry] = {}
        self._by_output: dict[int, int] = {}
        self._unawaited: set[int] = set()
        self._library: torch.library.Library | None = None
        self._waits: list[tuple[Any, Any]] = []

    def install(self) -> Callable[[], None]:
        """Install hooks on ``Work.wait`` and ``wait_tensor``; return the remover."""
        kinds: list[Any] = [dist.Work, *dist.Work.__subclasses__()]
        for kind in kinds:
            if "wait" in vars(kind):
                self._waits.append((kind, kind.wait))
                kind.wait = self._watched(kind.wait)
        operator = getattr(torch.ops._c10d_functional, "wait_tensor", None)
        if operator is not None:
            self._library = torch.library.Library(  # type: ignore[no-untyped-call]
                "_c10d_functional", "IMPL"
            )
            self._library.impl(  # type: ignore[no-untyped-call]
                "wait_tensor",
                self._waiter(operator.default._handle.redispatch_boxed),
                KEY,
                with_keyset=True,
            )
        return self.uninstall

    def uninstall(self) -> None:
        """Remove the hooks on ``Work.wait`` and ``wait_tensor``."""
        for kind, wait in self._waits:
            kind.wait = wait
        self._waits.clear()
        if self._library is not None:
            self._library._destroy()  # type: ignore[no-untyped-call]
            self._library = None
        self._works.clear()
        self._by_output.clear()

    def launched(
        self,
        number: int,
        result: Any,
        tensor: torch.Tensor | None,
        kind: int,
        before: Any,
    ) -> None:
        """Track a launched collective until its result is waited for.

        Parameters
        ----------
        number
            Number of the call.
        result
            Return value of the c10d operator.
        tensor
            An output tensor of the call.
        kind
            Operation and pass; calls of one kind are waited for in the same way.
        before
            The device event before the call, if any.
        """
        self.waiting.number = None
        if result is None:
            return  # an operator that returns no work has completed
        work = _unbox(result[-1] if type(result) is tuple else result)
        if kind in self._unawaited and before is None:
            work.get_future().add_done_callback(
                lambda _: self._put((END, number, UNKNOWN_TIME, now_ns()))
            )
            return
        output = 0
        if tensor is not None:
            output = tensor.data_ptr()
            self._by_output[output] = id(work)
        self._works[id(work)] = (work, number, kind, before, output)
        if len(self._works) >= SWEEP:
            self._sweep()

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        works, ended = self._works, self._ended
        waiting, put, native = self.waiting, self._put, self._native

        def wait(work: Any, *args: Any, **named: Any) -> Any:
            result = original(work, *args, **named)
            if native is not None and native.waited():
                return result
            number = waiting.number
            if number is not None:
                waiting.number = None
                put((END, number, UNKNOWN_TIME, now_ns()))
            else:
                entry = works.pop(id(work), None)
                if entry is not None:
                    ended(entry)
            return result

        return wait

    def _sweep(self) -> None:
        """Drop tracked works that have completed without an observed wait."""
        waiting = list(self._works.items())
        for key, (work, _, kind, before, output) in waiting:
            done = before is None and work.is_completed()
            if done:
                self._unawaited.add(kind)
            # also drop old works, so that tracking does not keep their tensors alive
            if done or len(self._works) > SWEEP // 2:
                self._works.pop(key, None)
                self._by_output.pop(output, None)

    def _ended(self, entry: Entry) -> None:
        _, number, _, before, output = entry
        self._by_output.pop(output, None)
        if before is None:
            self._put((END, number, UNKNOWN_TIME, now_ns()))
        else:
            self._device.ended(number, before)

    def _waiter(self, redispatch: Callable[..., Any]) -> Callable[..., Any]:
        after = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, KEY))

        def kernel(keyset: Any, tensor: torch.Tensor) -> Any:
            result = redispatch(keyset & after, tensor)
            if not isinstance(tensor, FakeTensor):
                key = self._by_output.get(tensor.data_ptr(), 0)
                entry = self._works.pop(key, None)
                if entry is not None:
                    self._ended(entry)
            return result

        return kernel
