"""Thread that records the end of operations that the program does not wait for."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from moetraffic.replay.backends.backend import Work

MAX_IN_FLIGHT = 1024
"""Largest number of operations in flight; issuing more blocks."""


class CompletionThread:
    """Thread that waits for operations in issue order and records their ends.

    The recorded end of an operation is the moment when it and all operations issued
    before it have ended.

    Parameters
    ----------
    ended
        Called with the number of an operation that ended and ``time.monotonic_ns()``.
    failed
        Called with the number and the error of an operation that failed.
    """

    def __init__(
        self,
        ended: Callable[[int, int], None],
        failed: Callable[[int, RuntimeError], None],
    ) -> None:
        self._ended = ended
        self._failed = failed
        self._works: queue.Queue[tuple[int, Work | None] | None] = queue.Queue(
            MAX_IN_FLIGHT
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait_for(self, n: int, work: Work | None) -> None:
        """Add an operation to those that the thread waits for."""
        self._works.put((n, work))

    def drain(self) -> None:
        """Wait until all operations added so far have ended or failed."""
        self._works.join()

    def stop(self) -> None:
        """End the thread after the operations added so far."""
        self._works.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._works.get()) is not None:
            n, work = item
            try:
                if work is not None:
                    work.wait()
                self._ended(n, time.monotonic_ns())
            except RuntimeError as error:
                self._failed(n, error)
            finally:
                self._works.task_done()
