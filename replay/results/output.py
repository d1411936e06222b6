"""Files that a replay writes: the replayed trace, fidelity as JSON, metrics.

The disk may be full when a long replay ends.  Its times cannot be measured again, so
the trace is then saved in another folder, which the error message names.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from moetraffic.errors import ReplayError, TraceError
from moetraffic.replay.failure import RankError
from moetraffic.replay.plan.program import Plan
from moetraffic.trace.hdf5.durable import remedy, write_whole
from moetraffic.trace.trace import Trace
from moetraffic.units import byte_size

WRITING = "the writing of the trace"
WRITING_S = 900.0
"""Longest time, in s, that writing the trace may take."""


def write_text(path: Path, text: str, *, mode: int | None = None) -> None:
    """Write a text file atomically; ``mode`` sets its permissions.

    Raises
    ------
    ReplayError
        If the file cannot be written.
    """
    try:
        write_whole(path, text.encode())
        if mode is not None:
            path.chmod(mode)
    except OSError as error:
        raise ReplayError(
            f"{path} cannot be written ({error.strerror}): {remedy(error)}"
        ) from None


def check_disk_space(trace: Path, plan: Plan, ranks: int, out: Path) -> None:
    """Check that the disk has space for the replayed trace.

    The replayed trace holds the same columns as the trace that is replayed, for the
    occurrences in the plan.

    Parameters
    ----------
    trace
        The file that is replayed.
    plan
        Plan of the replay.
    ranks
        World size of the trace; a replay on fewer ranks has smaller matrices.
    out
        The file to write.

    Raises
    ------
    ReplayError
        If the folder has less free space.
    """
    with Trace.open(trace) as opened:
        every = max(1, len(opened.occurrences))
    share = min(1.0, len(plan) / every) * min(1.0, plan.world / ranks) ** 2
    needed = int(trace.stat().st_size * share)
    free = shutil.disk_usage(out.absolute().parent).free
    if needed > free:
        raise ReplayError(
            f"{out} will take about {byte_size(needed)}, but its disk has "
            f"{byte_size(free)} free: make room or choose another folder"
        )


def write(trace: Trace, out: Path, *, force: bool, rank: int) -> None:
    """Write the replayed trace or, if that fails, save it in another folder.

    Raises
    ------
    RankError
        If it could not be written as requested; naming the file it was saved to.
    """
    try:
        trace.save(out, force=force)
        return
    except TraceError as error:
        reason = str(error)
    saved = _save_elsewhere(trace, out)
    raise RankError(
        f"{reason}; the replay is done and its trace "
        + (f"is kept as {saved}" if saved else "could not be kept in any folder"),
        rank=rank,
        operation=WRITING,
        cause="own",
    )


def _save_elsewhere(trace: Trace, out: Path) -> Path | None:
    temporary = Path(tempfile.gettempdir()).absolute()
    # persistent disks first, then one in memory
    for folder in (temporary, Path.cwd(), Path.home(), Path("/dev/shm")):
        if folder == out.absolute().parent or not os.access(folder, os.W_OK):
            continue
        path = folder / f"{out.stem}-kept-{os.getpid()}{out.suffix}"
        try:
            trace.save(path)
        except TraceError:
            continue  # this one is full as well
        return path
    return None
