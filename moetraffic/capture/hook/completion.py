"""Measure completion times of collectives from the waits for their results.

The end of a wait is the time at which the result is available to the program.  Waits
are observed in Python (``Work.wait``) and for functional collectives (``wait_tensor``).
Collectives that only C++ code waits for (DDP's reducer) are found as completed works
without an observed wait: their end is their completion, which a callback reports.

On CUDA a wait orders streams and returns at once: there, an event before the call and
one after the wait are recorded on the calling stream.  The thread that writes the
records queries whether the device has completed them, and converts their distance from
a base event into host times.  The start is the time at which the stream reaches the
call, a lower bound of the start of the collective.  Nothing here waits for the
training's streams.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor

from moetraffic.trace.merge.log_format import END, RAISED
from moetraffic.trace.model import UNKNOWN_TIME

from .calls import KEY, now_ns

SWEEP = 16  # works without a wait after which completed ones are dropped
SETTLE_NS = 2_000_000_000
"""Maximum time that the end of a capture waits for callbacks of pending works."""
REBASE_NS = 5_000_000_000
"""Maximum age of the base event: the time between two events is a float32 in
milliseconds, whose resolution is 1 us up to 16 s."""

Put = Callable[[bytes], object]
pack_end = struct.Struct("5q").pack
_unbox = dist.Work.unbox


class DeviceClock:
    """Converter of CUDA event times to times of the host clock.

    It calls ``put`` with END records.  The compiled hook converts its own.
    """

    def __init__(self, put: Put, cuda: Any = torch.cuda) -> None:
        self._put, self._cuda = put, cuda
        self._calls: deque[tuple[int, Any, Any]] = deque()
        # by device: an event and its time on the host
        self._bases: dict[Any, tuple[Any, int]] = {}

    def event(self) -> Any:
        """Record an event on the current stream; None during CUDA graph capture."""
        if self._cuda.is_current_stream_capturing():
            return None  # the event would become part of the graph
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def ended(self, number: int, before: Any) -> None:
        """Record an event after the call that was preceded by the event ``before``."""
        after = self.event()
        if after is not None:
            self._calls.append((number, before, after))

    def resolve(self) -> None:
        """Report start and end times of the calls that the device has completed."""
        for _ in range(len(self._calls)):
            # a call whose device has failed is lost
            number, before, after = call = self._calls.popleft()
            if not after.query():
                self._calls.appendleft(call)
                return
            event, base_ns = self._base(after.device)
            start, end = (
                base_ns + round(event.elapsed_time(e) * 1e6) for e in (before, after)
            )
            self._put(pack_end(END, 5, number, start, end))

    def _base(self, device: Any) -> tuple[Any, int]:
        base = self._bases.get(device)
        if base is None or now_ns() - base[1] > REBASE_NS:
            with self._cuda.device(device):
                # on an idle stream the event completes at once, whatever the training
                # has queued
                event, side = self._cuda.Event(enable_timing=True), self._cuda.Stream()
                began = now_ns()
                event.record(side)
                event.synchronize()
                base = self._bases[device] = event, (began + now_ns()) // 2
        return base


class _Waiting(threading.local):
    # number and work of the last call, if the caller waits for it next; another call
    # ends it, so that a work that is never waited for is not kept
    call: tuple[int, Any] | None = None


@dataclass(slots=True, eq=False)
class LaunchedCall:
    """A call whose result has not been waited for."""

    work: Any
    number: int
    kind: int  # operation and pass: calls of one kind are waited for in the same way
    before: Any  # event before the call on a device, else None
    output: int  # data pointer, 0 for none
    completed: int = 0  # time, 0 while unknown
    unawaited: bool = False  # only C++ code waits for it: its completion is its end


class CompletionTracker:
    """Tracker of launched collectives until the program waits for their results.

    It calls ``put`` with END and RAISED records; ``native`` is the compiled hook, if it
    records the calls.
    """

    def __init__(
        self, put: Put, device: DeviceClock, native: ModuleType | None = None
    ) -> None:
        self._put, self._native = put, native
        self.device, self._ended_on = device, (native or device).ended
        self.waiting = _Waiting()
        # a work is kept until it is waited for, as the waiting code itself does
        self._launched: dict[int, LaunchedCall] = {}  # by ID of the work
        self._by_output: dict[int, int] = {}
        self._awaited: set[int] = set()  # kinds with an observed wait
        self._unawaited: set[int] = set()
        self._called_back: set[int] = set()  # numbers of calls with a pending callback

    def install(self) -> Callable[[], None]:
        """Install hooks on ``Work.wait`` and ``wait_tensor``; return the remover."""
        installed = contextlib.ExitStack()
        work_class: Any
        for work_class in (dist.Work, *dist.Work.__subclasses__()):
            if "wait" in vars(work_class):
                installed.callback(setattr, work_class, "wait", work_class.wait)
                work_class.wait = self._observed(work_class.wait)
        operator = torch.ops._c10d_functional.wait_tensor.default
        library: Any = torch.library.Library("_c10d_functional", "IMPL")  # type: ignore[no-untyped-call]
        installed.callback(library._destroy)
        kernel = self._wait_tensor(operator._handle.redispatch_boxed)
        library.impl("wait_tensor", kernel, KEY, with_keyset=True)
        return installed.close

    def raised(self, number: int) -> None:
        """Report a call that raised an exception: nothing was sent."""
        self._put(struct.pack("3q", RAISED, 3, number))

    def launched(
        self, number: int, result: Any, output: Any, kind: int, before: Any
    ) -> None:
        """Track a launched collective until its result is waited for.

        ``result`` is the return value of the c10d operator or its work, ``output`` a
        tensor that it fills or None; see :class:`LaunchedCall` for the others.
        """
        self.waiting.call = None
        if result is None:  # it has completed, or is on the current stream
            if before is not None:
                self._ended_on(number, before)
            return
        if not isinstance(work := result, dist.Work):
            work = _unbox(result[-1] if type(result) is tuple else result)
        pointer = 0 if output is None else output.data_ptr()
        call = LaunchedCall(work, number, kind, before, pointer)
        call.unawaited = kind in self._unawaited
        # a callback on a device's work may touch a stream whose graph is being captured
        new = kind not in self._awaited and output is not None and output.is_cpu
        if before is None and (call.unawaited or new):
            future = _future(work)
            if future is not None:
                self._called_back.add(number)
                future.add_done_callback(lambda _: self._completed(call))
            if call.unawaited:
                call.work = None  # which the future would keep
                return
        if pointer:
            self._by_output[pointer] = id(work)
        self._launched[id(work)] = call
        if len(self._launched) >= SWEEP:
            self._sweep()

    def settle(self) -> None:
        """Wait for pending callbacks: at the end of the interpreter they abort.

        A thread of the backend that takes the interpreter's lock then is ended within
        C++, which terminates the process.
        """
        until = now_ns() + SETTLE_NS
        while self._called_back and now_ns() < until:
            time.sleep(0.001)
        for call in self._launched.values():
            self._drop(call)
        self._launched.clear()
        self._by_output.clear()

    def _end(self, number: int, end: int) -> None:
        self._put(pack_end(END, 5, number, UNKNOWN_TIME, end))

    def _observed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        launched, waiting, put = self._launched, self.waiting, self._put

        def awaited(work: Any, raised: bool) -> None:
            if raised and not work.is_completed():
                return  # it may be waited for again
            call = launched.pop(id(work), None)
            if call is not None:
                self._ended(call, raised=raised)

        if self._native is not None:
            compiled: Callable[..., Any] = self._native.wait(original, awaited)
            return compiled

        # most waits have no argument; they need neither empty arguments nor the method
        # object that pybind11 puts around the function
        bare = getattr(original, "__func__", original)

        def wait(work: Any, *args: Any, **named: Any) -> Any:
            raised = True
            try:
                given = args or named
                result = original(work, *args, **named) if given else bare(work)
                raised = False
            finally:
                call = waiting.call
                if call is None or call[1] is not work:
                    awaited(work, raised)
                elif not raised:
                    waiting.call = None
                    put(pack_end(END, 5, call[0], UNKNOWN_TIME, now_ns()))
                elif work.is_completed():
                    waiting.call = None
                    self.raised(call[0])
            return result

        return wait

    def _wait_tensor(self, redispatch: Callable[..., Any]) -> Callable[..., Any]:
        after = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, KEY))

        def kernel(keyset: Any, tensor: torch.Tensor) -> Any:
            raised = True
            try:
                result = redispatch(keyset & after, tensor)
                raised = False
            finally:
                if not isinstance(tensor, FakeTensor):
                    work = self._by_output.get(tensor.data_ptr(), 0)
                    call = self._launched.pop(work, None)
                    if call is not None:
                        self._ended(call, raised=raised)
            return result

        return kernel

    def _ended(self, call: LaunchedCall, *, raised: bool = False) -> None:
        """Report the end of a call whose result was waited for."""
        self._by_output.pop(call.output, None)
        if raised:
            self.raised(call.number)
        elif call.before is None:
            self._awaited.add(call.kind)
            self._end(call.number, now_ns())
        else:
            self._ended_on(call.number, call.before)

    def _completed(self, call: LaunchedCall) -> None:
        call.completed = now_ns()
        if call.unawaited:
            self._end(call.number, call.completed)
        self._called_back.discard(call.number)

    def _drop(self, call: LaunchedCall) -> None:
        """Report the completion of a call as its end, now or when it completes."""
        call.unawaited, call.work = True, None
        if call.completed:
            self._end(call.number, call.completed)

    def _sweep(self) -> None:
        """Drop launched calls that have completed without an observed wait."""
        for key, call in list(self._launched.items()):
            completed = call.before is None and call.work.is_completed()
            if completed:
                self._unawaited.add(call.kind)
            # also drop old works, so that tracking does not keep their tensors alive
            if completed or len(self._launched) > SWEEP // 2:
                self._launched.pop(key, None)
                self._by_output.pop(call.output, None)
                self._drop(call)


def _future(work: Any) -> Any:
    """Return the future of a work; None: sends and receives of gloo have none."""
    try:
        return work.get_future()
    except RuntimeError:  # "not implemented", of torch's base class
        return None
