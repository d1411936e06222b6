"""Board: one mapped file with the progress of every rank of a host, a row each.

The file is a memfd of one process, which the others open under ``/proc/PID/fd``:
nothing of it is left when they have ended, and a full disk does not matter.  A rank
writes its own row; its supervisor, or the other ranks of the host, read all rows.
"""

from __future__ import annotations

import mmap
import os
import time
from contextlib import suppress
from enum import IntEnum
from typing import cast

import numpy as np
import numpy.typing as npt

ALIVE_NS = 200_000_000
"""Shortest interval between signs of life, in ns; each costs some microseconds."""

PATH = "MOETRAFFIC_BOARD"
"""Variable with the path of the board that the supervisor has made."""

ROW = np.dtype(
    [
        ("position", "<i8"),  # operations entered and left: 2 n + 1 inside the n-th
        ("time_ns", "<i8"),  # of the last note, on the host's monotonic clock
        ("until_ns", "<i8"),  # end of an announced silence; 0 for none
        ("state", "<i8"),  # State
        ("cause", "<i8"),  # Cause of a failure
        ("blames", "<i8"),  # rank at fault, of a failure
        ("done", "<i8"),  # units of work that have ended: iterations, operations
        ("total", "<i8"),  # of so many; 0 if unknown
        ("value", "<f8"),  # the training loss
        ("place", "S200"),  # what the rank does; "": its operation, by position
        ("message", "S800"),  # reason of a failure
    ]
)


class State(IntEnum):
    """State of a rank, in the order of its life."""

    ABSENT = 0
    STARTING = 1
    READY = 2
    FAILED = 3
    DONE = 4


class Cause(IntEnum):
    """Cause of a rank's failure."""

    OWN = 1  # an error of this rank
    PEER = 2  # another rank is lost or late
    MISMATCH = 3  # data or settings of ranks contradict each other


class Board:
    """Rows of ``ranks`` ranks, ``[R]`` of type ROW; mapped, so reading is current."""

    def __init__(self, ranks: int = 1, path: str = "") -> None:
        """Create a board, or open that of another process at a path."""
        if path:
            self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        else:
            self.fd = os.memfd_create("moetraffic-board")
            os.ftruncate(self.fd, ROW.itemsize * ranks)
        self.path = path or f"/proc/{os.getpid()}/fd/{self.fd}"
        self.bytes = memoryview(mmap.mmap(self.fd, 0))
        self.rows: npt.NDArray[np.void] = np.frombuffer(self.bytes, ROW)


class OwnRow:
    """Row of this process's rank.

    ``counter`` is its position, ``[1]`` int64: writing it is no system call.
    """

    def __init__(self, board: Board, rank: int, *, supervised: bool = False) -> None:
        self.rank, self.supervised = rank, supervised  # whether another reads the row
        self._alive_ns = 0
        self._map(board)

    def _map(self, board: Board) -> None:
        first = ROW.itemsize * self.rank
        self.board, self._row = board, board.rows[self.rank : self.rank + 1]
        self.counter = board.bytes[first : first + 8].cast("q")

    @property
    def row(self) -> np.void:
        """Copy of the row."""
        return cast(np.void, self._row[0].copy())

    def note(
        self,
        place: str | None = None,
        state: State | None = None,
        *,
        within_s: float = 0.0,
        **numbers: float,
    ) -> None:
        """Note that this rank goes on: its place, its state, and numbers of the row.

        ``within_s`` announces a silence, such as that of writing a file: the longest
        time until the next note.  What is not given stays, but for the silence.
        """
        now_ns = time.monotonic_ns()
        texts = {} if place is None else {"place": place.encode()}
        states = {} if state is None else {"state": state}
        for name, value in {**numbers, **texts, **states}.items():
            self._row[name] = value  # numpy cuts a text to its field
        self._row["until_ns"] = now_ns + int(within_s * 1e9) if within_s else 0
        self._row["time_ns"] = now_ns

    def alive(self, done: int | None = None) -> None:
        """Note a sign of life, unless there was one within the shortest interval."""
        now_ns = time.monotonic_ns()
        if now_ns - self._alive_ns > ALIVE_NS:
            self._alive_ns = now_ns
            if done is not None:
                self._row["done"] = done
            self.note()

    def fail(
        self,
        message: str,
        cause: Cause = Cause.OWN,
        *,
        place: str | None = None,
        blames: int | None = None,
    ) -> None:
        """Note the failure of this rank, which ends soon; the first one counts."""
        if self._row["state"][0] != State.FAILED:
            self._row["message"], self._row["cause"] = message.encode(), cause
            self._row["blames"] = self.rank if blames is None else blames
            self.note(place, State.FAILED)

    def move(self, board: Board, rank: int) -> None:
        """Write into another board from now on, with what the row contains."""
        board.rows[rank : rank + 1] = self._row
        self.rank = rank
        self._map(board)


def decoded(value: bytes) -> str:
    """Decode a text of a row."""
    return bytes(value).decode(errors="ignore")


_own: OwnRow | None = None


def own() -> OwnRow:
    """Return the row of this process: of the supervisor's board, else a private one."""
    global _own
    if _own is None:
        _own = OwnRow(Board(), 0)
        path, rank = os.environ.get(PATH, ""), os.environ.get("RANK", "")
        # a board inherited from a supervisor that has ended is not there
        with suppress(OSError):
            if path and rank.isdecimal() and int(rank) < len(Board(path=path).rows):
                _own = OwnRow(Board(path=path), int(rank), supervised=True)
    return _own
