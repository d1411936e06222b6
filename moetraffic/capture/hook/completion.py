"""Completion times of collectives, from the waits for their results.

A wait is the moment at which the program has the result.  It is seen where Python
waits (``Work.wait``) and where a functional collective's result is waited for
(``wait_tensor``).  What is waited for in C++ alone (DDP's reducer) is found by its
being complete and unawaited; the calls of its kind after it tell of their end
themselves.  On CUDA a wait orders streams and returns at once: there, events before
the call and after the wait are read when the device has passed them
(:mod:`.device_clock`).  Nothing here synchronizes with a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor

from moetraffic.capture.pipe_format import END
from moetraffic.trace.model import UNKNOWN_TIME

from .device_clock import DeviceClock
from .python import KEY, SynchronousCall, now_ns

if TYPE_CHECKING:
    from .native import Native

Entry = tuple[Any, int, int, Any, int]  # work, number, kind, event before, output
SWEEP = 16  # works that nobody waited for yet, before a look at which are done
_unbox = dist.Work.unbox
Put = Callable[[tuple[Any, ...]], None]


class CompletionTracker:
    """Tracks collectives until their results are waited for.

    Parameters
    ----------
    put
        Takes ``(END, number, start, end)`` with times in ns.
    device
        The clock of CUDA events.
    native
        The compiled hook, if it is the one that notes calls.
    """

    def __init__(
        self, put: Put, device: DeviceClock, native: Native | None = None
    ) -> None:
        self._put, self._device, self._native = put, device, native
        self.waiting = SynchronousCall()
        # a work is held until it is waited for: so is it by whoever waits
        self._works: dict[int, Entry] = {}
        self._by_output: dict[int, int] = {}
        self._unawaited: set[int] = set()
        self._library: torch.library.Library | None = None
        self._waits: list[tuple[Any, Any]] = []

    def install(self) -> Callable[[], None]:
        """Install the hooks on waits; return the function that removes them."""
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
        """Remove the hooks."""
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
        """Track a call that was launched.

        Parameters
        ----------
        number
            Of the call.
        result
            What its operator returned.
        tensor
            An output of it.
        kind
            Calls of one kind are waited for alike.
        before
            The device's event before the call, if there is one.
        """
        self.waiting.number = None
        if result is None:
            return  # an operator without a work is done
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
        """Drop completed works that Python code has not waited for."""
        waiting = list(self._works.items())
        for key, (work, _, kind, before, output) in waiting:
            done = before is None and work.is_completed()
            if done:
                self._unawaited.add(kind)
            # one that is waited for so late holds its tensors no longer for our sake
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
