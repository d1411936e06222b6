"""Waits for operations that nobody else waits for, and notes when they ended."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from moetraffic.replay.backends.backend import Work

MOST_IN_FLIGHT = 1024
"""Operations that nobody has waited for yet; who issues more has to wait."""


class CompletionThread:
    """A thread that waits for works in the order in which they come.

    An end is so when it and all before it have ended.

    Parameters
    ----------
    ended
        Called with the number and ``time.monotonic_ns()`` of what ended.
    failed
        Called with the number and error of what failed.
    """

    def __init__(
        self,
        ended: Callable[[int, int], None],
        failed: Callable[[int, RuntimeError], None],
    ) -> None:
        self._ended = ended
        self._failed = failed
        self._works: queue.Queue[tuple[int, Work | None] | None] = queue.Queue(
            MOST_IN_FLIGHT
        )
        self._thread = threading.Thread(target=self._reap, daemon=True)
        self._thread.start()

    def take(self, n: int, work: Work | None) -> None:
        """Wait for this one, too."""
        self._works.put((n, work))

    def drain(self) -> None:
        """Return when all that were taken have ended, or failed."""
        self._works.join()

    def stop(self) -> None:
        """End the thread after what it has."""
        self._works.put(None)
        self._thread.join()

    def _reap(self) -> None:
        while (taken := self._works.get()) is not None:
            n, work = taken
            try:
                if work is not None:
                    work.wait()
                self._ended(n, time.monotonic_ns())
            except RuntimeError as error:
                self._failed(n, error)
            finally:
                self._works.task_done()
