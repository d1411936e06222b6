"""A rank that cannot go on: which, where, and whether the fault is its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from moetraffic.errors import ReplayError
from moetraffic.launch.root_cause import AFTERMATH

_LONGEST = 300  # characters of another library's message
_ORNAMENT = re.compile(r"^\[[^\]]*\.cc:\d+\] |[.] This is typically caused by .*$")
"""What gloo puts around its message: a source line and general advice."""


class RankError(ReplayError):
    """A rank failed; the message completes the sentence "rank 2 at operation 7 ..."."""

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
        self.rank = rank  # to blame: this rank, or the one that sent what is wrong
        self.operation = operation
        self.cause = cause  # "mismatch", "own" or "peer", as in heartbeat.send
        self.reporter = reporter  # the rank that says what all of them know

    @property
    def reason(self) -> str:
        """The message without rank and operation."""
        return str(self.args[0])

    def __str__(self) -> str:
        at = f" at {self.operation}" if self.operation else ""
        return f"rank {self.rank}{at} {self.reason}"


def first_line(error: BaseException) -> str:
    """An error in one line."""
    text = str(error).strip() or type(error).__name__
    return _ORNAMENT.sub("", text.splitlines()[0])[:_LONGEST]


def lost(rank: int, operation: str, error: RuntimeError) -> RankError:
    """What a backend's error means: mostly that another rank is gone."""
    line = first_line(error)
    peer = AFTERMATH.search(line) is not None
    return RankError(
        f"lost another rank: {line}" if peer else line,
        rank=rank,
        operation=operation,
        cause="peer" if peer else "own",
    )


@contextmanager
def at(rank: int, operation: str) -> Iterator[None]:
    """Inside, an error of the backend becomes one that names rank and operation."""
    try:
        yield
    except RuntimeError as error:
        raise lost(rank, operation, error) from error
