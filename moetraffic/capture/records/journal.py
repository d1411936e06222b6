"""Transfer records from the training process to its committer process.

The training thread appends tuples to a queue.  A second thread encodes many tuples at a
time, so that it rarely contends with calls, and writes them to the pipe of a process
that builds, compresses and commits segments (:mod:`.committer`).  That process does not
use the interpreter lock of the training, and its records survive a killed training.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import subprocess
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from moetraffic.capture.pipe_format import CALL, GAP, ROUTED, WORDS, frame, message
from moetraffic.errors import CaptureError
from moetraffic.trace.model import ROUTING

from .encoder import Encoder

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from moetraffic.capture.records.committer import main
main(*map(int, sys.argv[2:]))
"""
SLICE = 256  # records encoded before another thread may run
MANY = 1024  # maximum number of records encoded at once
PAUSE_S = 0.03
HOLD_S = 0.25  # maximum time a record waits for others
"""The training releases the interpreter lock in every collective.  A thread that
encodes each record immediately would acquire the lock then, and every call would wait
for it; with batches of records, few calls wait."""
PIPE_BYTES = 1 << 20
"""Maximum pipe capacity for unprivileged users on Linux.  The default of 64 KB holds a
few hundred calls, so that writer and reader would wake each other continuously."""
BACKLOG_BYTES = 16 << 20  # encoded but not yet read by the committer
PATIENCE_S = 0.25  # maximum time a step waits for pending records
HASTE = 4
"""Steps are written to the pipe at least four times per window, because steps not yet
written are lost when a rank is killed, and at most one window may be lost."""
LEAVE_S = 120.0  # maximum time the end waits for the committer's last write
MESSAGE_RECORD = -1  # kind of a queued message


class Journal:
    """Queue and encoder thread between a training process and its committer.

    ``about`` is the first message to the committer, ``lock`` the descriptor of the lock
    that marks this rank as recording.  ``resolve`` is called periodically to collect
    completed device events, ``left_out`` with the kind of a record that cannot be
    encoded and the reason.  ``native`` is the compiled hook, if it records the calls.
    """

    def __init__(
        self,
        about: dict[str, Any],
        lock: int,
        resolve: Callable[[], None],
        left_out: Callable[[str, str], None],
        native: ModuleType | None = None,
    ) -> None:
        self._records: deque[tuple[Any, ...]] = deque()
        self._native = native
        self.put = self._records.append if native is None else self._put_and_mark
        self.error = ""
        self._resolve, self._left_out = resolve, left_out
        self._encoder = Encoder()
        self.number = self._encoder.number
        self._chunks: deque[bytes] = deque()
        self._backlog = 0
        self._dropping = 0
        self._window = int(about["window"])
        # ended steps, and those of them that are written to the pipe
        self._steps = self._handed = 0
        self._wake, self._closing = threading.Event(), False
        self._process, self._pipe = _start_committer(lock)
        self._append(message(about=about))
        self._thread = threading.Thread(
            target=self._run, name="moetraffic-journal", daemon=True
        )
        self._thread.start()

    def send(self, **fields: Any) -> None:
        """Send a JSON message to the committer, in order with the records."""
        self.put((MESSAGE_RECORD, fields))

    def stepped(self, *, waits: bool = True) -> None:
        """Notify the encoder thread that a step has ended.

        If ``waits``, the training waits briefly while half a window of steps is not yet
        written to the pipe, or the committer cannot keep up.
        """
        self._steps += 1
        if self._steps - self._handed >= max(1, self._window // HASTE):
            self._wake.set()
        deadline = time.monotonic() + PATIENCE_S
        while waits and self._is_behind() and time.monotonic() < deadline:
            time.sleep(0.001)

    def _is_behind(self) -> bool:
        unsent = self._steps - self._handed
        return unsent > self._window // 2 or self._backlog > BACKLOG_BYTES // 2

    def close(self, *, even_empty: bool) -> dict[str, Any]:
        """Write all records and end the committer process; return its final report.

        ``even_empty`` writes an empty segment for a rank without records.
        """
        self.send(close=even_empty)
        self._closing = True
        self._wake.set()
        self._thread.join(LEAVE_S)
        # closing the pipe ends the committer even if the close message was not written
        self._close_pipe()
        try:
            report, _ = self._process.communicate(timeout=LEAVE_S)
        except subprocess.TimeoutExpired:
            self.error = self.error or (
                f"the committer has not ended in {LEAVE_S:.0f} s: the disk stalls"
            )
            return {}
        return dict(json.loads(report)) if report else {}

    def abandon(self) -> None:
        """Detach a forked child from its parent's journal."""
        self._records.clear()
        self._close_pipe()

    def _close_pipe(self) -> None:
        pipe, self._pipe = self._pipe, -1
        if pipe >= 0:
            os.close(pipe)

    # ---- beside the training -----------------------------------------------------

    def _run(self) -> None:
        drained, before = time.monotonic(), 0
        while True:
            called = self._wake.wait(PAUSE_S)
            self._wake.clear()
            closing = self._closing
            held, count = time.monotonic() - drained, self._waiting()
            quiet, before = count == before, count  # no call since the last check
            if not (quiet or called or closing or count >= MANY or held >= HOLD_S):
                continue
            drained, before = time.monotonic(), 0
            steps = self._steps  # their records are in the queue, and drained below
            try:
                self._resolve()
                self._drain()
                self._write(LEAVE_S if closing else 0)
            except Exception as error:
                # no error may reach the training; lost records are counted
                self.error = self.error or f"the journal failed: {error!r}"
            # data that a full pipe does not accept remain in the backlog
            self._handed = steps
            if closing and not self._waiting():
                return

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

    def _drain(self) -> None:
        if self._native is None:
            self._encode(len(self._records))
            return
        if self._backlog > BACKLOG_BYTES:
            return  # the compiled hook buffers as much, and counts dropped calls
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
                self._write(0)
        if lost:
            self._append(frame(WORDS, array("q", (GAP, 3, lost)).tobytes()))

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
                    self._append(message(**record[1]))
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
                self._write(0)
            # release the interpreter lock for waiting threads
            time.sleep(0)
        self._flush(words)

    def _define(self) -> None:
        for definition in self._encoder.definitions():
            self._append(message(**definition))

    def _flush(self, words: list[int]) -> None:
        self._define()
        if words:
            self._append(frame(WORDS, array("q", words).tobytes()))
            words.clear()
        if self._native is not None:
            return  # the compiled hook drops calls itself
        if not self._dropping and self._backlog > BACKLOG_BYTES:
            self._dropping = 1
        elif self._dropping and self._backlog < BACKLOG_BYTES // 2:
            lost, self._dropping = self._dropping - 1, 0
            self._append(frame(WORDS, array("q", (GAP, 3, lost)).tobytes()))

    def _append(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._backlog += len(chunk)

    def _write(self, patience_s: float) -> None:
        """Write encoded records to the pipe until all are written or the timeout."""
        deadline = time.monotonic() + patience_s
        while self._chunks:
            try:
                done = os.write(self._pipe, self._chunks[0][:PIPE_BYTES])
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return
                select.select([], [self._pipe], [], 0.1)
                continue
            except OSError as error:
                self.error = self.error or (
                    f"the committer has ended ({error.strerror}): what it had not "
                    "written is lost"
                )
                self._chunks.clear()
                self._backlog = 0
                return
            rest = self._chunks[0][done:]
            self._backlog -= done
            if rest:
                self._chunks[0] = rest
            else:
                self._chunks.popleft()


def _start_committer(lock: int) -> tuple[subprocess.Popen[bytes], int]:
    """Start a committer process; return it and the descriptor of its pipe."""
    reader, pipe = os.pipe()
    os.set_blocking(pipe, False)
    with contextlib.suppress(OSError):  # where the system permits it
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    # the import path of this process, which moetraffic and h5py were found in
    paths = [os.path.abspath(p) for p in (*sys.path, str(ROOT))]
    try:
        process = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", "-c", PROGRAM, json.dumps(paths)),
                *map(str, (reader, os.getpid())),
            ],
            pass_fds=(reader, lock),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # a Ctrl-C must not end the committer, which still writes the records
            start_new_session=True,
        )
    except OSError as error:
        os.close(pipe)
        raise CaptureError(
            f"a capture writes from a process of its own, but {sys.executable} "
            f"cannot be started ({error.strerror}): allow it another process"
        ) from None
    finally:
        os.close(reader)
    return process, pipe
