"""Read the segments of a running capture incrementally, each one once.

Only committed segments are read: no lock is taken, and nothing is sent to the ranks.
A poll examines a few paths per rank; it lists a rank's folder only at the beginning and
after lost windows, since a long run has thousands of segments.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import TraceError
from moetraffic.trace.segments.segment import (
    PATTERN,
    Segment,
    read_segment,
    segment_path,
)
from moetraffic.trace.segments.store import CLOSED, RANKS

MOST_HELD = 4
"""Segments of a rank in memory; a rank that is further ahead waits for the others."""

LATE_S = 30.0
"""Time by which the last segment of a rank that has stopped is older than others'."""

AT_ONCE = 64
"""Largest number of steps that are taken at a time, if not fewer are summarized."""


@dataclass(kw_only=True)
class _Rank:
    """State of one rank's segments."""

    number: int
    folder: Path
    begun: bool = False  # a segment was read
    next: int = 0  # index of the next segment
    newest: int = -1  # index of the newest segment when the folder was listed
    seen_ns: int = -1  # modification time of the folder, all of whose files were seen
    written_s: float = 0.0  # modification time of the last segment, or of the folder
    held: list[Segment] = field(default_factory=list)
    first: int = 0  # first iteration that is recorded from its first call on
    last: int = -1  # last iteration that has ended
    broken: set[int] = field(default_factory=set)  # iterations with lost calls
    unmarked: bool = False  # calls before the next segment are lost or of unknown steps


class SegmentReader:
    """Incremental reader of a folder of segments, in steps that all ranks have.

    A step is complete when every rank of the folder has ended it.  A rank that has
    written nothing for 30 s while all others continued is left out after its last
    step.  The folder may not exist yet, and may vanish at any time; reading begins
    ``last`` steps before the newest.
    """

    def __init__(self, folder: Path, last: int) -> None:
        self.folder, self._last = folder, last
        self.restarts = 0  # times that another capture has replaced this one
        self._begin()

    def _begin(self) -> None:
        self._ranks: dict[int, _Rank] = {}
        self._taken = -1  # last iteration that was taken
        self.world = 0  # 0 until a segment was read
        self.virtual = False  # one process represents all ranks
        self.written_s = 0.0  # modification time of the newest segment read
        self.stopped: dict[int, int] = {}  # last step of ranks that are left out
        self.lacking = 0  # steps left out, since a rank's record is incomplete
        self.unreadable: list[str] = []  # reasons, a sentence each
        self.read = 0  # segments

    # ---- state -------------------------------------------------------------------

    @property
    def ranks(self) -> list[int]:
        """Ranks that have a folder, in ascending order."""
        return sorted(self._ranks)

    @property
    def ahead(self) -> int:
        """Steps that the furthest rank has ended after the last step taken."""
        return max((r.last for r in self._ranks.values()), default=-1) - self._taken

    @property
    def marked(self) -> bool:
        """Whether steps are known, or nothing was read yet."""
        return not self.read or any(r.last >= 0 for r in self._ranks.values())

    def closed(self) -> list[int]:
        """Return the ranks whose recording has ended."""
        return [n for n, r in self._ranks.items() if (r.folder / CLOSED).exists()]

    # ---- reading -----------------------------------------------------------------

    def poll(self) -> Iterator[list[Segment]]:
        """Read what is new; yield segments with at most ``last`` complete steps each.

        The segments contain only whole steps, the same ones of every rank, so they
        are merged independently of each other.
        """
        self._find_ranks()
        more = True
        while more:
            more = False
            for rank in self._ranks.values():
                # a step may be longer than many segments
                if len(rank.held) < MOST_HELD or rank.last <= self._taken:
                    more |= self._read_next(rank)
            while taken := self._take():
                more = True
                yield taken

    def _find_ranks(self) -> None:
        # a capture that replaces another one begins with its first segment again
        if any(self._replaced(rank) for rank in self._ranks.values()):
            self._begin()
            self.restarts += 1
        for own in sorted(self.folder.glob(RANKS)):
            number = int(own.name.rpartition("-")[2])
            if number not in self._ranks:
                self._ranks[number] = _Rank(number=number, folder=own)
        for rank in list(self._ranks.values()):
            if not rank.begun and not rank.folder.exists():
                del self._ranks[rank.number]  # it has left the capture to another one

    def _replaced(self, rank: _Rank) -> bool:
        if not rank.begun or self._path(rank, rank.next - 1).exists():
            return False
        there = _indices(rank.folder)
        return bool(there) and there[-1] < rank.next - 1

    def _path(self, rank: _Rank, index: int) -> Path:
        return segment_path(self.folder, rank.number, index)

    def _read_next(self, rank: _Rank) -> bool:
        """Read the next segment of a rank; return whether there was one."""
        try:
            changed_ns = rank.folder.stat().st_mtime_ns
        except OSError:
            return False  # the merge has removed it
        if not rank.begun:
            rank.written_s = changed_ns / 1e9
        index = rank.next
        if not rank.begun or not self._path(rank, index).exists():
            if changed_ns == rank.seen_ns and rank.newest < rank.next:
                return False
            rank.seen_ns = changed_ns
            later = [n for n in _indices(rank.folder) if n >= rank.next]
            rank.newest = later[-1] if later else -1
            if not later:
                return False
            index = later[0] if rank.begun else self._start(rank, later)
        rank.seen_ns = changed_ns
        path = self._path(rank, index)
        try:
            written = path.stat().st_mtime
            segment = read_segment(path)
        except (TraceError, OSError) as error:
            if not path.exists():
                return False  # the merge has removed it
            self.unreadable.append(str(error))
            rank.begun, rank.next, rank.unmarked = True, index + 1, True
            return True
        rank.written_s = written
        self.written_s = max(self.written_s, written)
        self.world, self.read = segment.meta.world, self.read + 1
        self.virtual = segment.shards > 0
        self._note(rank, segment, skipped=index > rank.next)
        rank.begun, rank.next = True, index + 1
        if not rank.unmarked:
            rank.held.append(segment)
        return True

    def _start(self, rank: _Rank, indices: list[int]) -> int:
        """Choose the segment with which to begin, by the steps per segment so far."""
        newest = indices[-1]
        if newest < 2:
            return indices[0]
        try:
            steps = read_segment(self._path(rank, newest)).steps
        except (TraceError, OSError):
            return indices[0]
        ended = int(steps["iteration"].max(initial=-1)) + 1
        if not ended:
            return indices[0]
        back = -(-self._last * (newest + 1) // ended) + 1
        return next(index for index in indices if index >= newest - back)

    def _note(self, rank: _Rank, segment: Segment, *, skipped: bool) -> None:
        """Update the iterations that a rank has recorded as a whole."""
        when = segment.events["iteration"]
        steps = segment.steps["iteration"]
        marked = np.concatenate([when[when >= 0], steps])
        first = int(marked.min()) if len(marked) else -1
        if (skipped or rank.unmarked) and first >= 0:
            # calls before this segment belong to its first iteration
            if segment.continued or rank.unmarked:
                rank.broken.add(first)
            if rank.last < 0:
                rank.first = first + int(first in rank.broken)
        rank.unmarked = bool((when < 0).any()) or (rank.unmarked and first < 0)
        rank.last = max(rank.last, int(steps.max(initial=-1)))

    # ---- steps -------------------------------------------------------------------

    def _take(self) -> list[Segment]:
        """Take the steps that are complete on all ranks; empty if there are none."""
        if not self._ranks:
            return []
        active = self._active()
        if not active or any(r.last < 0 for r in active.values()):
            return []
        until = min(rank.last for rank in active.values())
        begin = max(self._taken + 1, *(rank.first for rank in active.values()))
        if until < begin:
            return []
        until = min(until, begin + min(AT_ONCE, self._last) - 1)
        common: set[int] | None = None
        seen: set[int] = set()
        for rank in active.values():
            mine = {
                step
                for segment in rank.held
                for step in segment.steps["iteration"].tolist()
                if begin <= step <= until
            }
            seen |= mine
            common = mine if common is None else common & mine
        wanted = sorted(
            (common or set()) - set().union(*(r.broken for r in active.values()))
        )
        self.lacking += len(seen) - len(wanted)
        cut = [
            _cut(segment, np.array(wanted, np.int64))
            for _, rank in sorted(active.items())
            for segment in rank.held
        ]
        self._taken = until
        for rank in self._ranks.values():
            rank.held = [s for s in rank.held if _reaches(s) > until]
        chosen = [s for s in cut if len(s.steps) or len(s.events)]
        return chosen if chosen and wanted else self._take()

    def _active(self) -> dict[int, _Rank]:
        """Return the ranks that record on, and note the others."""
        full = [r.last for r in self._ranks.values() if len(r.held) >= MOST_HELD]
        behind = min(full, default=-1)
        for number, rank in self._ranks.items():
            late = self.written_s - rank.written_s > LATE_S and rank.last < behind
            if late and not self._path(rank, rank.next).exists():
                self.stopped[number] = rank.last
            elif rank.last > self._taken:
                self.stopped.pop(number, None)
        return {n: r for n, r in self._ranks.items() if n not in self.stopped}


def _indices(folder: Path) -> list[int]:
    """List the indices of the segments in a rank's folder, in ascending order."""
    before, after = PATTERN.split("*")
    try:
        # without objects for paths: a folder may hold tens of thousands of segments
        names = os.listdir(folder)
    except OSError:
        return []  # the merge has removed it
    ends = [
        name.removeprefix(before).removesuffix(after)
        for name in names
        if name.startswith(before) and name.endswith(after)
    ]
    return sorted(int(end) for end in ends if end.isdigit())


def _reaches(segment: Segment) -> int:
    """Return the last iteration of which a segment has calls or steps."""
    return max(
        int(segment.events["iteration"].max(initial=-1)),
        int(segment.steps["iteration"].max(initial=-1)),
    )


def _cut(segment: Segment, wanted: Int64) -> Segment:
    """Keep the calls and steps of some iterations."""
    when, steps = segment.events["iteration"], segment.steps["iteration"]
    events = segment.events[np.isin(when, wanted)]
    kept = np.isin(steps, wanted)
    begins = len(when) and len(events) and events["iteration"][0] == when[0]
    return replace(
        segment,
        events=events,
        steps=segment.steps[kept],
        kinds=tuple(k for k, keep in zip(segment.kinds, kept, strict=True) if keep),
        continued=segment.continued and bool(begins),
        final=True,
    )
