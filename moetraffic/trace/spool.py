"""The folder into which a rank commits its segments, in a thread of its own.

The training thread hands over a function that builds a segment and goes on; building,
compressing, writing and synchronising happen beside it.  When the disk refuses, the
training is not told: the error is kept, the windows that could not be written are
counted, and later windows are tried again.
"""

from __future__ import annotations

import fcntl
import os
import queue
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from moetraffic.errors import CaptureError

from .segment import PATTERN, Segment, rank_folder, write_segment


def segments_folder(path: Path) -> Path:
    """Where the ranks leave their segments until these are merged into ``path``."""
    return path.with_name(path.name + ".segments")


PATIENCE_S = 0.25  # how long a step waits for a disk that is slower than training


class Spool:
    """A rank's place in a folder of segments.

    Parameters
    ----------
    folder
        The folder of all ranks' segments.
    rank, world
        This rank, and how many there are.
    force
        Remove what an earlier capture left there.

    Raises
    ------
    CaptureError
        If the folder cannot be made, is in use, or holds an earlier capture.
    """

    def __init__(self, folder: Path, rank: int, world: int, *, force: bool) -> None:
        self.folder = folder
        self.error: str = ""  # the first thing that went wrong, "" for nothing
        self.lost_windows = 0
        self._lost_events = 0
        self._own = rank_folder(folder, rank)
        try:
            self._own.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(
                self._own / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            )
        except OSError as error:
            raise CaptureError(
                f"a capture needs a folder to write to, but {self._own} cannot be "
                f"made ({error.strerror}): choose another output path"
            ) from None
        try:
            self._claim(rank, world, force)
        except BaseException:
            os.close(self._lock)
            raise
        self._queue: queue.Queue[Callable[[], Segment] | None] = queue.Queue()
        self._idle = threading.Event()  # nothing waits to be written
        self._idle.set()
        self._thread = threading.Thread(
            target=self._work, name="moetraffic-commit", daemon=True
        )
        self._thread.start()

    def commit(self, build: Callable[[], Segment]) -> None:
        """Have a segment built and written in the background.

        Steps that are faster than the disk would leave more unwritten than a window:
        so this waits for the segment before, but never long.
        """
        self._idle.wait(PATIENCE_S)
        self._idle.clear()
        self._queue.put(build)

    def close(self) -> None:
        """Wait until everything handed over is written or given up."""
        self._queue.put(None)
        self._thread.join()
        os.close(self._lock)

    def _claim(self, rank: int, world: int, force: bool) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CaptureError(
                f"one capture writes to a folder at a time, but {self._own} is in use "
                "by a running one: choose another output path"
            ) from None
        earlier = sorted(self._own.glob(PATTERN))
        if earlier and not force:
            raise CaptureError(
                f"{self.folder} holds {len(earlier)} segments of an earlier capture: "
                f"merge them (moetraffic merge {self.folder}), remove the folder, or "
                "give --force"
            )
        for old in earlier:
            old.unlink()
        if rank == 0 and force:
            beyond = [
                f
                for f in self.folder.glob("rank-*")
                if f.name[5:].isdigit() and int(f.name[5:]) >= world
            ]
            for stale in beyond:
                shutil.rmtree(stale)

    def _work(self) -> None:
        while (build := self._queue.get()) is not None:
            self._write(build)
            if self._queue.empty():
                self._idle.set()

    def _write(self, build: Callable[[], Segment]) -> None:
        try:
            segment = build()
        except Exception as error:
            # a defect of ours must not end a training that is not ours
            self._lose(f"a window could not be built: {error!r}", 0)
            return
        try:
            write_segment(replace(segment, unrecorded=self._lost_events), self.folder)
        except OSError as error:
            self._lose(
                f"{self._own} cannot be written ({error.strerror or error})",
                len(segment.events),
            )

    def _lose(self, why: str, events: int) -> None:
        self.error = self.error or why
        self.lost_windows += 1
        self._lost_events += events
