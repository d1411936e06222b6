"""Watchdog thread of a rank without a supervisor: deadlines and SIGTERM.

Under torchrun, srun or a batch system no process of moetraffic monitors a rank.  A
blocking call of another library may ignore its own timeout (a TCPStore waits forever if
another program uses its port), and Python's signal handlers do not run in it.  A thread
handles both: it checks the rank's heartbeats, and receives signals in a pipe.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable

from . import heartbeat

EXPIRED = 2
"""Exit code of a rank that missed a deadline."""
_LOOK_S = 0.5


class Watchdog:
    """Thread that ends this process if it misses a deadline or receives SIGTERM.

    The longest time to the "ready" heartbeat is ``start_s``, between later ones
    ``operation_s`` unless a longer one is announced.  After a signal the process has
    ``grace_s`` to end by itself.
    """

    def __init__(
        self, rank: int, *, start_s: float, operation_s: float, grace_s: float
    ) -> None:
        self._rank = rank
        self._start_s, self._operation_s = start_s, operation_s
        self._grace_s = grace_s
        self._ready = False
        self._done = threading.Event()
        self._began_s = self._moved_s = time.monotonic()
        self._pulse = heartbeat.latest()
        self._signals, self._wakeup = os.pipe()
        self.namer: Callable[[int], str] | None = None  # of the n-th operation
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Start the thread; signals are handled only if this is the main thread."""
        os.set_blocking(self._wakeup, False)
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
            # no action here: the wake-up pipe notifies the thread at once
            signal.signal(signal.SIGTERM, lambda number, frame: None)
        self._thread.start()

    def extend_start(self, longer_s: float) -> None:
        """Give this process more time until its "ready" heartbeat."""
        self._start_s += longer_s

    def stop(self) -> None:
        """Stop the watchdog and restore default signal handling."""
        self._done.set()
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _watch(self) -> None:
        end_s, number = float("inf"), 0
        while not self._done.is_set():
            if select.select([self._signals], [], [], _LOOK_S)[0]:
                number = os.read(self._signals, 64)[-1]
                end_s = min(end_s, time.monotonic() + self._grace_s)
            now_s = time.monotonic()
            late = self._late(now_s)
            if self._done.is_set():
                return
            if late:
                self._end(late, EXPIRED)
            if now_s >= end_s:
                name = signal.Signals(number).name
                self._end(f"was asked to end by {name}", 128 + number)

    def _late(self, now_s: float) -> str:
        """Describe the deadline that this process has missed; "" if none."""
        pulse = heartbeat.latest()
        if pulse != self._pulse:
            self._pulse, self._moved_s = pulse, now_s
            self._ready |= pulse.event not in ("", "start", "error")
        if not self._ready:
            if now_s - self._began_s > self._start_s:
                return f"was not ready within {self._start_s:g} s of its start"
            return ""
        longest_s = max(self._operation_s, pulse.within_s)
        if now_s - self._moved_s > longest_s:
            return f"did not go on for {longest_s:g} s"
        return ""

    def _end(self, why: str, code: int) -> None:
        pulse = self._pulse
        name = pulse.operation
        if self.namer is not None and self._ready and not name:
            name = self.namer(pulse.counted // 2)
        place = f" at {name}" if name else ""
        with contextlib.suppress(OSError):  # stderr may be closed
            print(
                f"moetraffic: rank {self._rank}{place} {why}: look at this rank's "
                "host, or raise the timeout",
                file=sys.stderr,
                flush=True,
            )
        os._exit(code)
