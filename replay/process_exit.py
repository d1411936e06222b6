"""Exit of a replay process: report the error, set the exit code, and never hang.

A process is the parent of ranks, or a rank.  The parent raises its error for the
command line to print.  A rank prints it, reports it to its supervisor and exits at
once.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from moetraffic.errors import Interrupted, MoetrafficError
from moetraffic.launch import RankEnvironment, heartbeat
from moetraffic.report.console.terminal import refuse, say

from .failure import RankError, first_line

EXIT_ERROR = 2
"""Exit code after an error message."""
EXIT_UNEXPECTED = 1
"""Exit code after a traceback."""

T = TypeVar("T")


def run_to_exit(work: Callable[[], T], rank_env: RankEnvironment | None) -> T:
    """Run a function; on failure report the error and, on a rank, exit the process.

    Parameters
    ----------
    work
        Work of the process.
    rank_env
        Rank of the process; None for the parent of ranks.

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
