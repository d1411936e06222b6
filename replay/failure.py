"""Replay errors that name the rank and operation at fault."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from moetraffic.errors import ReplayError
from moetraffic.launch.root_cause import AFTERMATH

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
        cause: str,
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
