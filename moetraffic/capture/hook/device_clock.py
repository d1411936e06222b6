"""Device times of collectives from CUDA events, without synchronization.

A CUDA event before the call and one after the wait are recorded on the stream that
calls; a thread beside the training asks whether the device has passed them, and turns
what lies between them and a base event into times of the host's clock.  The start is
when the stream came to the call, so a collective cannot have begun before; the end is
when the stream could go on with the result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from moetraffic.capture.pipe_format import END

from .python import now_ns

REBASE_NS = 5_000_000_000
"""A base event's age: the time between events is a float32 of milliseconds, whose
resolution is 1 us up to 16 s."""


class DeviceClock:
    """Converts CUDA events to host times.

    Parameters
    ----------
    put
        Takes ``(END, number, start, end)`` with times in ns of the host's clock.
    cuda
        ``torch.cuda``, or what behaves like it.
    """

    def __init__(
        self, put: Callable[[tuple[Any, ...]], None], cuda: Any = torch.cuda
    ) -> None:
        self._put, self._cuda = put, cuda
        self._waiting: deque[tuple[int, Any, Any]] = deque()
        self._base: tuple[Any, int] | None = None
        self._side: Any = None
        self.error_ns = 0  # of the base event's time, at most

    def before(self) -> Any:
        """An event on the current stream, or None inside a capture of a CUDA graph."""
        return self._event()

    def ahead_of(self, tensor: torch.Tensor | None) -> Any:
        """Record an event before a call, if its output is on a device."""
        return None if tensor is None or not tensor.is_cuda else self.before()

    def ended(self, number: int, before: Any) -> None:
        """Record the end of a call that began after ``before``."""
        after = self._event()
        if after is not None:
            self._waiting.append((number, before, after))

    def resolve(self) -> None:
        """Report the calls that the device has completed."""
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

    def _event(self) -> Any:
        if self._cuda.is_current_stream_capturing():
            return None  # it would become a part of the graph
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def _rebase(self) -> None:
        # on an idle stream of its own the event passes at once, whatever the training's
        # streams have before them
        if self._side is None:
            self._side = self._cuda.Stream()
        event = self._cuda.Event(enable_timing=True)
        began = now_ns()
        event.record(self._side)
        event.synchronize()
        done = now_ns()
        self._base = (event, (began + done) // 2)
        self.error_ns = max(self.error_ns, (done - began + 1) // 2)
