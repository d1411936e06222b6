"""Transfer records from the training process to its committer process.

The training thread appends tuples to a queue.  A second thread encodes many tuples at a
time, so that it rarely contends with calls; a third appends them to the rank's record
log (:mod:`.record_log`), because a write may wait for the disk.  A committer process
commits the log as segments, acknowledges what it has committed, and is started again
if it ends early (:mod:`.committer_process`).

A step waits before more than half a window of steps is not in the log.  What is in the
log survives the death of both processes.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from moetraffic.capture.record_format import (
    CALL,
    GAP,
    ROUTED,
    VERSION,
    WORDS,
    frame,
    message,
)
from moetraffic.errors import CaptureError
from moetraffic.files import remedy
from moetraffic.trace.model import ROUTING
from moetraffic.trace.segments.segment import rank_folder

from .committer_process import CommitterProcess
from .encoder import Encoder
from .log_appender import LogAppender
from .record_log import Chunk, LogWriter

SLICE = 256  # records encoded before another thread may run
MANY = 1024  # maximum number of records encoded at once
PAUSE_S = 0.03
HOLD_S = 0.25  # maximum time a record waits for others
"""The training releases the interpreter lock in every collective.  A thread that
encodes each record immediately would acquire the lock then, and every call would wait
for it; with batches of records, few calls wait."""
BACKLOG_BYTES = 16 << 20  # encoded but not yet in the log
LOG_BYTES = 64 << 20  # in the log but not yet committed
CHUNK_BYTES = 256 << 10  # frames that are appended at once
STALL_S = 10.0  # time without progress after which a step does not wait any more
HASTE = 4
"""Steps are written to the log at least four times per window, so that a step rarely
waits."""
MOST_RESTARTS = 3  # starts of a committer in a row that committed nothing
LEAVE_S = 120.0  # maximum time the end waits for the committer's last write
LOOK_S = 0.5  # interval between checks of the committer process
LEFT = "its records remain for moetraffic merge in"
MESSAGE_RECORD = -1  # kind of a queued message


class Journal:
    """Queue, encoder and record log between a training process and its committer.

    ``about`` describes the capture for the committer, and ``lock`` is the descriptor of
    the lock that marks this rank as recording.  ``resolve`` is called periodically to
    collect completed device events, ``left_out`` with the kind of a record that cannot
    be encoded and the reason, and ``say``, from another thread, with each warning for
    the user.  ``native`` is the compiled hook, if it records the calls.
    """

    def __init__(
        self,
        about: dict[str, Any],
        lock: int,
        resolve: Callable[[], None],
        left_out: Callable[[str, str], None],
        say: Callable[[str], None],
        native: ModuleType | None = None,
    ) -> None:
        self._records: deque[tuple[Any, ...]] = deque()
        self._native = native
        self.put = self._records.append if native is None else self._put_and_mark
        self._resolve, self._left_out, self._say = resolve, left_out, say
        self._encoder = Encoder()
        self.number = self._encoder.number
        self._dropping = 0
        self._rank, self._window = int(about["rank"]), int(about["window"])
        self._own = rank_folder(Path(about["folder"]), self._rank)
        # ended steps, and requests to flush
        self._steps = self._requests = 0
        self._counting = threading.Lock()
        self._open_log(about, lock)
        self._wake, self._closing = threading.Event(), False
        self._thread = threading.Thread(
            target=self._run, name="moetraffic-journal", daemon=True
        )
        self._thread.start()

    def _open_log(self, about: dict[str, Any], lock: int) -> None:
        try:
            log = LogWriter(self._own, {**about, "version": VERSION})
        except OSError as error:
            raise CaptureError(
                f"a capture needs a folder to write to, but {self._own} cannot be "
                f"written ({error.strerror}): {remedy(error)}"
            ) from None
        # shared with the committer, which outlives a killed training
        shared = os.memfd_create("moetraffic-steps")
        os.ftruncate(shared, 16)
        self._ends = memoryview(mmap.mmap(shared, 16)).cast("q")
        self._inherited = (lock, shared)
        try:
            self._committer = CommitterProcess(self._own, self._inherited)
        except CaptureError:
            os.close(shared)
            log.close()
            raise
        self._restarts, self._looked = 0, time.monotonic()
        self._failure = ""  # of the committer, already reported
        self._given_up = False  # no committer is started any more
        self._pending: list[bytes] = []
        self._messages: list[dict[str, Any]] = []
        self._pending_bytes = 0
        self._log = LogAppender(
            log, lambda size: self._committer.ring(size), self._report
        )

    def send(self, **fields: Any) -> None:
        """Send a JSON message to the committer, in order with the records."""
        self.put((MESSAGE_RECORD, fields))

    def end_step(
        self, record: tuple[Any, ...], *, explicit: bool, counts: bool = True
    ) -> None:
        """Put the record of the end of a step, and wait while too many are not safe.

        ``explicit`` is whether the program ended the step; otherwise the optimizer was
        called.  ``counts`` is whether the record may be the end of an iteration.
        """
        with self._counting:
            # before the record, so that the committer never knows of too few
            self._ends[0 if explicit else 1] += 1
        self.put(record)
        if not counts:
            return
        with self._counting:
            # after the record, so that the encoder finds it
            self._steps += 1
        if self._steps - self._log.steps >= max(1, self._window // HASTE):
            self._wake.set()
        if self._is_behind():
            self._wake.set()
            self._log.wait(lambda: not self._is_behind(), STALL_S)

    def flush(self, patience_s: float = STALL_S) -> bool:
        """Append all records to the log, which survives the end of this process.

        Returns whether all records are in the log within ``patience_s``.
        """
        with self._counting:
            self._requests += 1
            request = self._requests
        self._wake.set()
        return self._log.wait(lambda: self._log.request >= request, patience_s)

    def _is_behind(self) -> bool:
        unsafe = self._steps - self._log.steps
        return unsafe >= max(1, self._window // 2) or (
            self._uncommitted() > LOG_BYTES
            and not (self._committer.error or self._given_up)
        )

    def _uncommitted(self) -> int:
        """Return the bytes of the log that the committer has not acknowledged."""
        log = self._log.log
        return log.appended - log.position(*self._committer.committed)

    def close(self, *, even_empty: bool) -> dict[str, Any]:
        """Write all records and end the committer process; return its final report.

        ``even_empty`` writes an empty segment for a rank without records.
        """
        self.send(close=even_empty)
        self._closing = True
        self._wake.set()
        self._thread.join(LEAVE_S)
        if lost := self._log.close():
            self._report(lost)
        # this ends the committer even if the close message was not written
        self._committer.hang_up()
        deadline = time.monotonic() + LEAVE_S
        while self._committer.report is None and not self._given_up:
            if time.monotonic() > deadline:
                what = f"its records are not written in {LEAVE_S:.0f} s"
                self._report(self._left(what))
                break
            time.sleep(0.005)
            self._tend()
        self._committer.release()
        os.close(self._inherited[1])
        return self._committer.report or {}

    def abandon(self) -> None:
        """Detach a forked child from its parent's journal."""
        self._records.clear()
        self._log.log.close()
        self._committer.release()

    def _left(self, why: str) -> str:
        """Add to a reason where the records remain, if their folder does."""
        return f"{why}: {LEFT} {self._own}" if self._own.is_dir() else why

    def _report(self, failure: str) -> None:
        """Report a failure, without an error for the thread that met it."""
        self._say(f"rank {self._rank}: {failure}")

    # ---- beside the training -----------------------------------------------------

    def _run(self) -> None:
        drained, before = time.monotonic(), 0
        while True:
            called = self._wake.wait(PAUSE_S)
            self._wake.clear()
            closing = self._closing
            now = time.monotonic()
            urgent = self._uncommitted() > LOG_BYTES // 2
            if now - self._looked >= (0 if urgent else LOOK_S) and not closing:
                self._looked = now
                self._tend()
            held, count = now - drained, self._waiting()
            quiet, before = count == before, count  # no call since the last check
            if not (quiet or called or closing or count >= MANY or held >= HOLD_S):
                continue
            drained, before = now, 0
            # their records are in the queue, and drained below
            steps, request = self._steps, self._requests
            whole = True
            try:
                self._resolve()
                whole = self._drain()
            except Exception as error:
                # no error may reach the training; lost records are counted
                self._report(f"the journal failed: {error!r}")
            if closing:
                self._end_gap()
            self._hand_over(*((steps, request) if whole else (0, 0)))
            if closing and not self._waiting():
                return

    def _tend(self) -> None:
        """Read acknowledgements, and start a committer again that has ended.

        A committer that ends again and again without a commit is not started again.
        """
        committer = self._committer
        earlier = committer.committed
        committer.receive()
        if committer.committed != earlier:
            self._log.progress()
        if committer.error != self._failure:
            self._failure = committer.error
            if self._failure:
                self._report(self._failure)
        closing = self._closing
        how = "" if self._given_up else committer.ended()
        if not how or (closing and committer.report is not None):
            return
        what = f"the process that writes its records {how}"
        self._restarts = 1 if committer.progressed else self._restarts + 1
        if self._restarts > MOST_RESTARTS or committer.report is not None:
            # in the words of the end, which are then not repeated
            left = (committer.report or {}).get("left")
            self._report(left or self._left(f"{what}; it is not started again"))
            self._given_up = True
            return
        try:
            started = CommitterProcess(self._own, self._inherited)
        except CaptureError as error:
            self._report(f"{what}: {error}")
            self._given_up = True
            return
        started.committed = committer.committed
        self._committer = started
        committer.release()
        if closing:
            started.hang_up()
        self._report(f"{what}, and is started again: no record is lost")

    def _put_and_mark(self, record: tuple[Any, ...]) -> None:
        """Queue a Python record and mark its position among the compiled calls."""
        assert self._native is not None
        self._records.append(record)
        self._native.mark()

    def _waiting(self) -> int:
        """Lower bound of the number of queued records."""
        if self._native is None:
            return len(self._records)
        return int(self._native.waiting())

    def _drain(self) -> bool:
        """Encode what is queued; return False if the log is full."""
        if self._native is None:
            self._encode(len(self._records))
            return True
        if self._is_full() and not self._closing:
            return False  # the compiled hook buffers as much, and counts dropped calls
        pieces, lost = self._native.take()
        marks = 0
        for piece in (*pieces, b""):
            if piece is None:
                marks += 1
                continue
            self._encode(marks)
            marks = 0
            if piece:
                # a name is defined before its record is stored, hence before taking it
                self._define()
                self._append(frame(WORDS, piece))
        if lost:
            self._append(_gap(lost))
        return True

    def _encode(self, count: int) -> None:
        """Encode ``count`` queued Python records."""
        records, encode = self._records, self._encoder.encode
        words: list[int] = []
        while count:
            slice_ = min(SLICE, count)
            count -= slice_
            for _ in range(slice_):
                record = records.popleft()
                if record[0] == MESSAGE_RECORD:
                    self._flush(words)
                    self._append(message(**record[1]), record[1])
                    continue
                if self._dropping and record[0] == CALL:
                    self._dropping += 1
                    continue
                whole = len(words)
                try:
                    encode(record, words)
                except Exception as error:
                    # an internal error or an invalid count must only lose this record
                    del words[whole:]
                    if record[0] == ROUTED:
                        self._left_out(ROUTING, str(error))
                    else:
                        self._left_out("record", repr(error))
            if len(words) > 4096:
                self._flush(words)
            # release the interpreter lock for waiting threads
            time.sleep(0)
        self._flush(words)

    def _define(self) -> None:
        for definition in self._encoder.definitions():
            self._append(message(**definition), definition)

    def _flush(self, words: list[int]) -> None:
        self._define()
        if words:
            self._append(frame(WORDS, array("q", words).tobytes()))
            words.clear()
        if self._native is not None:
            return  # the compiled hook drops calls itself
        if not self._dropping and self._is_full():
            self._dropping = 1
        elif self._dropping and not self._is_full():
            self._end_gap()

    def _end_gap(self) -> None:
        """Note the number of calls that were dropped, and drop no more."""
        if self._dropping:
            lost, self._dropping = self._dropping - 1, 0
            self._append(_gap(lost))

    def _is_full(self) -> bool:
        """Return whether calls are dropped, which the trace counts."""
        return self._log.backlog > BACKLOG_BYTES or self._uncommitted() > 2 * LOG_BYTES

    def _append(self, data: bytes, *messages: dict[str, Any]) -> None:
        self._pending.append(data)
        self._messages += messages
        self._pending_bytes += len(data)
        if self._pending_bytes > CHUNK_BYTES:
            self._hand_over()

    def _hand_over(self, steps: int = 0, request: int = 0) -> None:
        """Hand frames over to be appended, which complete steps and a flush request."""
        data, messages = b"".join(self._pending), tuple(self._messages)
        self._pending, self._messages, self._pending_bytes = [], [], 0
        if data or steps > self._log.steps or request > self._log.request:
            self._log.append(
                Chunk(data=data, messages=messages, steps=steps, request=request)
            )


def _gap(lost: int) -> bytes:
    """Encode the record of a number of lost calls."""
    return frame(WORDS, array("q", (GAP, 3, lost)).tobytes())
