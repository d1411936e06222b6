"""Measure device times of collectives with CUDA events, without synchronization.

A CUDA event before the call and one after the wait are recorded on the calling stream.
A background thread queries whether the device has completed them, and converts their
distance from a base event into host times.  The start is the time at which the stream
reaches the call, a lower bound of the start of the collective; the end is the time at
which the stream can continue with the result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from moetraffic.capture.pipe_format import END

from .python import now_ns

REBASE_NS = 5_000_000_000
"""Maximum age of the base event: the time between two events is a float32 in
milliseconds, whose resolution is 1 us up to 16 s."""


class DeviceClock:
    """Converter of CUDA event times to times of the host clock.

    Parameters
    ----------
    put
        Called with ``(END, number, start, end)``, times in ns of the host clock.
    cuda
        ``torch.cuda``, or an object with the same interface.
    """

    def __init__(
        self, put: Callable[[tuple[Any, ...]], None], cuda: Any = torch.cuda
    ) -> None:
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
