"""Segment store: the folder to which each rank writes its segments in the background.

The training thread hands over a function that builds a segment, and continues;
building, compressing and writing happen in a background thread.  Write errors do not
interrupt the training: the error is kept, lost windows are counted, and later windows
are tried again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from moetraffic.errors import CaptureError
from moetraffic.files import SEGMENTS, remedy, validate_output

from .segment import PATTERN, Segment, rank_folder, write_segment

COMMITS = "commits"  # file with the positions of a rank's commits in its record log
CLOSED = "closed"  # file that marks the end of a rank's capture
LOCK = "lock"
FORCE = "allow it with force=True (--force)"
RANKS = "rank-[0-9]*"
RECORDS = "records-[0-9]*.log"  # records that are not committed as segments
SMALLEST_LIMIT = 8 << 20
"""Limit on file sizes, in bytes, below which a segment may not fit."""


def segments_folder(path: Path) -> Path:
    """Return the folder of the ranks' segments before they are merged into ``path``."""
    return path.with_name(path.name + SEGMENTS)


def prepare(path: Path, *, force: bool, overwrite: str = FORCE) -> None:
    """Check that a capture can be written, and clear its folder of segments.

    One process calls this for all ranks, before any of them records.  Segments of an
    earlier capture are rejected, of any rank: merging would mix the two captures.
    ``force`` removes them, and ``overwrite`` says how a user allows that, for the
    message.
    """
    validate_output(path, force=force, error=CaptureError, overwrite=overwrite)
    _validate_file_size()
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
            raise _occupied(own)
    earlier = [p for own in folder.glob(RANKS) for p in kept(own)]
    _validate_empty(folder, earlier, force, overwrite)
    try:
        for own in folder.glob(RANKS):
            shutil.rmtree(own)
        remove_empty(folder)
    except OSError as error:
        raise CaptureError(
            f"{folder} cannot be cleared ({error.strerror}): {remedy(error)}"
        ) from None


def file_size_limit() -> int | None:
    """Return the largest size in bytes of a file of this process; None: no limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if limit == resource.RLIM_INFINITY else limit


def _validate_file_size() -> None:
    limit = file_size_limit()
    if limit is not None and limit < SMALLEST_LIMIT:
        raise CaptureError(
            f"a capture needs files of at least {SMALLEST_LIMIT >> 20} MiB, but the "
            f"limit on file sizes is {limit} bytes: raise it with ulimit -f"
        )


def _occupied(own: Path) -> CaptureError:
    return CaptureError(
        f"only one capture can write to a folder at a time, but {own} is in use by a "
        "running one: choose another output"
    )


def _validate_empty(
    folder: Path, earlier: list[Path], force: bool, overwrite: str
) -> None:
    if earlier and not force:
        raise CaptureError(
            f"{folder} holds {len(earlier)} segments of an earlier capture: merge "
            f"them (moetraffic merge {folder}), remove the folder, or {overwrite}"
        )


def kept(own: Path) -> list[Path]:
    """List the files with a rank's records in its folder: segments and record logs."""
    return [path for what in (PATTERN, RECORDS) for path in sorted(own.glob(what))]


def remove_empty(folder: Path) -> None:
    """Delete a folder without segments, unless a rank may still write to it."""
    for own in folder.glob(RANKS):
        if kept(own) or not (own / CLOSED).exists():
            return
    for own in folder.glob(RANKS):
        # another rank may do the same at this moment
        shutil.rmtree(own, ignore_errors=True)
    # files of the user are kept
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def recording(folder: Path) -> list[int]:
    """List the ranks that still write to a folder of segments."""
    own = sorted(folder.glob(RANKS))
    return [int(o.name.rpartition("-")[2]) for o in own if _in_use(o)]


def _in_use(own: Path) -> bool:
    """Return whether a running process has locked a rank's folder."""
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


class RankFolder:
    """Folder of one rank's segments, locked while the rank records.

    ``force`` removes this rank's segments of an earlier capture from ``folder``, the
    folder of all ranks' segments.
    """

    def __init__(self, folder: Path, rank: int, *, force: bool) -> None:
        self.folder = folder
        own = rank_folder(folder, rank)
        try:
            own.mkdir(parents=True, exist_ok=True)
            self.lock = os.open(own / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        except OSError as error:
            raise CaptureError(
                f"a capture needs a folder to write to, but {own} cannot be made "
                f"({error.strerror}): {remedy(error)}"
            ) from None
        try:
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise _occupied(own) from None
            earlier = kept(own)
            _validate_empty(folder, earlier, force, FORCE)
            for path in (*earlier, own / CLOSED, own / COMMITS):
                path.unlink(missing_ok=True)
        except BaseException:
            os.close(self.lock)
            raise

    def leave(self) -> None:
        """Release the lock on the folder."""
        os.close(self.lock)


class SegmentWriter:
    """Writer of a rank's segments that counts write errors and never raises them.

    The rank holds its :class:`RankFolder` in ``folder``, which all ranks share.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.error: str = ""  # the first error, "" for none
        self.lost_windows = 0
        self.unrecorded = 0  # lost events
        self._folder, self._own = folder, rank_folder(folder, rank)

    def write(self, segment: Segment) -> None:
        """Write a segment; a write error does not stop later ones."""
        try:
            write_segment(replace(segment, unrecorded=self.unrecorded), self._folder)
        except OSError as error:
            self.lose(
                f"{self._own} cannot be written ({error.strerror or error})",
                len(segment.events),
            )

    def size(self) -> int:
        """Return the bytes of all segments of the rank."""
        with contextlib.suppress(OSError):  # the folder was removed
            return sum(p.stat().st_size for p in self._own.glob(PATTERN))
        return 0

    def lose(self, why: str, events: int) -> None:
        """Count a lost window, and keep the first error."""
        self.error = self.error or why
        self.lost_windows += 1
        self.unrecorded += events

    def close(self) -> str:
        """Mark the rank's capture as closed; return why that failed, "" on success."""
        try:
            self._own.joinpath(CLOSED).touch()
            remove_empty(self._folder)
        except OSError as error:
            return f"{self._own} cannot be closed ({error.strerror})"
        return ""


class SegmentStore:
    """Background thread that builds and writes the segments of a rank.

    The parameters and errors are those of :class:`RankFolder`.
    """

    def __init__(self, folder: Path, rank: int, *, force: bool) -> None:
        self._place = RankFolder(folder, rank, force=force)
        self.folder, self.writer = folder, SegmentWriter(folder, rank)
        self._thread = ThreadPoolExecutor(1, "moetraffic-commit")
        self._last: Future[None] | None = None

    def commit(self, build: Callable[[], Segment]) -> None:
        """Build and write a segment in the background.

        Waits for the previous segment, so that at most one window is unwritten.
        """
        if self._last is not None:
            self._last.result()
        self._last = self._thread.submit(self._write, build)

    def close(self) -> str:
        """Wait for pending segments, release the folder and mark the capture as closed.

        Returns why that failed, "" on success.
        """
        self._thread.shutdown()
        try:
            return self.writer.close()
        finally:
            self._place.leave()

    def _write(self, build: Callable[[], Segment]) -> None:
        try:
            self.writer.write(build())
        except Exception as error:
            # an error of this package must not end the user's training
            self.writer.lose(f"a window could not be built: {error!r}", 0)
