"""Thread that appends encoded records to the record log of a rank."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from moetraffic.files import remedy

from .record_log import Chunk, LogWriter

RETRY_S = 0.25  # interval between attempts to append a chunk
LAST_S = 1.0  # time in which the last chunks must be appended


class LogAppender:
    """Thread that appends chunks to a log, so that others do not wait for the disk.

    A chunk that cannot be appended is tried again; later ones wait in memory.
    ``appended`` is called with the number of bytes after they have been appended,
    ``report`` with the reason when appending fails, or a waiting thread gives up.
    """

    def __init__(
        self,
        log: LogWriter,
        appended: Callable[[int], None],
        report: Callable[[str], None],
    ) -> None:
        self.log = log
        self.backlog = 0  # bytes that are not in the log
        self.steps = 0  # ended steps whose records are in the log
        self.request = 0  # last completed request to flush
        self._appended, self._report = appended, report
        self._chunks: SimpleQueue[Chunk | None] = SimpleQueue()
        self._progress = threading.Condition()
        self._moved = time.monotonic()
        self._failing = self._stalled = self._lost = False
        self._deadline = float("inf")
        self._thread = threading.Thread(
            target=self._run, name="moetraffic-log", daemon=True
        )
        self._thread.start()

    def append(self, chunk: Chunk) -> None:
        """Queue a chunk."""
        with self._progress:
            self.backlog += len(chunk.data)
        self._chunks.put(chunk)

    def wait(self, condition: Callable[[], bool], patience_s: float) -> bool:
        """Wait for a condition as long as there is progress; return whether it is met.

        A wait ends without success if chunks cannot be appended, or there is no
        progress for a time; later waits then end at once until there is.
        """
        begun = time.monotonic()
        with self._progress:
            while not condition():
                if self._failing or self._stalled:
                    return False
                rest = max(begun, self._moved) + patience_s - time.monotonic()
                if rest <= 0:
                    self._stalled = True
                    break
                self._progress.wait(rest)
            else:
                return True
        self._report(
            f"no record was written for {patience_s:.0f} s: the training goes on, and "
            "steps that are not yet written are lost if it is killed"
        )
        return False

    def progress(self) -> None:
        """Wake waiting threads, because records have been appended or committed."""
        with self._progress:
            self._moved, self._stalled = time.monotonic(), False
            self._progress.notify_all()

    def close(self) -> str:
        """Append the remaining chunks; return why some are lost, "" for none."""
        self._deadline = time.monotonic() + LAST_S
        self._chunks.put(None)
        self._thread.join(2 * LAST_S if self._failing else None)
        lost = self.backlog
        if not self._thread.is_alive():
            self.log.close()
        return f"{lost} bytes of records are lost at the end" if lost else ""

    def _run(self) -> None:
        while (chunk := self._chunks.get()) is not None:
            if not self._written(chunk):
                continue
            with self._progress:
                self.backlog -= len(chunk.data)
                self.steps = max(self.steps, chunk.steps)
                self.request = max(self.request, chunk.request)
            self.progress()
            if chunk.data:
                self._appended(len(chunk.data))

    def _written(self, chunk: Chunk) -> bool:
        """Append a chunk, if necessary repeatedly; return False if it is lost."""
        while not self._lost:
            try:
                if chunk.data:
                    self.log.append(chunk)
            except OSError as error:
                if not self._failing:
                    with self._progress:
                        self._failing = True
                        self._progress.notify_all()
                    self._report(
                        f"its records cannot be written ({error.strerror}): "
                        f"{remedy(error)}; the training goes on"
                    )
                # later chunks may rely on the definitions in this one
                self._lost = time.monotonic() >= self._deadline
                time.sleep(RETRY_S)
            else:
                self._failing = False
                return True
        return False
