"""Send heartbeats of a rank's progress to the supervisor at negligible cost.

Two channels lead to the supervisor, both inherited through the environment:

- ``MOETRAFFIC_HEARTBEAT`` is ``fd:inode`` of a pipe.  :func:`send` writes one JSON
  line into it.  A write of at most PIPE_BUF bytes is atomic (POSIX ``write``), so the
  ranks share one pipe; it never blocks, so a full pipe loses the line.
- ``MOETRAFFIC_COUNTERS`` is a file of one int64 per rank, mapped into memory: the
  operations entered and left.  Writing to it costs no system call, so it is updated
  for every operation.

Without these variables heartbeats stay within the process.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import select
import stat
import time
from typing import Any, NamedTuple

PIPE = "MOETRAFFIC_HEARTBEAT"
COUNTERS = "MOETRAFFIC_COUNTERS"
EVENTS = ("start", "ready", "enter", "exit", "step", "error", "done")
LAST_WORDS = frozenset({"ready", "error", "done"})
"""Events sent once, for which the sender waits until the pipe has space."""

COUNTER_BYTES = 8
"""Size, in bytes, of a rank's counter in the file of counters."""

_last = ("", "", time.monotonic(), 0.0)  # event, operation, time, announced within_s
_counted = memoryview(bytearray(COUNTER_BYTES)).cast("q")  # last result of counter()

_LONGEST_TEXT = 700  # characters of one field, so that a line fits the pipe
_PATIENCE_S = 0.2


def send(
    event: str, operation: str = "", *, within_s: float = 0.0, **fields: Any
) -> None:
    """Send a heartbeat to the supervisor.

    Never raises and never blocks the caller, except that events in LAST_WORDS wait up
    to 0.2 s for space in the pipe.  Without a supervisor, or after it has ended, it
    does nothing.

    ``event`` is one of EVENTS: "enter" and "exit" surround an operation, whose name is
    shown to the user in an error message; "error" has a field ``message``, the reason
    of this rank's failure, and a field ``cause``: "mismatch" (received data differ from
    those expected), "own" (an error of this rank) or "peer" (another rank did not
    respond).  ``within_s`` is the longest time until the next heartbeat, if this rank
    starts a long operation without heartbeats, such as writing a file; 0 for the
    default deadline. Further fields are of types that JSON supports; long texts are
    truncated.
    """
    global _last
    _last = event, operation, time.monotonic(), within_s
    if within_s:
        # an operation counted earlier must not end the announced interval
        fields |= {"within_s": within_s, "counted": _counted[0]}
    fd = _pipe()
    if fd is None:
        return
    line = _line(event, operation, fields)
    until = time.monotonic() + (_PATIENCE_S if event in LAST_WORDS else 0.0)
    while True:
        try:
            os.write(fd, line)
            return
        except OSError as error:
            # After the supervisor has ended (EPIPE), the kernel ends this rank.  A full
            # pipe (EAGAIN) loses this line, but must not stop the training.
            left = until - time.monotonic()
            if error.errno != errno.EAGAIN or left <= 0:
                return
            select.select([], [fd], [], left)


def counter() -> memoryview:
    """Return the memory-mapped operation counter of this rank, ``[1]`` int64.

    It is ``2 n + 1`` inside the n-th operation (from 0), ``2 n + 2`` after it.  Without
    a supervisor only this process reads it: :func:`latest`.
    """
    global _counted
    path, first = os.environ.get(COUNTERS), COUNTER_BYTES * _rank()
    own = memoryview(bytearray(COUNTER_BYTES))
    # the supervisor's folder may be gone: then the counters are no longer read
    with contextlib.suppress(OSError, ValueError):
        if path:
            with open(path, "r+b") as file:
                counters = memoryview(mmap.mmap(file.fileno(), 0))
            if len(counters) >= first + COUNTER_BYTES:
                own = counters[first : first + COUNTER_BYTES]
    _counted = own.cast("q")
    return _counted


def supervised() -> bool:
    """Whether a supervisor receives this rank's heartbeats."""
    return _pipe() is not None


class LastHeartbeat(NamedTuple):
    """The last heartbeat and operation count of this process."""

    event: str  # of the last heartbeat, "" before the first
    operation: str
    counted: int  # operations entered and left
    beat_s: float  # time.monotonic() of the last heartbeat
    within_s: float  # announced time to the next heartbeat, 0 for none


def latest() -> LastHeartbeat:
    """Return the last heartbeat and operation count of this process."""
    event, operation, beat_s, within_s = _last
    return LastHeartbeat(event, operation, _counted[0], beat_s, within_s)


def _rank() -> int:
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdecimal() else 0


def _pipe() -> int | None:
    """Return the descriptor of the heartbeat pipe that the supervisor opened.

    None if there is none.  A child of this rank inherits the variable but not the
    descriptor, whose number may be any other file: hence the check of the inode.
    """
    number, _, inode = os.environ.get(PIPE, "").partition(":")
    if not number.isdecimal():
        return None
    try:
        status = os.fstat(int(number))
    except OSError:
        return None
    if not stat.S_ISFIFO(status.st_mode) or str(status.st_ino) != inode:
        return None
    return int(number)


def _line(event: str, operation: str, fields: dict[str, Any]) -> bytes:
    core = {"rank": _rank(), "event": event, "operation": operation[:_LONGEST_TEXT]}
    extra = {
        name: value[:_LONGEST_TEXT] if isinstance(value, str) else value
        for name, value in fields.items()
    }
    try:
        line = json.dumps({**extra, **core}, default=str).encode() + b"\n"
    except (TypeError, ValueError):
        line = b""  # a field that JSON does not support: send the rest
    if not 0 < len(line) <= select.PIPE_BUF:
        line = json.dumps(core).encode() + b"\n"
    return line if len(line) <= select.PIPE_BUF else b"\n"
