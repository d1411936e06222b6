"""Commit the records that killed ranks have left in their logs."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from moetraffic.errors import CaptureError
from moetraffic.trace.segments.store import LOCK, RANKS, RECORDS

from .commit_file import delete_logs
from .committer_process import PatientWriter
from .log_follower import LogFollower
from .record_log import DamagedLog

PATIENCE_S = 5.0
"""Longest wait, in s, for a committer process that outlives its training."""


def recover(folder: Path, *, patience_s: float = PATIENCE_S) -> list[str]:
    """Commit what is left in the record logs of a folder of segments.

    A rank and its committer process may both have been killed.  Logs of ranks that
    still record after ``patience_s`` are not touched.  Returns why the records of a
    rank could not be committed, a sentence each.
    """
    deadline = time.monotonic() + patience_s
    failures = []
    for own in sorted({path.parent for path in folder.glob(f"{RANKS}/{RECORDS}")}):
        try:
            lock = _lock(own, deadline)
            if lock is None:
                continue
            try:
                _commit(own)
            finally:
                os.close(lock)
        except OSError as error:
            failures.append(
                f"the records that a killed rank left in {own} cannot be read "
                f"({error.strerror})"
            )
        except CaptureError as error:
            failures.append(str(error))
    return failures


def _commit(own: Path) -> None:
    """Commit all records of a rank's log, and delete the log."""
    if not any(own.glob(RECORDS)):
        return  # its committer has done it in the meantime
    writer = PatientWriter(own, None)
    follower = LogFollower(own, writer)
    damaged: DamagedLog | None = None
    try:
        try:
            follower.read()
        except DamagedLog as error:
            damaged = error  # the records before it are kept
        committer = follower.committer
        if committer is not None and not committer.closed:
            committer.close(final=False, whole=damaged is None)
    except CaptureError:
        raise
    except Exception as error:
        # the log may hold anything: a power failure, or another program's file
        raise CaptureError(
            f"the record log in {own} cannot be read ({error!r}): remove it to merge "
            "the segments alone"
        ) from None
    finally:
        follower.close()
    delete_logs(own)
    writer.close()
    if damaged is not None:
        raise damaged


def _lock(own: Path, deadline: float) -> int | None:
    """Lock a rank's folder; None if the rank still records at a deadline."""
    lock = os.open(own / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(lock)
                return None
            time.sleep(0.05)
        else:
            return lock
