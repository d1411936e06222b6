"""The trace that a replay writes: room for it is made sure of, and no time is lost.

A disk may be full all the same when a long replay is done.  Its times cannot be had
again, so they are kept in another folder, and the sentence says where.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from moetraffic.errors import ReplayError, TraceError
from moetraffic.replay.failure import RankError
from moetraffic.replay.plan.program import Plan
from moetraffic.trace.trace import Trace
from moetraffic.units import byte_size

WRITING = "the writing of the trace"
WRITING_S = 900.0
"""Longest time that it may take."""


def check_disk_space(trace: Path, plan: Plan, ranks: int, out: Path) -> None:
    """Refuse an output that the disk has surely no room for.

    It holds the same columns as the trace that is replayed, of the occurrences that
    the plan has.

    Parameters
    ----------
    trace
        The file that is replayed.
    plan
        What is replayed of it.
    ranks
        World size of the trace; a replay on fewer has smaller matrices.
    out
        The file to be written.

    Raises
    ------
    ReplayError
        If less is free in its folder.
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
    """Write the trace, or where that fails keep it in another folder.

    Raises
    ------
    RankError
        If it is not where it was asked for; saying where it is instead.
    """
    try:
        trace.save(out, force=force)
        return
    except TraceError as error:
        why = str(error)
    kept = _keep(trace, out)
    raise RankError(
        f"{why}; the replay is done and its trace "
        + (f"is kept as {kept}" if kept else "could not be kept in any folder"),
        rank=rank,
        operation=WRITING,
        cause="own",
    )


def _keep(trace: Trace, out: Path) -> Path | None:
    for folder in _folders():
        if folder == out.absolute().parent or not os.access(folder, os.W_OK):
            continue
        path = folder / f"{out.stem}-kept-{os.getpid()}{out.suffix}"
        try:
            trace.save(path)
        except TraceError:
            continue  # full as well: the next
        return path
    return None


def _folders() -> Iterator[Path]:
    """Where a file can be kept: on disks that last, then on one in memory."""
    yield Path(tempfile.gettempdir()).absolute()
    yield Path.cwd()
    yield Path.home()
    yield Path("/dev/shm")
