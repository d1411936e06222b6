"""Failures of ranks: errors that name rank and operation, the first failure, the exit.

A process is the parent of ranks, or a rank.  The parent raises its error for the
command line to print.  A rank notes it on its board and exits at once; without a
supervisor (torchrun, srun), the ranks agree on the first failure through the store, and
a thread of each rank watches its deadlines.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NoReturn, TypeVar

from moetraffic.errors import Interrupted, MoetrafficError, ReplayError
from moetraffic.launch.blame import (
    AFTERMATH,
    Namer,
    RankEnd,
    first_failure,
    operation,
    process_state,
)
from moetraffic.launch.board import Cause, State, decoded, own
from moetraffic.launch.environment import RankEnvironment
from moetraffic.report.console.terminal import refuse, say

if TYPE_CHECKING:
    from .agree import Meeting

EXIT_ERROR = 2  # after an error message
EXIT_UNEXPECTED = 1  # after a traceback

GRACE_S = 3.0
"""Time in which other ranks of a host report, or end, after one has failed."""
POLL_S = 0.05

T = TypeVar("T")

_LONGEST = 300  # maximum characters quoted from another library's message
_DECORATION = re.compile(r"^\[[^\]]*\.cc:\d+\] |[.] This is typically caused by .*$")
"""Source line and general advice that gloo adds to its messages."""


class RankError(ReplayError):
    """Error of one rank; its message completes "rank 2 at operation 7 ..."."""

    def __init__(
        self,
        message: str,
        *,
        rank: int,
        operation: str,
        cause: Cause = Cause.OWN,
        reporter: int = 0,
    ) -> None:
        super().__init__(message)
        self.rank = rank  # at fault: this rank, or the sender of wrong bytes
        self.operation = operation
        self.cause = cause
        self.reporter = reporter  # rank that prints an error known to all of them

    @property
    def reason(self) -> str:
        """Error message without rank and operation."""
        return str(self.args[0])

    def __str__(self) -> str:
        place = f" at {self.operation}" if self.operation else ""
        return f"rank {self.rank}{place} {self.reason}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error message, without gloo's decoration."""
    text = str(error).strip() or type(error).__name__
    return _DECORATION.sub("", text.splitlines()[0])[:_LONGEST]


def backend_error(rank: int, operation: str, error: RuntimeError) -> RankError:
    """Convert an error of the backend to a RankError: usually another rank is lost."""
    line = first_line(error)
    lost = AFTERMATH.search(line) is not None
    message = f"lost another rank: {line}" if lost else line
    cause = Cause.PEER if lost else Cause.OWN
    return RankError(
        message, rank=rank, operation=operation, cause=cause, reporter=rank
    )


@contextlib.contextmanager
def backend_errors(rank: int, operation: str) -> Iterator[None]:
    """Convert errors of the backend in the block to RankErrors with the operation."""
    try:
        yield
    except RuntimeError as error:
        raise backend_error(rank, operation, error) from error


# ---- the first failure -----------------------------------------------------------


@contextlib.contextmanager
def reporting(meeting: Meeting, namer: Namer) -> Iterator[None]:
    """Note errors of the block on the board and, without a supervisor, to all ranks.

    Raises
    ------
    RankError
        Without a supervisor, for any error: naming the rank that failed first, as far
        as it is known.
    """
    try:
        yield
    except Exception as error:
        note_failure(error)
        if own().supervised:
            raise
        raise _first(meeting, error, namer) from error


def note_failure(error: Exception) -> None:
    """Note an error on this rank's row of the board; operations by their position."""
    if isinstance(error, RankError):
        place = error.operation or None
        own().fail(error.reason, error.cause, place=place, blames=error.rank)
    elif isinstance(error, MoetrafficError):
        own().fail(str(error))
    else:
        message = f"{type(error).__name__}: {first_line(error)}"
        lost = isinstance(error, RuntimeError) and AFTERMATH.search(message)
        own().fail(message, Cause.PEER if lost else Cause.OWN)


def _first(meeting: Meeting, error: Exception, namer: Namer) -> RankError:
    """Agree with the other ranks on the first failure; one of them prints it."""
    row = own().row
    place, cause = operation(RankEnd(meeting.rank, row, "running"), namer), row["cause"]
    reason = decoded(row["message"])
    if not isinstance(error, RankError) and cause == Cause.OWN:
        reason = f"failed: {reason}"
    first = RankError(
        reason,
        rank=error.rank if isinstance(error, RankError) else meeting.rank,
        operation=place,
        cause=Cause(int(cause)),
        reporter=meeting.rank,
    )
    own().note(place, within_s=4 * GRACE_S)
    meeting.mark_failed()
    if cause == Cause.PEER:
        first = _culprit(meeting, first, namer)
    else:
        first = meeting.claim(first)
    meeting.linger(first, GRACE_S)
    return first


def _culprit(meeting: Meeting, mine: RankError, namer: Namer) -> RankError:
    """Find the rank that is lost: as reported, on this host, or on another one.

    A killed process closes its connections before it is gone, hence the wait.
    """
    until_s = time.monotonic() + GRACE_S
    while True:
        try:
            if (reported := meeting.failure()) is not None:
                return reported
        except RankError as lost:
            # the store, with the host that served it
            lost.operation, mine = mine.operation, lost
        late = time.monotonic() >= until_s
        ends = [
            RankEnd(rank, own().board.rows[rank].copy(), process_state(pid))
            for rank, pid in meeting.pids.items()
        ]
        ends = [e for e in ends if not e.failed and (late or e.process != "running")]
        if (blame := first_failure(ends, namer)) is not None:
            place = blame.operation or mine.operation
            found = RankError(
                blame.reason, rank=blame.rank, operation=place, reporter=meeting.rank
            )
            return meeting.claim(found)
        if late:
            return meeting.missing(mine, GRACE_S)
        time.sleep(POLL_S)


# ---- exit of a process -----------------------------------------------------------


def run_to_exit(work: Callable[[], T], rank_env: RankEnvironment | None) -> T:
    """Run a function; on failure report the error and, on a rank, exit the process.

    Raises
    ------
    Exception
        In the parent, any error of the work.  A rank exits instead.
    """
    try:
        return work()
    except Interrupted:
        raise  # not a failure
    except KeyboardInterrupt:
        exit_now(128 + signal.SIGINT)
    except Exception as error:
        if rank_env is None:
            raise
        note_failure(error)
        if not isinstance(error, MoetrafficError):
            traceback.print_exc()
            exit_now(EXIT_UNEXPECTED)
        # several ranks find the failure of a peer, of which one prints it
        if not isinstance(error, RankError):
            refuse(str(error))
        elif error.cause != Cause.PEER or rank_env.rank == error.reporter:
            say(f"moetraffic: {error}")
        exit_now(EXIT_ERROR)


def exit_now(code: int) -> NoReturn:
    """Exit at once, as torch may hang or abort on destroying groups of lost ranks."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Watchdog:
    """Thread that ends a rank without a supervisor at its deadlines, or after SIGTERM.

    A blocking call of another library may ignore its own timeout (a TCPStore waits
    forever if another program uses its port), and Python's signal handlers do not run
    in it.  The rank must be READY within ``start_s`` and then go on within
    ``silence_s`` or what it announces; after a signal it has ``grace_s`` to end.
    """

    def __init__(
        self, namer: Namer, *, start_s: float, silence_s: float, grace_s: float
    ) -> None:
        self.namer = namer
        self.start_s, self.silence_s, self.grace_s = start_s, silence_s, grace_s
        self._done = False
        own()  # made here, and not by two threads
        self._signals, wakeup = os.pipe()
        os.set_blocking(wakeup, False)
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
            # no action here: the pipe wakes the thread at once
            signal.signal(signal.SIGTERM, lambda number, frame: None)
        threading.Thread(target=self._watch, daemon=True).start()

    def stop(self) -> None:
        """Stop the thread; signals have their default actions again."""
        self._done = True
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _watch(self) -> None:
        began_s = moved_s = time.monotonic()
        before, end_s, number = own().row, math.inf, 0
        while True:
            if select.select([self._signals], [], [], 0.5)[0]:
                number = os.read(self._signals, 64)[-1]
                end_s = min(end_s, time.monotonic() + self.grace_s)
            row, now_s, why = own().row, time.monotonic(), ""
            if row != before:
                before, moved_s = row, now_s
            ready = row["state"] >= State.READY
            if now_s >= end_s:
                why = f"was asked to end by {signal.Signals(number).name}"
            elif not ready and now_s - began_s > self.start_s:
                why = f"was not ready within {self.start_s:g} s of its start"
            elif (
                ready
                and now_s - moved_s > self.silence_s
                and row["until_ns"] < time.monotonic_ns()
            ):
                why = f"did not go on for {self.silence_s:g} s"
            if self._done:
                return
            if why:
                rank = int(os.environ.get("RANK", "0"))
                place = operation(RankEnd(rank, row, "running"), self.namer)
                reason = f"{why}: look at this rank's host, or raise the timeout"
                with contextlib.suppress(OSError):  # stderr may be closed
                    say(f"moetraffic: {RankError(reason, rank=rank, operation=place)}")
                exit_now(128 + number if now_s >= end_s else EXIT_ERROR)
