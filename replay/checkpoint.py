"""Times of a replay in files that survive its ranks, from which it is resumed.

Each rank has the times of its runs in memory-mapped files of a folder, written as the
operations end: nothing is written beside the timed pass.  After an abort, iterations
that all ranks had finished are kept, and the other ones run.

Times are those of a host's clock since it was started: the ranks must be on the same
hosts, and these must not have been started again.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Int64
from moetraffic.capture.clock_offset import identity
from moetraffic.errors import ReplayError
from moetraffic.replay.failure import RankError
from moetraffic.replay.plan.program import Plan, Program, Timing
from moetraffic.replay.results.call_times import common
from moetraffic.trace.hdf5.durable import write_whole
from moetraffic.trace.model import CLOCK, UNKNOWN_TIME

COLUMNS = ("issue", "end", "due")
FINISHED = "finished"
"""File in the folder of a replay that has ended."""


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """Where a replay goes on: iterations before, counted over all runs, are kept."""

    kept: int  # iterations that all ranks had finished, in all runs together
    iterations: Int64  # [T] of a run

    @property
    def run(self) -> int:
        """The run that goes on."""
        return self.kept // len(self.iterations)

    @property
    def iteration(self) -> int:
        """Index of its first iteration that is not kept."""
        return self.kept % len(self.iterations)

    def first(self, run: int, plan: Plan, program: Program) -> int:
        """Return the number of a rank's operations that are kept in a run."""
        if run != self.run:
            return len(program) if run < self.run else 0
        when = plan.iteration[program.operation]
        return int(np.searchsorted(when, self.iterations[self.iteration]))

    def sentence(self, runs: int) -> str:
        """State where the replay was resumed, and what is from before; empty if new."""
        if not self.kept:
            return ""
        whole = f"{self.kept} of {runs * len(self.iterations)} iterations are from "
        if self.run == runs:
            return f"resumed after the last run: {whole}before"
        return (
            f"resumed at iteration {int(self.iterations[self.iteration])} of run "
            f"{self.run + 1} of {runs}: {whole}before, measured under the conditions "
            "of that time"
        )


class Checkpoint:
    """Files of one rank in the folder of a replay that can be resumed.

    Raises
    ------
    ReplayError
        If the folder has a replay that has ended, or cannot be written.
    RankError
        If it has the times of another replay, or of another clock.
    """

    def __init__(
        self, folder: Path, plan: Plan, rank: int, settings: str, runs: int
    ) -> None:
        self._folder, self._rank = folder, rank
        self._program = plan.programs[rank]
        self._iterations = np.unique(plan.iteration)
        self._plan = plan
        self._runs = runs
        self._clocks = folder / f"rank-{rank}.clocks"
        known = {
            "replay": f"{plan.digest} {settings}",
            "clock": f"{socket.gethostname()} {identity()}",
        }
        path = folder / f"rank-{rank}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / FINISHED).exists():
                raise ReplayError(
                    f"the replay in {folder} has ended: give --resume another folder, "
                    "or remove this one"
                )
            if path.exists():
                self._compare(json.loads(path.read_text()), known)
            else:
                write_whole(path, json.dumps(known).encode())
        except (OSError, ValueError) as error:
            raise ReplayError(
                f"{folder} cannot hold the times of a replay that can be resumed "
                f"({error}): give --resume another folder"
            ) from None

    def _compare(self, before: dict[str, str], now: dict[str, str]) -> None:
        reasons = {
            "replay": "a replay of another trace, or with other options: resume with "
            "those of the replay that was aborted, or give --resume another folder",
            "clock": "another host, or of this one before it was started again, whose "
            "clock is not comparable: give --resume another folder",
        }
        for name, remedy in reasons.items():
            if before.get(name) != now[name]:
                raise RankError(
                    f"finds times in {self._folder} that are of {remedy}",
                    rank=self._rank,
                    operation="start-up",
                )

    def times(self, run: int) -> Int64:
        """Return issue, end and due time of each operation in a run, ``[3, N]`` ns."""
        path = self._folder / f"rank-{self._rank}.run-{run}.npy"
        shape = (len(COLUMNS), len(self._program))
        if path.exists():
            found = np.lib.format.open_memmap(path, "r+")
            if found.shape == shape and found.dtype == np.int64:
                return found
        made = np.lib.format.open_memmap(path, "w+", np.dtype(np.int64), shape)
        made[...] = UNKNOWN_TIME
        return made

    def timing(self, run: int) -> Timing:
        """Return the times of a run that is kept."""
        issue, end, due = self.times(run)
        operation = self._program.operation
        return Timing(operation=operation, issue=issue, start=issue, end=end, due=due)

    def finished(self) -> int:
        """Count the iterations that this rank has finished, over all runs."""
        when, each = self._plan.iteration[self._program.operation], self._iterations
        for run in range(self._runs):
            (missing,) = np.nonzero(self.times(run)[1] == UNKNOWN_TIME)
            if len(missing):
                at = int(np.searchsorted(each, when[missing[0]]))
                return run * len(each) + at
        return self._runs * len(each)

    @property
    def clocks(self) -> npt.NDArray[np.void]:
        """Clock offsets that earlier processes measured, ``[n]`` of type CLOCK."""
        held = self._clocks.read_bytes() if self._clocks.exists() else b""
        return np.frombuffer(held, CLOCK, len(held) // CLOCK.itemsize)

    def add_clocks(self, measured: npt.NDArray[np.void]) -> None:
        """Keep measured clock offsets, which rank 0 has."""
        if len(measured):
            with self._clocks.open("ab") as file:
                file.write(measured.tobytes())

    def finish(self) -> None:
        """Mark the replay as ended, on rank 0 after its results are written."""
        write_whole(self._folder / FINISHED, b"")


def joined(
    plan: Plan,
    times: dict[int, Timing],
    clocks: npt.NDArray[np.void],
    at: Resumption,
) -> dict[int, Timing]:
    """Shift the kept iterations of the resumed run to end where the others begin.

    All are shifted by one time on rank 0's clock, so that durations between ranks stay
    as measured, and the pause is in none.
    """
    if not times or at.iteration == 0:
        return times
    resumed = at.iterations[at.iteration]
    kept = {r: plan.iteration[t.operation] < resumed for r, t in times.items()}
    some = [r for r in times if kept[r].any() and not kept[r].all()]
    ends = [common(clocks, r, times[r].end[kept[r]]).max() for r in some]
    begins = [common(clocks, r, times[r].issue[~kept[r]]).min() for r in some]
    if not some:
        return times
    later = int(min(begins)) - int(max(ends))
    found = {}
    for rank, timing in times.items():
        columns = {}
        for name in ("issue", "start", "end", "due"):
            own = getattr(timing, name).copy()
            mine = kept[rank] & (own != UNKNOWN_TIME)
            moved, wanted = own[mine] + later, common(clocks, rank, own[mine]) + later
            for _ in range(3):  # the clocks drift meanwhile
                moved += wanted - common(clocks, rank, moved)
            own[mine] = moved
            columns[name] = own
        found[rank] = replace(timing, **columns)
    return found
