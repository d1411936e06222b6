"""Journal: pass records from the training process to the committer process.

The training thread appends a tuple.  A thread encodes tuples into words, many at a time
so that few calls meet it, and writes them into the pipe of a process that builds,
compresses and commits segments (:mod:`.committer`): none of that meets the training's
interpreter lock, and the record outlives a training that is killed.
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
from typing import TYPE_CHECKING, Any

from moetraffic.capture.pipe_format import CALL, GAP, ROUTED, STEP, WORDS, frame, told
from moetraffic.errors import CaptureError

from .encoder import Encoder

if TYPE_CHECKING:
    from moetraffic.capture.hook.native import Native

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from moetraffic.capture.records.committer import main
main(*map(int, sys.argv[2:]))
"""
SLICE = 256  # records encoded before another thread may run
MANY = 1024  # records that are encoded at once
PAUSE_S = 0.03
HOLD_S = 0.25  # how long a record waits for others
"""The training lets go of the interpreter in every collective.  A thread that encoded
each record as it comes would take it then, and every call would wait for it: so few
calls wait, for many records."""
PIPE_BYTES = 1 << 20
"""What a pipe may hold without a right that few users have (Linux).  The usual 64 KB
hold a few hundred calls: writer and reader would wake each other all the time."""
BACKLOG_BYTES = 16 << 20  # encoded and not taken by the committer yet
PATIENCE_S = 0.25  # how long a step waits for what is behind
HASTE = 4
"""Steps are handed over four times a window, however few records they make: what is
not handed over when a rank is killed is lost, and a window is the most that may be."""
LEAVE_S = 120.0  # how long the end waits for the committer's last write


class Journal:
    """Queue and encoder thread between a training process and its committer.

    Parameters
    ----------
    about
        What the committer is told first; see :class:`.committer.Committer`.
    lock
        The file descriptor whose lock says that this rank records.
    loss_of
        Turns what a step gave as its loss into a number, when it may be waited for.
    counts_of
        Turns what a router gave into counts, likewise.
    resolve
        Called now and then, to look what the devices have done.
    left_out
        Told of a record that cannot be encoded, and why.
    native
        The compiled hook, which keeps the records of calls until they are taken.
    """

    def __init__(
        self,
        about: dict[str, Any],
        lock: int,
        *,
        loss_of: Callable[[Any], float],
        counts_of: Callable[[Any, Any], tuple[Any, Any] | None],
        resolve: Callable[[], None],
        left_out: Callable[[str, str], None],
        native: Native | None = None,
    ) -> None:
        self._records: deque[tuple[Any, ...]] = deque()
        self._native = native
        self.put = self._records.append if native is None else self._put_and_mark
        self.error = ""
        self._loss_of, self._counts_of, self._resolve = loss_of, counts_of, resolve
        self._about, self._lock, self._left_out = about, lock, left_out
        self._encoder = Encoder()
        self.number = self._encoder.number
        self._chunks: deque[bytes] = deque()
        self._backlog = 0
        self._dropping = 0
        self._window = int(about["window"])
        self._steps = self._handed = 0  # that ended, and of these on their way
        self._wake, self._closing = threading.Event(), False
        self._reports: list[dict[str, Any]] = []
        self._heard = b""
        self._pipe = self._report = -1
        self._process = self._start_committer()
        self._thread = threading.Thread(
            target=self._run, name="moetraffic-journal", daemon=True
        )
        self._thread.start()

    def tell(self, **words: Any) -> None:
        """Send a JSON message to the committer, in order with the records."""
        self.put((TOLD_RECORD, words))

    def stepped(self, *, waits: bool = True) -> None:
        """Notify the journal that a step has ended.

        Parameters
        ----------
        waits
            Whether the training waits a little where half a window of steps is not
            handed over yet, or the committer cannot keep up.
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

    def close(self, *, even_empty: bool) -> list[dict[str, Any]]:
        """Write all records and end the committer.

        Parameters
        ----------
        even_empty
            Whether a rank that recorded nothing leaves a segment that says so.

        Returns
        -------
        list of dict
            What it reported: errors, and its last word.
        """
        self.tell(close=even_empty)
        self._closing = True
        self._wake.set()
        self._thread.join(LEAVE_S)
        # whatever became of the last word, the committer ends with its pipe
        os.close(self._pipe)
        self._pipe = -1
        deadline = time.monotonic() + LEAVE_S
        while self._process.poll() is None and time.monotonic() < deadline:
            self._hear(0.05)
        self._hear(0)
        if self._process.poll() is None:
            self.error = self.error or (
                f"the committer has not ended in {LEAVE_S:.0f} s: the disk stalls"
            )
        self._leave()
        return self._reports

    def abandon(self) -> None:
        """Detach a forked child from its parent's journal."""
        self._records.clear()
        self.put = _ignored
        self._leave()

    # ---- beside the training -----------------------------------------------------

    def _start_committer(self) -> subprocess.Popen[bytes]:
        reader, self._pipe = os.pipe()
        self._report, writer = os.pipe()
        os.set_blocking(self._pipe, False)
        os.set_blocking(self._report, False)
        _widen(self._pipe)
        # the paths of this process, for moetraffic and h5py may come from anywhere
        paths = [os.path.abspath(p) for p in (*sys.path, str(ROOT))]
        try:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", "-c", PROGRAM, json.dumps(paths)),
                    *map(str, (reader, writer, os.getpid())),
                ],
                pass_fds=(reader, writer, self._lock),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # a Ctrl-C on the terminal is for the training: what it left is kept
                start_new_session=True,
            )
        except OSError as error:
            os.close(self._pipe)
            os.close(self._report)
            raise CaptureError(
                f"a capture writes from a process of its own, but {sys.executable} "
                f"cannot be started ({error.strerror}): allow it another process"
            ) from None
        finally:
            os.close(reader)
            os.close(writer)
        self._send(told(about=self._about))
        return process

    def _run(self) -> None:
        drained, before = time.monotonic(), 0
        while True:
            called = self._wake.wait(PAUSE_S)
            self._wake.clear()
            closing = self._closing
            held, count = time.monotonic() - drained, self._waiting()
            quiet, before = count == before, count  # no call since the last look
            if not (quiet or called or closing or count >= MANY or held >= HOLD_S):
                continue
            drained, before = time.monotonic(), 0
            steps = self._steps  # whose records are put, so that they are drained
            try:
                self._resolve()
                self._drain()
                self._hear(0)
                self._write(LEAVE_S if closing else 0)
            except Exception as error:
                # the training must not notice; what is lost is counted
                self.error = self.error or f"the journal failed: {error!r}"
            # what a full pipe keeps back is the committer's to take: see the backlog
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
        return self._native.waiting()

    def _drain(self) -> None:
        if self._native is None:
            self._encode(len(self._records))
            return
        if self._backlog > BACKLOG_BYTES:
            return  # the compiled hook holds as much again, and counts what it cannot
        pieces, lost = self._native.take()
        marks = 0
        for piece in (*pieces, b""):
            if piece is None:
                marks += 1
                continue
            self._encode(marks)
            marks = 0
            if piece:
                # defined before it came, so before it was taken
                self._define()
                self._send(frame(WORDS, piece))
                self._write(0)
        if lost:
            self._send(frame(WORDS, array("q", (GAP, 3, lost)).tobytes()))

    def _encode(self, count: int) -> None:
        """Encode ``count`` queued Python records."""
        records, encode = self._records, self._encoder.encode
        words: list[int] = []
        while count:
            slice_ = min(SLICE, count)
            count -= slice_
            for _ in range(slice_):
                record = records.popleft()
                kind = record[0]
                if kind == STEP:
                    record = (*record[:-1], self._loss_of(record[-1]))
                elif kind == ROUTED:
                    counts = self._counts_of(*record[-2:])
                    if counts is None:
                        continue
                    record = (*record[:-2], *counts)
                elif kind == TOLD_RECORD:
                    self._flush(words)
                    self._send(told(**record[1]))
                    continue
                if self._dropping and kind == CALL:
                    self._dropping += 1
                    continue
                whole = len(words)
                try:
                    encode(record, words)
                except Exception as error:
                    # a defect of ours costs this record, and no other
                    del words[whole:]
                    self._left_out("record", repr(error))
            if len(words) > 4096:
                self._flush(words)
                self._write(0)
            # whoever waits for the interpreter goes first
            time.sleep(0)
        self._flush(words)

    def _define(self) -> None:
        for definition in self._encoder.definitions():
            self._send(told(**definition))

    def _flush(self, words: list[int]) -> None:
        self._define()
        if words:
            self._send(frame(WORDS, array("q", words).tobytes()))
            words.clear()
        if self._native is not None:
            return  # it drops calls itself
        if not self._dropping and self._backlog > BACKLOG_BYTES:
            self._dropping = 1
        elif self._dropping and self._backlog < BACKLOG_BYTES // 2:
            lost, self._dropping = self._dropping - 1, 0
            self._send(frame(WORDS, array("q", (GAP, 3, lost)).tobytes()))

    def _send(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._backlog += len(chunk)

    def _write(self, patience_s: float) -> None:
        """Write to the pipe until it is full, or until the timeout."""
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

    def _hear(self, patience_s: float) -> None:
        """Read the committer's reports, one JSON object per line."""
        ready, _, _ = select.select([self._report], [], [], patience_s)
        if not ready:
            return
        try:
            heard = os.read(self._report, 65536)
        except BlockingIOError:
            return
        self._heard += heard
        *lines, self._heard = self._heard.split(b"\n")
        self._reports += [json.loads(line) for line in lines if line]
        if not heard:
            time.sleep(min(patience_s, 0.01))

    def _leave(self) -> None:
        for descriptor in (self._pipe, self._report):
            if descriptor >= 0:
                os.close(descriptor)
        self._pipe = self._report = -1


def _widen(pipe: int) -> None:
    """Increase the pipe's capacity, where the system permits it."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


TOLD_RECORD = -1


def _ignored(_record: tuple[Any, ...]) -> None:
    """Discard a record."""
