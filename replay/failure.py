"""Errors that name the rank and operation at fault, and the exit of a process.

A process is the parent of ranks, or a rank.  The parent raises its error for the
command line to print.  A rank prints it, reports it to its supervisor and exits at
once.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from moetraffic.errors import Interrupted, MoetrafficError, ReplayError
from moetraffic.launch import RankEnvironment, heartbeat
from moetraffic.launch.root_cause import AFTERMATH
from moetraffic.report.console.terminal import refuse, say

EXIT_ERROR = 2  # after an error message
EXIT_UNEXPECTED = 1  # after a traceback

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
        cause: str = "own",
        reporter: int = 0,
    ) -> None:
        super().__init__(message)
        self.rank = rank  # at fault: this rank, or the sender of wrong bytes
        self.operation = operation
        self.cause = cause  # "mismatch", "own" or "peer", as in heartbeat.send
        self.reporter = reporter  # rank that prints an error known to all of them

    @property
    def reason(self) -> str:
        """Error message without rank and operation."""
        return str(self.args[0])

    def __str__(self) -> str:
        at = f" at {self.operation}" if self.operation else ""
        return f"rank {self.rank}{at} {self.reason}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error message, without gloo's decoration."""
    text = str(error).strip() or type(error).__name__
    return _DECORATION.sub("", text.splitlines()[0])[:_LONGEST]


def backend_error(rank: int, operation: str, error: RuntimeError) -> RankError:
    """Convert an error of the backend to a RankError: usually another rank is lost."""
    line = first_line(error)
    peer = AFTERMATH.search(line) is not None
    return RankError(
        f"lost another rank: {line}" if peer else line,
        rank=rank,
        operation=operation,
        cause="peer" if peer else "own",
    )


@contextmanager
def backend_errors(rank: int, operation: str) -> Iterator[None]:
    """Convert errors of the backend in the block to RankErrors with the operation."""
    try:
        yield
    except RuntimeError as error:
        raise backend_error(rank, operation, error) from error


# ---- exit of a process ------------------------------------------------------------


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
        operation, fields = error_fields(error)
        heartbeat.send("error", operation, **fields)
        if rank_env is None:
            raise
        if not isinstance(error, MoetrafficError):
            traceback.print_exc()
            exit_now(EXIT_UNEXPECTED)
        # several ranks find the failure of a peer, of which one prints it
        if not isinstance(error, RankError):
            refuse(str(error))
        elif error.cause != "peer" or rank_env.rank == error.reporter:
            say(f"moetraffic: {error}")
        exit_now(EXIT_ERROR)


def error_fields(error: Exception) -> tuple[str, dict[str, Any]]:
    """Return the operation and fields of the heartbeat that reports an error."""
    if isinstance(error, RankError):
        fields = {"message": error.reason, "cause": error.cause, "blames": error.rank}
        return error.operation, fields
    pulse = heartbeat.latest()
    # during operations the supervisor derives the name from the count
    place = pulse.operation if pulse.event == "start" else ""
    message = f"{type(error).__name__}: {first_line(error)}"
    if isinstance(error, MoetrafficError):
        message = str(error)
    return place, {"message": message, "cause": "own"}


def exit_now(code: int) -> NoReturn:
    """Exit at once, as torch may hang or abort on destroying groups of lost ranks."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
