"""Process that commits the records of a rank, and its start by the training process.

The process follows the rank's record log, and does not use the interpreter lock of the
training.  It ends when the log holds a close message, or when the training has ended.
It does not import torch, and holds one window of records at a time.  On its standard
output it acknowledges what it has committed, a JSON object a line:

- ``committed``: file of the log and offset before which all records are committed
- ``error``: why a segment cannot be written, "" once it has been
- ``closed``: the final report, a dict
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from moetraffic.errors import CaptureError
from moetraffic.files import remedy
from moetraffic.trace.segments.segment import Segment, write_segment
from moetraffic.trace.segments.store import SegmentWriter

from .commit_file import delete_logs
from .log_follower import LogFollower

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from moetraffic.capture.records.committer_process import main
main(sys.argv[2], *map(int, sys.argv[3:]))
"""
OF_ITS_OWN: dict[str, Any] = (
    {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}
)
"""A Ctrl-C must not end the committer, which still writes the records.  In the session
of the training its niceness counts also where sessions share the processors evenly."""
NICENESS = 10  # the training comes first, where both could run
LOOK_S = 0.5  # interval between checks of the log, and whether the training is alive
RING_BYTES = 1 << 20
"""The committer is woken earlier when the log has grown by this much.  Each wake-up
takes a core, and its cache, from the training; many records at once cost a third."""
RETRY_S = 0.5  # interval between attempts to write a segment
LAST_ATTEMPTS = 3  # after the training has ended
EXIT_S = 5.0  # longest wait for its exit after the final report


class CommitterProcess:
    """Committer process of a rank, seen from the training process.

    ``own`` is the rank's folder, with the record log; ``inherited`` are descriptors of
    the folder's lock, and of a file with two int64: the numbers of steps and of
    optimizer steps that the training has ended.
    """

    def __init__(self, own: Path, inherited: tuple[int, int]) -> None:
        self.committed: tuple[int, int] = (0, 0)
        self.progressed = False  # whether it has committed anything
        self.error = ""
        self.report: dict[str, Any] | None = None  # the final one
        self._unread = b""
        self._ringing, self._grown = threading.Lock(), 0
        reader, self._bell = os.pipe()
        os.set_blocking(self._bell, False)
        lock, ends = inherited
        # the import path of this process, which moetraffic and h5py were found in
        paths = [os.path.abspath(p) for p in (*sys.path, str(ROOT))]
        try:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", "-c", PROGRAM, json.dumps(paths)),
                    *(str(own), str(reader), str(ends), str(os.getpid())),
                ],
                pass_fds=(reader, lock, ends),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                **OF_ITS_OWN,
            )
        except OSError as error:
            os.close(self._bell)
            raise CaptureError(
                f"a capture writes from a process of its own, but {sys.executable} "
                f"cannot be started ({error.strerror}): allow it another process"
            ) from None
        finally:
            os.close(reader)
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)

    def ring(self, size: int) -> None:
        """Wake the process if the log, by ``size`` bytes now, has grown by many."""
        self._grown += size
        if self._grown < RING_BYTES:
            return
        self._grown = 0
        # a full pipe has woken it already, and its death is noticed by ended()
        with self._ringing, contextlib.suppress(OSError):
            os.write(self._bell, b".")

    def hang_up(self) -> None:
        """Announce that the log does not grow any more."""
        with self._ringing:
            bell, self._bell = self._bell, -1
            if bell >= 0:
                os.close(bell)

    def receive(self) -> None:
        """Read the acknowledgements that have arrived."""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._output, 1 << 16):
                self._unread += part
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            fields = json.loads(line)
            if "committed" in fields:
                number, offset = fields["committed"]
                self.committed, self.progressed = (number, offset), True
            self.error = fields.get("error", self.error)
            self.report = fields.get("closed", self.report)

    def ended(self) -> str:
        """Return how the process ended, as a participle; "" while it runs."""
        code = self._process.poll()
        if code is None:
            return ""
        self.receive()
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def release(self) -> None:
        """Close this end of its pipes, and reap the process if it has reported."""
        self.hang_up()
        if self._process.stdout is not None:
            self._process.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.0 if self.report is None else EXIT_S)


class TrainingProcess:
    """Training process of a rank, seen from its committer process."""

    def __init__(self, bell: int, ends: int, pid: int) -> None:
        self._bell, self._ends, self._pid = bell, ends, pid
        self.over = False  # the log does not grow any more

    def wait(self, seconds: float) -> None:
        """Wait until the log has grown or the training ends, for a time at most."""
        if self.over:
            time.sleep(seconds)
            return
        ready, _, _ = select.select([self._bell], [], [], seconds)
        rung = bool(ready) and bool(os.read(self._bell, 1 << 16))
        # a child of the training may keep the pipe open
        self.over = not rung and (bool(ready) or os.getppid() != self._pid)

    def steps(self) -> tuple[int, int]:
        """Return the numbers of steps and of optimizer steps that it has ended."""
        words = os.pread(self._ends, 16, 0)
        return (
            int.from_bytes(words[:8], sys.byteorder),
            int.from_bytes(words[8:], sys.byteorder),
        )

    def say(self, **fields: Any) -> None:
        """Send fields to the training process, which may have ended."""
        with contextlib.suppress(OSError):
            os.write(sys.stdout.fileno(), json.dumps(fields).encode() + b"\n")


class Unwritable(CaptureError):
    """Raised if a segment cannot be written, and the training has ended."""


class PatientWriter(SegmentWriter):
    """Writer that repeats a failed write as long as a training runs.

    Meanwhile records accumulate in the log; what cannot be written at the end is left
    there.
    """

    def __init__(self, own: Path, training: TrainingProcess | None) -> None:
        super().__init__(own.parent, int(own.name.rpartition("-")[2]))
        self._training = training
        self._failure = ""

    def write(self, segment: Segment) -> None:
        """Write a segment.

        Raises
        ------
        Unwritable
            If that fails, and the training has ended.
        """
        attempts = 0
        while True:
            try:
                write_segment(
                    replace(segment, unrecorded=self.unrecorded), self._folder
                )
            except OSError as error:
                failure = _unwritable(self._own, error)
                self._report(failure)
                attempts += self._training is None or self._training.over
                if self._training is None or attempts >= LAST_ATTEMPTS:
                    raise Unwritable(failure) from None
                self._training.wait(RETRY_S)
            else:
                self._report("")
                return

    def _report(self, failure: str) -> None:
        if failure != self._failure and self._training is not None:
            self._failure = failure
            self._training.say(error=failure)


def _unwritable(own: Path, error: OSError) -> str:
    """Describe why a rank's folder cannot be used, and what becomes of its records."""
    if not own.is_dir():
        return f"{own} was removed: the records in it are lost"
    return (
        f"{own} cannot be written ({error.strerror}): {remedy(error)}; the last "
        "records remain there"
    )


def main(folder: str, bell: int, ends: int, parent: int) -> None:
    """Commit the records in a rank's folder until the training, ``parent``, has ended.

    ``bell`` is a pipe that is written when the log has grown by many bytes, and closed
    when it does not grow any more; ``ends`` see :class:`CommitterProcess`.
    """
    # signals are for the training; the end of the log ends this process
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    os.nice(NICENESS)
    own, training = Path(folder), TrainingProcess(bell, ends, parent)
    writer, error = PatientWriter(own, training), ""
    try:
        follower = LogFollower(own, writer)
        acknowledged = follower.acknowledged
        while True:
            follower.read()
            if acknowledged != follower.acknowledged:
                acknowledged = follower.acknowledged
                training.say(committed=acknowledged)
            committer = follower.committer
            if committer is None or committer.closed:
                break
            if training.over:
                follower.read()  # what was appended before it ended
                if not committer.closed:
                    committer.close(final=False, ended=training.steps())
                break
            training.wait(LOOK_S)
        delete_logs(own)
    except CaptureError as failure:
        error = str(failure)
    except OSError as failure:
        error = _unwritable(own, failure)
    unclosed = writer.close() if own.is_dir() else ""
    lost = {"error": writer.error, "lost_windows": writer.lost_windows}
    training.say(closed={"unclosed": unclosed, "left": error, **lost})
