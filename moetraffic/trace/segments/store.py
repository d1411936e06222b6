"""The folder into which a rank commits its segments, in a thread of its own.

The training thread hands over a function that builds a segment and goes on; building,
compressing, writing and synchronizing happen beside it.  When the disk refuses, the
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
from moetraffic.trace.hdf5.durable import SEGMENTS, refuse_output, remedy

from .segment import PATTERN, Segment, rank_folder, write_segment

CLOSED = "closed"  # a rank's last word in its folder
LOCK = "lock"
FORCE = "allow it with force=True (--force)"
RANKS = "rank-[0-9]*"


def segments_folder(path: Path) -> Path:
    """Where the ranks leave their segments until these are merged into ``path``."""
    return path.with_name(path.name + SEGMENTS)


def prepare(path: Path, *, force: bool, overwrite: str = FORCE) -> None:
    """Make sure that a capture can be written, and make room for it.

    One process does this for all ranks, before the first of them records.  What an
    earlier capture left is refused, whichever rank it is of and however many there
    were: merging would take it for this one's.

    Parameters
    ----------
    path
        The trace.
    force
        Remove what an earlier capture left.
    overwrite
        How a user allows it, in words.

    Raises
    ------
    CaptureError
        If the trace cannot be written, or its folder of segments is not free.
    """
    refuse_output(path, force=force, error=CaptureError, overwrite=overwrite)
    folder = segments_folder(path)
    if not folder.exists():
        return
    if not folder.is_dir():
        raise CaptureError(
            f"a capture keeps its segments in {folder}, which is a file: choose "
            "another output"
        )
    for own in folder.glob(RANKS):
        if _in_use(own):
            raise CaptureError(
                f"one capture writes to a folder at a time, but {own} is in use by a "
                "running one: choose another output"
            )
    segments = list(folder.glob(f"{RANKS}/{PATTERN}"))
    if segments and not force:
        raise CaptureError(
            f"{folder} holds {len(segments)} segments of an earlier capture: merge "
            f"them (moetraffic merge {folder}), remove the folder, or {overwrite}"
        )
    try:
        for own in folder.glob(RANKS):
            shutil.rmtree(own)
        remove_empty(folder)
    except OSError as error:
        raise CaptureError(
            f"{folder} cannot be cleared ({error.strerror}): {remedy(error)}"
        ) from None


def remove_empty(folder: Path) -> None:
    """Remove a folder of segments in which no rank has one, nor may still write one."""
    for own in folder.glob(RANKS):
        if any(own.glob(PATTERN)) or not (own / CLOSED).exists():
            return
    for own in folder.glob(RANKS):
        # another rank may do the same at this moment
        shutil.rmtree(own, ignore_errors=True)
    # not ours to remove where a user has put something into it
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def recording(folder: Path) -> list[int]:
    """The ranks that still write to a folder of segments."""
    own = sorted(folder.glob(RANKS))
    return [int(o.name.rpartition("-")[2]) for o in own if _in_use(o)]


def _in_use(own: Path) -> bool:
    """Whether a process that runs records into a rank's folder."""
    try:
        lock = os.open(own / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


PATIENCE_S = 0.25  # how long a step waits for a disk that is slower than training


class RankFolder:
    """A rank's place in a folder of segments, held while it records.

    Parameters
    ----------
    folder
        The folder of all ranks' segments.
    rank
        This rank.
    force
        Remove what an earlier capture of this rank left there.

    Raises
    ------
    CaptureError
        If the folder cannot be made, is in use, or holds an earlier capture.
    """

    def __init__(self, folder: Path, rank: int, *, force: bool) -> None:
        self.folder = folder
        self._own = rank_folder(folder, rank)
        try:
            self._own.mkdir(parents=True, exist_ok=True)
            self.lock = os.open(self._own / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        except OSError as error:
            raise CaptureError(
                f"a capture needs a folder to write to, but {self._own} cannot be "
                f"made ({error.strerror}): {remedy(error)}"
            ) from None
        try:
            self._claim(force)
        except BaseException:
            os.close(self.lock)
            raise

    def leave(self) -> None:
        """Record no more."""
        os.close(self.lock)

    def _claim(self, force: bool) -> None:
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
                f"{FORCE}"
            )
        for old in earlier:
            old.unlink()
        self._own.joinpath(CLOSED).unlink(missing_ok=True)


class SegmentWriter:
    """Writes a rank's segments; what the disk refuses is counted, and never raised.

    Parameters
    ----------
    folder
        The folder of all ranks' segments.
    rank
        This rank, which holds its :class:`RankFolder`.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.error: str = ""  # the first thing that went wrong, "" for nothing
        self.lost_windows = 0
        self._lost_events = 0
        self._folder, self._own = folder, rank_folder(folder, rank)

    def write(self, segment: Segment) -> None:
        """Write a segment; later ones are tried again if this one fails."""
        try:
            write_segment(replace(segment, unrecorded=self._lost_events), self._folder)
        except OSError as error:
            self.lose(
                f"{self._own} cannot be written ({error.strerror or error})",
                len(segment.events),
            )

    def lose(self, why: str, events: int) -> None:
        """Count a window that is lost."""
        self.error = self.error or why
        self.lost_windows += 1
        self._lost_events += events

    def close(self) -> str:
        """Say the rank's last word.

        Returns
        -------
        str
            Why it could not be said, "" where it was.
        """
        try:
            self._own.joinpath(CLOSED).touch()
            remove_empty(self._folder)
        except OSError as error:
            return f"{self._own} cannot be closed ({error.strerror})"
        return ""


class SegmentStore:
    """A rank's folder and writer, with a thread that builds and writes.

    Parameters
    ----------
    folder, rank, force
        As :class:`RankFolder` takes them.

    Raises
    ------
    CaptureError
        As :class:`RankFolder` says.
    """

    def __init__(self, folder: Path, rank: int, *, force: bool) -> None:
        self._place = RankFolder(folder, rank, force=force)
        self.folder, self.writer = folder, SegmentWriter(folder, rank)
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

    def close(self) -> str:
        """Wait until everything handed over is written or given up; leave the folder.

        Returns
        -------
        str
            Why the rank's last word could not be written, "" where it was.
        """
        self._queue.put(None)
        self._thread.join()
        try:
            return self.writer.close()
        finally:
            self._place.leave()

    def _work(self) -> None:
        while (build := self._queue.get()) is not None:
            try:
                self.writer.write(build())
            except Exception as error:
                # a defect of ours must not end a training that is not ours
                self.writer.lose(f"a window could not be built: {error!r}", 0)
            if self._queue.empty():
                self._idle.set()
