"""How a process of a replay ends: its sentence, its exit code, and no hang at the end.

A process is the parent of ranks, or a rank.  The parent raises what went wrong, for its
command line to say.  A rank says it itself, tells its supervisor, and ends at once.
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
from moetraffic.report.terminal import refuse, say

from .failure import RankError, first_line

EXIT_ERROR = 2
"""Exit code of what ends with a sentence."""
EXIT_UNEXPECTED = 1
"""Exit code of what ends with a traceback."""

T = TypeVar("T")


def run_to_exit(work: Callable[[], T], rank_env: RankEnvironment | None) -> T:
    """Do the work of a process, and end the process if that fails.

    Parameters
    ----------
    work
        What the process is for.
    rank_env
        Which rank the process is; None for the parent of ranks.

    Raises
    ------
    Exception
        In the parent, whatever the work raises.  A rank does not return.
    """
    try:
        return work()
    except Interrupted:
        raise  # nobody failed
    except MoetrafficError as error:
        tell(error)
        if rank_env is None:
            raise
        _say(error, rank_env)
        leave(EXIT_ERROR)
    except KeyboardInterrupt:
        leave(128 + signal.SIGINT)
    except Exception as error:
        tell(error)
        if rank_env is None:
            raise
        traceback.print_exc()
        leave(EXIT_UNEXPECTED)


def told(error: Exception) -> tuple[str, dict[str, Any]]:
    """An error as a heartbeat tells it: the operation, and the fields beside it."""
    if isinstance(error, RankError):
        fields = {"message": error.reason, "cause": error.cause, "blames": error.rank}
        return error.operation, fields
    pulse = heartbeat.latest()
    # in the middle of operations it is the supervisor who knows which
    place = pulse.operation if pulse.event == "start" else ""
    if isinstance(error, MoetrafficError):
        return place, {"message": str(error), "cause": "own"}
    text = f"{type(error).__name__}: {first_line(error)}"
    return place, {"message": text, "cause": "own"}


def tell(error: Exception) -> None:
    """Tell the supervisor, if there is one, what went wrong here."""
    operation, fields = told(error)
    heartbeat.send("error", operation, **fields)


def leave(code: int) -> NoReturn:
    """End at once: torch may abort or hang where it takes down groups of lost ranks."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _say(error: MoetrafficError, rank_env: RankEnvironment) -> None:
    """Say what this rank alone knows; what all ranks meet, one of them says."""
    if not isinstance(error, RankError):
        refuse(str(error))
    elif error.cause != "peer" or rank_env.rank == error.reporter:
        say(f"moetraffic: {error}")
