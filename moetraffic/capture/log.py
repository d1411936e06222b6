"""Write the records of a rank to its log, beside the training.

Hooks and reports put records into a queue of int64 words.  One thread takes them every
quarter of a second, or when several steps are not written yet, and appends them to the
log as one frame: a thread that took each record at once would take the interpreter's
lock in every collective, which releases it.

A step waits before eight steps are not in the log, so that a rank that is killed loses
at most eight; a slow disk delays a run by at most ten seconds in all.  What cannot be
written is kept for later attempts and, when it is too much, dropped and counted.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moetraffic.arrays import Int64
from moetraffic.errors import CaptureError
from moetraffic.files import remedy
from moetraffic.trace.merge import log_format as log
from moetraffic.trace.merge.rank_record import CallingModule
from moetraffic.trace.model import PHASES

from .annotate import CallContext
from .sampling import Sampling

MOST_LOST = 8
"""Ended steps of which the log may lack the records."""
HASTE = 4  # unwritten steps after which the writer is woken
DRAIN_S = 0.25
PATIENCE_S = 10.0
"""Time that the steps of a run wait for a slow disk, in all."""
STUCK_S = 1.0  # duration of a write after which the state is not written either
CLOSE_S = 120.0  # longest wait for the last write
FILE_BYTES = 8 << 20  # a reader that begins with the newest file reads so much
MOST_PENDING = 64 << 20  # bytes kept for later attempts
MOST_QUEUED = 1 << 17  # records; more calls are dropped and counted
NOTHING = np.zeros(0, np.int64)


class RecordQueue:
    """Queue of records, whole int64 words; the compiled hook has one of its own."""

    def __init__(self) -> None:
        self._records: deque[bytes] = deque()
        self._dropped = 0
        self.put = self._records.append

    def put_call(self, record: bytes) -> None:
        """Append the record of a call, or count it if the queue is full."""
        if len(self._records) < MOST_QUEUED:
            self._records.append(record)
        else:
            self._dropped += 1

    def take(self) -> tuple[bytes, int]:
        """Remove all words; return them, and the number of dropped calls."""
        take, dropped = self._records.popleft, self._dropped
        words = b"".join([take() for _ in range(len(self._records))])
        self._dropped -= dropped
        return words, dropped


class Log:
    """Log of one rank, and the thread that writes it.

    Parameters
    ----------
    folder, rank
        Folder of the logs of all ranks, and this rank.
    state
        Descriptor of the locked state file of the rank, which the log closes.
    about
        Description of the capture: meta, rank, node, placement, begun, threads.
    queue
        Queue that the hooks fill, a RecordQueue or the compiled hook.
    read_devices
        Called before records are taken: puts those that waited for a device.
    say
        Called, from another thread too, with each warning for the user.
    every, most_bytes
        As of the recorder; bytes of this rank, 0: unlimited.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        state: int,
        about: Mapping[str, Any],
        queue: Any,
        read_devices: Callable[[], None],
        say: Callable[[str], None],
        *,
        every: int = 1,
        most_bytes: int = 0,
    ) -> None:
        self.folder, self.rank = folder, rank
        self._state_file, self._about, self._queue = state, dict(about), queue
        self._read_devices, self._say = read_devices, say
        self._sampling = Sampling(every, lambda context: context in self._gradients)
        self._most_bytes = most_bytes
        self._numbers: dict[str, dict[Any, int]] = defaultdict(dict)
        self._gradients: set[int] = set()  # contexts of gradients' calls
        self._facts: dict[str, Any] = {}
        self._message = _message()  # what no frame has yet
        self._logged = _message()  # what the log has; a new file begins with it
        self._lock = threading.RLock()  # a signal's handler may end a step, too
        self._file, self._files, self._size, self.size = -1, 0, 0, 0
        # frames with their words or messages
        self._pending: list[tuple[bytes, Int64, dict[str, Any]]] = []
        self._writing_since = 0.0
        self._state = log.State()
        self._ended = self._written = 0  # steps
        self._requests = self._fulfilled = 0
        self.is_empty = True  # no record was put
        self._patience_s, self._failure = PATIENCE_S, ""
        self._progress = threading.Condition()
        self._wake, self._closing = threading.Event(), False
        try:
            os.pwrite(state, log.STATE.pack(*self._state), 0)
            self._begin_file()
        except OSError as error:
            os.close(state)
            raise CaptureError(
                f"a capture needs a folder to write to, but {folder} cannot be written "
                f"({error.strerror}): {remedy(error)}"
            ) from None
        self._thread = threading.Thread(
            target=self._run, name="moetraffic-log", daemon=True
        )
        self._thread.start()

    # ---- in the threads of the training ------------------------------------------

    def put(self, *words: int) -> None:
        """Put a record."""
        self._queue.put(array("q", words).tobytes())

    def number(self, kind: str, name: Any) -> int:
        """Return the number of a name, defining it on first use.

        Kinds are "context" (a CallContext), "module" (a CallingModule), "dtype" (None
        for none), "thread", "node" and "group" (its name, kind and ranks).
        """
        numbers = self._numbers[kind]
        number = numbers.get(name)
        if number is None:
            with self._lock:
                number = numbers.get(name)
                if number is None:
                    number = len(numbers)
                    # defined before another thread can use the number
                    self._message["define"].append((kind, _json_value(name)))
                    if kind == "context" and name.phase in PHASES[2:]:
                        self._gradients.add(number)
                    numbers[name] = number
        return number

    def add_facts(self, **facts: Any) -> None:
        """State facts about the run, which replace those of the same names."""
        with self._lock:
            new = {n: v for n, v in facts.items() if self._facts.get(n) != v}
            self._message["facts"] |= new
            self._facts |= new

    def add_clocks(self, rows: list[list[int]]) -> None:
        """Add measured clock offsets, rows of CLOCK."""
        with self._lock:
            self._message["clocks"] += rows

    def end_step(self, kind: int, *fields: int, ends: bool = True) -> int:
        """Put a STEP or OPTIMIZER record, and wait while too many are not written.

        ``fields`` are those behind the number of the step.  ``ends`` is whether the
        record may be the end of an iteration.  Returns the number of the step.
        """
        with self._lock:
            name = "steps" if kind == log.STEP else "optimizer_steps"
            number: int = getattr(self._state, name)
            self._state = self._state._replace(**{name: number + 1})
            self._write_state()
            self.put(kind, 3 + len(fields), number, *fields)
            self._ended += ends
        behind = self._ended - self._written
        if behind >= HASTE:
            self._wake.set()
        if behind >= MOST_LOST and self._patience_s > 0 and not self._failure:
            self._wait_for_the_disk()
        return number

    def flush(self, patience_s: float = PATIENCE_S) -> bool:
        """Write all records; return whether that was done within ``patience_s``."""
        with self._lock:
            self._requests += 1
            request = self._requests
        self._wake.set()
        with self._progress:
            self._progress.wait_for(lambda: self._fulfilled >= request, patience_s)
        return self._fulfilled >= request and not self._pending

    def close(self) -> None:
        """Write all records, and mark the log as closed."""
        self._closing = True
        self._wake.set()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self._say(f"{self.folder} does not take its records in {CLOSE_S:.0f} s")
            return
        with self._lock:
            self._state = self._state._replace(closed=1)
            self._write_state()
        if self._state.lost_calls:
            self._say(
                f"{self._state.lost_calls} calls could not be written to {self.folder}"
            )
        if not log.state_file(self.folder, self.rank).exists():
            self._say(
                f"rank {self.rank}: {self.folder} was removed: the records in it are "
                "lost"
            )
        self.leave()

    def leave(self) -> None:
        """Close the files, also in a forked child."""
        for file in (self._file, self._state_file):
            if file >= 0:
                os.close(file)
        self._file = self._state_file = -1

    def _wait_for_the_disk(self) -> None:
        began = time.monotonic()
        with self._progress:
            in_time = self._progress.wait_for(
                lambda: self._ended - self._written < MOST_LOST or bool(self._failure),
                self._patience_s,
            )
        self._patience_s -= time.monotonic() - began
        if not in_time:
            self._say(
                f"{self.folder} is so slow that steps have waited {PATIENCE_S:.0f} s "
                "for it: they no longer wait, and calls that it does not take are "
                "dropped and counted"
            )

    def _write_state(self) -> None:
        since = self._writing_since
        if since and time.monotonic() - since > STUCK_S:
            return  # the disk does not answer
        try:
            os.pwrite(self._state_file, log.STATE.pack(*self._state), 0)
        except OSError as error:
            self._fail(f"{self.folder} cannot be written ({error.strerror})")

    # ---- in the writing thread ---------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(DRAIN_S)
            self._wake.clear()
            self._drain()
        self._drain(last=True)

    def _drain(self, *, last: bool = False) -> None:
        """Write what is queued; an error loses it, and never reaches the training."""
        ended, request, content = self._ended, self._requests, b""
        try:
            self._read_devices()
            content, dropped = self._queue.take()
            words = np.frombuffer(content, "<i8").astype(np.int64, copy=False)
            words = self._sampling.pass_on(words, last=last)
            if self._sampling.stopped:
                self.add_facts(stopped=True)
            self.is_empty &= not len(content)
            if dropped:
                words = np.append(words, (log.LOST, 3, dropped))
                self._count_lost(dropped)
            # names are defined before they are used, so those of taken words are here
            with self._lock:
                message, self._message = self._message, _message()
            if any(message.values()):
                self._pending.append((log.message(message), NOTHING, message))
            if len(words):
                frame = log.frame(log.WORDS, words.astype("<i8").tobytes())
                self._pending.append((frame, words, {}))
            content = b""
            self._write()
            if self._most_bytes and self.size >= self._most_bytes:
                self._sampling.stop()
        except Exception as error:
            self._count_lost(calls_in(np.frombuffer(content, "<i8")))
            self._fail(f"records of rank {self.rank} are lost: {error!r}")
        with self._progress:
            self._written, self._fulfilled = ended, request
            self._progress.notify_all()

    def _write(self) -> None:
        """Append the pending frames to the log, as far as the disk takes them."""
        while self._pending:
            frame, _, message = self._pending[0]
            try:
                if self._size >= FILE_BYTES:
                    self._begin_file()
                self._append(frame)
            except OSError as error:
                if error.errno == errno.EFBIG and self._size:
                    # a limit on the size of files: continue in another one
                    self._size = FILE_BYTES
                    continue
                self._fail(
                    f"{self.folder} cannot be written ({error.strerror}): the training "
                    "goes on, and what cannot be written is counted"
                )
                self._drop_pending()
                return
            self._pending.pop(0)
            self._failure = ""
            if message:
                self._logged["define"] += message["define"]
                self._logged["clocks"] += message["clocks"]
                self._logged["facts"] |= message["facts"]

    def _append(self, data: bytes) -> None:
        """Append a frame whole, or not at all."""
        rest = memoryview(data)
        self._writing_since = time.monotonic()
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        finally:
            self._writing_since = 0.0
        self._size += len(data)
        self.size += len(data)

    def _begin_file(self) -> None:
        path = log.log_file(self.folder, self.rank, self._files)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        file = os.open(path, flags, 0o666)
        earlier = self._file, self._size
        self._file, self._size = file, 0
        try:
            self._append(log.message({"about": self._about, **self._logged}))
        except OSError:
            os.close(file)
            path.unlink(missing_ok=True)
            self._file, self._size = earlier
            raise
        self._files += 1
        if earlier[0] >= 0:
            os.close(earlier[0])

    def _drop_pending(self) -> None:
        """Drop pending words that are too many, and count their calls."""
        size = sum(len(frame) for frame, _, _ in self._pending)
        if size <= MOST_PENDING and not self._closing:
            return
        calls = sum(calls_in(words) for _, words, _ in self._pending)
        messages = [entry for entry in self._pending if entry[2]]
        gap = np.array((log.LOST, 3, calls))
        frame = log.frame(log.WORDS, gap.astype("<i8").tobytes())
        self._pending = [*messages, (frame, gap, {})]
        self._count_lost(calls)

    def _count_lost(self, calls: int) -> None:
        with self._lock:
            lost = self._state.lost_calls + calls
            self._state = self._state._replace(lost_calls=lost)
            self._write_state()

    def _fail(self, why: str) -> None:
        if not self._failure:
            self._say(why)
        self._failure = why


def _message() -> dict[str, Any]:
    return {"define": [], "clocks": [], "facts": {}}


def calls_in(words: Int64) -> int:
    """Count the calls in some words."""
    return int((words[log.starts_of(words)] == log.CALL).sum())


def _json_value(name: Any) -> Any:
    """Convert a name to its JSON value."""
    if isinstance(name, CallContext):
        return list(astuple(name))
    if isinstance(name, CallingModule):
        return asdict(name)
    if isinstance(name, tuple):
        return dict(zip(("name", "kind", "ranks"), name, strict=True))
    if isinstance(name, torch.dtype):
        return str(name).removeprefix("torch.")
    return "" if name is None else name
