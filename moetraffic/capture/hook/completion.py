"""Measure completion times of collectives from the waits for their results.

The end of a wait is the time at which the result is available to the program.  Waits
are observed in Python (``Work.wait``) and for functional collectives (``wait_tensor``).
Collectives that only C++ code waits for (DDP's reducer) are found as completed works
without an observed wait.  Their end is their completion, which a callback reports, of
the first calls of a kind as well: these keep it until it is known who waits.
On CUDA a wait orders streams and returns at once: there, an event before the call and
one after the wait are recorded on the calling stream.  A background thread queries
whether the device has completed them, and converts their distance from a base event
into host times.  The start is the time at which the stream reaches the call, a lower
bound of the start of the collective; the end is the time at which the stream can
continue with the result.  Nothing here synchronizes with the training's streams.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor

from moetraffic.capture.record_format import END
from moetraffic.trace.model import UNKNOWN_TIME

from .call_recording import KEY, SynchronousCall, now_ns

Entry = tuple[Any, int, int, Any, int]  # work, number, kind, event before, output
SWEEP = 16  # works without a wait after which completed ones are dropped
_unbox = dist.Work.unbox
Put = Callable[[tuple[Any, ...]], None]


REBASE_NS = 5_000_000_000
"""Maximum age of the base event: the time between two events is a float32 in
milliseconds, whose resolution is 1 us up to 16 s."""


class DeviceClock:
    """Converter of CUDA event times to times of the host clock.

    It calls ``put`` with ``(END, number, start, end)``, times in ns of the host clock.
    """

    def __init__(self, put: Put, cuda: Any = torch.cuda) -> None:
        self._put, self._cuda = put, cuda
        self._waiting: deque[tuple[int, Any, Any]] = deque()
        self._base: tuple[Any, int] | None = None
        self._side: Any = None
        self.error_ns = 0  # maximum error of the base event's time

    def before(self) -> Any:
        """Record an event on the current stream; None during CUDA graph capture."""
        if self._cuda.is_current_stream_capturing():
            return None  # the event would become part of the graph
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def ahead_of(self, tensor: torch.Tensor | None) -> Any:
        """Record an event before a call if the tensor is on a CUDA device."""
        return None if tensor is None or not tensor.is_cuda else self.before()

    def ended(self, number: int, before: Any) -> None:
        """Record an event after the call that was preceded by the event ``before``."""
        after = self.before()
        if after is not None:
            self._waiting.append((number, before, after))

    def resolve(self) -> None:
        """Report start and end times of the calls that the device has completed."""
        if not self._waiting:
            return
        if self._base is None or now_ns() - self._base[1] > REBASE_NS:
            self._rebase()
        assert self._base is not None
        event, at = self._base
        while self._waiting and self._waiting[0][2].query():
            number, before, after = self._waiting.popleft()
            start, end = (
                at + round(event.elapsed_time(e) * 1e6) for e in (before, after)
            )
            self._put((END, number, start, end))

    def _rebase(self) -> None:
        # on a separate idle stream the event completes at once, regardless of the work
        # queued on the training's streams
        if self._side is None:
            self._side = self._cuda.Stream()
        event = self._cuda.Event(enable_timing=True)
        began = now_ns()
        event.record(self._side)
        event.synchronize()
        done = now_ns()
        self._base = (event, (began + done) // 2)
        self.error_ns = max(self.error_ns, (done - began + 1) // 2)


SETTLE_NS = 2_000_000_000
"""Maximum time that the end of a capture waits for callbacks of pending works."""


def _future(work: Any) -> Any:
    """Return the future of a work; None: sends and receives of gloo have none."""
    try:
        return work.get_future()
    except RuntimeError:  # "not implemented", of torch's base class
        return None


class CompletionTracker:
    """Tracker of launched collectives until the program waits for their results.

    It calls ``put`` with ``(END, number, start, end)``, times in ns; ``native`` is the
    compiled hook, if it records the calls.
    """

    def __init__(
        self, put: Put, device: DeviceClock, native: ModuleType | None = None
    ) -> None:
        self._put, self._device, self._native = put, device, native
        self.waiting = SynchronousCall()
        # a work is kept until it is waited for, as the waiting code itself does
        self._works: dict[int, Entry] = {}
        self._by_output: dict[int, int] = {}
        self._awaited: set[int] = set()  # kinds with an observed wait
        self._unawaited: set[int] = set()
        self._called_back: set[int] = set()  # numbers of calls with a pending callback
        # completion of each call of a kind that is not known yet; 0: not completed
        self._completion: dict[int, int] = {}

    def install(self) -> Callable[[], None]:
        """Install hooks on ``Work.wait`` and ``wait_tensor``; return the remover."""
        installed = contextlib.ExitStack()
        installed.callback(self._works.clear)
        installed.callback(self._by_output.clear)
        kinds: list[Any] = [dist.Work, *dist.Work.__subclasses__()]
        for kind in kinds:
            if "wait" in vars(kind):
                installed.callback(setattr, kind, "wait", kind.wait)
                kind.wait = self._watched(kind.wait)
        operator = torch.ops._c10d_functional.wait_tensor.default
        library: Any = torch.library.Library("_c10d_functional", "IMPL")  # type: ignore[no-untyped-call]
        installed.callback(library._destroy)
        kernel = self._waiter(operator._handle.redispatch_boxed)
        library.impl("wait_tensor", kernel, KEY, with_keyset=True)
        return installed.close

    def launched(
        self,
        number: int,
        result: Any,
        tensor: torch.Tensor | None,
        kind: int,
        before: Any,
    ) -> None:
        """Track a launched collective until its result is waited for.

        ``result`` is the return value of the c10d operator or its work, ``tensor`` an
        output, ``before`` the device event before the call, if any.  Calls of one kind
        (operation and pass) are waited for in the same way.
        """
        self.waiting.call = None
        if result is None:
            return  # an operator that returns no work has completed
        work = result
        if not isinstance(work, dist.Work):
            work = _unbox(result[-1] if type(result) is tuple else result)
        unawaited = kind in self._unawaited
        # a callback on a device's work may touch a stream whose graph is being captured
        new = kind not in self._awaited and tensor is not None and tensor.is_cpu
        if before is None and (unawaited or new):
            future = _future(work)
            if future is not None:
                if not unawaited:
                    self._completion[number] = 0
                self._called_back.add(number)
                future.add_done_callback(lambda _: self._completed(number, kind))
            if unawaited:
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
        waiting, put = self.waiting, self._put

        def awaited(work: Any) -> None:
            entry = works.pop(id(work), None)
            if entry is not None:
                ended(entry)

        if self._native is not None:
            compiled: Callable[..., Any] = self._native.wait(original, awaited)
            return compiled

        # most waits have no argument; they need neither empty arguments nor the method
        # object that pybind11 puts around the function
        bare = getattr(original, "__func__", original)

        def wait(work: Any, *args: Any, **named: Any) -> Any:
            given = args or named
            result = original(work, *args, **named) if given else bare(work)
            call = waiting.call
            if call is not None and call[1] is work:
                waiting.call = None
                put((END, call[0], UNKNOWN_TIME, now_ns()))
            else:
                awaited(work)
            return result

        return wait

    def _completed(self, number: int, kind: int) -> None:
        at = now_ns()
        if number in self._completion and kind not in self._unawaited:
            self._completion[number] = at
        else:
            self._completion.pop(number, None)
            self._put((END, number, UNKNOWN_TIME, at))
        self._called_back.discard(number)

    def _unwaited(self, number: int) -> None:
        """Report the completion of a call as its end, if it has a known one."""
        if at := self._completion.pop(number, 0):
            self._put((END, number, UNKNOWN_TIME, at))

    def settle(self) -> None:
        """Wait for pending callbacks: at the end of the interpreter they abort.

        A thread of the backend that takes the interpreter's lock then is ended within
        C++, which terminates the process.
        """
        until = now_ns() + SETTLE_NS
        while self._called_back and now_ns() < until:
            time.sleep(0.001)
        for number in list(self._completion):
            self._unwaited(number)

    def _sweep(self) -> None:
        """Drop tracked works that have completed without an observed wait."""
        waiting = list(self._works.items())
        for key, (work, number, kind, before, output) in waiting:
            done = before is None and work.is_completed()
            if done:
                self._unawaited.add(kind)
                self._unwaited(number)
            # also drop old works, so that tracking does not keep their tensors alive
            if done or len(self._works) > SWEEP // 2:
                self._works.pop(key, None)
                self._by_output.pop(output, None)

    def _ended(self, entry: Entry) -> None:
        _, number, kind, before, output = entry
        self._by_output.pop(output, None)
        if before is None:
            self._awaited.add(kind)
            self._completion.pop(number, None)
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
