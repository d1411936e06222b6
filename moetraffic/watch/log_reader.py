"""Read the logs of a running capture as they grow, in steps that all ranks have."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import CaptureError
from moetraffic.trace.merge.log_format import State, ranks_of, read_state, state_file
from moetraffic.trace.merge.rank_log import RankLog
from moetraffic.trace.merge.rank_record import RankRecord, no_record
from moetraffic.trace.model import Meta

LATE_S = 30.0
"""Time by which the log of a rank that has stopped is older than another one's."""

SETTLE_S = 1.0
"""Time after the end of a step by which all of its values are in the log.

Losses and counts that a device computes, and ends of calls, follow their records.
"""


@dataclass(kw_only=True)
class _Rank:
    """State, log and record of a rank; its log is read once it has ended a step."""

    inode: int  # of the state
    state: State
    log: RankLog
    written_s: float  # when the log, or else the state, was written
    record: RankRecord  # of what is held of the log
    first: int = -1  # step that was read first
    last: int = -1  # step of which all values are in the log

    def read(self, state: State) -> None:
        """Read what is new in the log, and find the last step that is whole there."""
        closes = state.closed > self.state.closed
        self.state = state
        if not state.steps + state.optimizer_steps:
            return  # calls of unknown steps would fill the memory
        if self.log.read() or closes:
            self.written_s = self.log.written_s
            self.record = self.log.record(whole=bool(state.closed))
        steps, calls = self.record.steps, self.record.calls
        if self.first < 0 and len(steps):
            self.first = int(steps["iteration"][0])
        idle = time.time() - self.written_s > SETTLE_S
        if not (idle or state.closed or self.log.damage):
            newest = calls["issue"].max(initial=steps["end"].max(initial=0))
            steps = steps[steps["end"] <= newest - SETTLE_S * 1e9]
        self.last = int(steps["iteration"].max(initial=self.last))


class LogReader:
    """Incremental reader of a folder of logs.

    A step is complete when every rank of the folder has ended it.  A rank that has
    written nothing for 30 s while others went on is left out after its last step.  The
    folder may not exist yet, and may vanish at any time; reading begins ``last`` steps
    before the newest, or with the newest file of each log.
    """

    def __init__(self, folder: Path, last: int) -> None:
        self.folder, self._last = folder, last
        self._ranks: dict[int, _Rank] = {}
        self._taken = -1  # last step that was taken
        self._joins = True  # a run that may have begun long ago
        self.replaced = False  # another capture has taken the place of this one
        self._lacking = 0  # steps left out, since a rank's record is incomplete
        self._stopped: dict[int, int] = {}  # last step of ranks that are left out
        self._unreadable: dict[int, str] = {}  # reasons by rank, a sentence each

    # ---- state -------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether all ranks have closed their recording."""
        states = [rank.state.closed for rank in self._ranks.values()]
        return bool(states) and all(states)

    def progress(self) -> dict[str, Any]:
        """Return the fields of a snapshot that are about ranks and logs."""
        numbers, ranks = sorted(self._ranks), self._ranks.values()
        written_s = max((rank.written_s for rank in ranks), default=float("nan"))
        read = [rank for rank in ranks if rank.last >= rank.first >= 0]
        log_bytes = sum(rank.log.size / (rank.last + 1 - rank.first) for rank in read)
        return {
            "world": self._world(),
            "ranks": tuple(numbers),
            "closed": tuple(n for n in numbers if self._ranks[n].state.closed),
            "ahead": max((rank.last for rank in ranks), default=-1) - self._taken,
            "idle_s": float(np.maximum(0.0, time.time() - written_s)),
            "log_bytes": log_bytes if read else float("nan"),
        }

    def _world(self) -> int:
        """Return the number of ranks of the run, 0: unknown."""
        return max((r.record.meta.world for r in self._ranks.values()), default=0)

    def notes(self) -> Iterator[str]:
        """State which ranks and steps are left out, a sentence each."""
        yield from self._unreadable.values()
        seen, world = len(self._ranks), self._world()
        if seen and not world:
            yield (
                "steps are unknown: the program marks none so far (recorder.step(), or "
                "an optimizer)"
            )
        if world > seen:
            yield (
                f"{seen} of {world} ranks are seen: loads and bytes are those of these "
                "ranks, as the others have no log in this folder"
            )
        for rank, step in self._stopped.items():
            yield f"rank {rank} has no record after step {step}: later steps lack it"
        if self._lacking:
            yield f"{self._lacking} steps are left out: a rank's record is incomplete"

    # ---- reading -----------------------------------------------------------------

    def poll(self) -> Iterator[list[RankRecord]]:
        """Read what is new; yield records with at most ``last`` complete steps each.

        They contain the same whole steps of every rank, to merge without others.
        """
        self._unreadable.clear()
        for number in ranks_of(self.folder):
            try:
                self._read(number)
            except CaptureError as error:
                self._unreadable[number] = str(error)
            except OSError:
                pass  # the merge has removed it
        if not self.replaced:
            yield from self._take()
        self._joins = False

    def _read(self, number: int) -> None:
        path = state_file(self.folder, number)
        status, state = path.stat(), read_state(path)
        rank = self._ranks.get(number)
        if rank is None:
            rank = self._ranks[number] = _Rank(
                inode=status.st_ino,
                state=state,
                log=RankLog(self.folder, number, newest=True),
                written_s=status.st_mtime,
                record=no_record(number, Meta(world=0), ""),
            )
        counters = zip(state, rank.state, strict=True)
        if rank.inode != status.st_ino or any(new < old for new, old in counters):
            self.replaced = True
            return
        rank.read(state)
        if rank.log.damage:
            self._unreadable[number] = rank.log.damage

    def _take(self) -> Iterator[list[RankRecord]]:
        """Yield the next steps that all ranks have ended."""
        while ranks := self._active():
            until = min(rank.last for rank in ranks)
            if until <= self._taken:
                return
            records = [rank.record for rank in ranks]
            ended = [record.steps["iteration"] for record in records]
            new = [s[(s > self._taken) & (s <= until)].astype(np.int64) for s in ended]
            every = reduce(np.union1d, new)
            # a lost call may be of the iteration of the call before or after it
            gaps = [(r.calls["iteration"], gap) for r in records for gap in r.gaps]
            beside = [calls[max(0, gap - 1) : gap + 1] for calls, gap in gaps]
            lacking = np.concatenate([every[:0], *beside])
            whole = np.setdiff1d(reduce(np.intersect1d, new), lacking)
            if self._joins and self._taken < 0:
                whole = whole[-self._last :]
                every = every[every >= whole.min(initial=until + 1)]
            if len(whole) > self._last:
                whole = whole[: self._last]
                until = int(whole[-1])
            self._lacking += int((every <= until).sum()) - len(whole)
            self._taken = until
            for rank in ranks:
                rank.log.forget(until + 1)
            if len(whole):
                yield [_cut(record, whole) for record in records]

    def _active(self) -> list[_Rank]:
        """Return the ranks whose steps count, and note the others."""
        ranks = sorted(self._ranks.items())
        furthest = max((rank.last for _, rank in ranks), default=-1)
        written_s = max((rank.written_s for _, rank in ranks), default=0.0)
        self._stopped = {}
        for number, rank in ranks:
            late = written_s - rank.written_s > LATE_S and rank.last < furthest
            if (late or rank.log.damage) and rank.last <= self._taken:
                self._stopped[number] = rank.last
        return [rank for number, rank in ranks if number not in self._stopped]


def _cut(record: RankRecord, iterations: Int64) -> RankRecord:
    """Keep the calls and steps of some iterations, which have no gaps."""
    calls, steps = record.calls, record.steps
    return replace(
        record,
        calls=calls[np.isin(calls["iteration"], iterations)],
        steps=steps[np.isin(steps["iteration"], iterations)],
        gaps=(),
    )
