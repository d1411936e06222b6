"""Progress: how far the ranks are, how fast, who is late, from their heartbeats."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from moetraffic.launch import Heartbeat

STAGES = {"verify": "verifying", "replay": "replaying"}
"""What a heartbeat calls a pass, and what people read."""

BEHIND = 0.02
"""A rank is late that is behind the first by more than this share of the pass."""

SETTLED_S = 1.0
"""A pass must be on for so long before a rate is told."""


@dataclass
class RankProgress:
    """One rank in one pass."""

    done: int = 0
    of: int = 0
    late_s: float = 0.0  # behind the schedule, as it says itself; 0 without one
    operation: str = ""  # what it did last
    changed_s: float = 0.0  # when it last told


@dataclass
class Progress:
    """All ranks in the pass that is on.

    Parameters
    ----------
    ranks
        How many there are.
    clock
        Seconds that only grow.
    """

    ranks: int
    clock: Callable[[], float] = time.monotonic
    stage: str = ""
    began_s: float = 0.0
    of_rank: list[RankProgress] = field(default_factory=list)
    slowest_us: float = 0.0  # the slowest operation that a rank told of
    slowest: str = ""  # which, and whose

    def take(self, event: Heartbeat) -> bool:
        """Take in a heartbeat; whether it was one of a pass."""
        stage, of = event.fields.get("stage"), event.fields.get("of")
        done = event.fields.get("done")
        if stage not in STAGES or not isinstance(of, int) or not isinstance(done, int):
            return False
        if not 0 <= event.rank < self.ranks:
            return False
        now = self.clock()
        if stage != self.stage:
            # a rank that is still verifying says nothing new of the timed pass
            if self.stage == "replay":
                return False
            self.stage, self.began_s = stage, now
            self.of_rank = [RankProgress() for _ in range(self.ranks)]
        own = self.of_rank[event.rank]
        own.done, own.of, own.changed_s = done, of, now
        own.operation = event.operation or own.operation
        own.late_s = _number(event.fields.get("late_s"))
        took_us = _number(event.fields.get("slowest_us"))
        if took_us > self.slowest_us:
            name = event.fields.get("slowest")
            self.slowest_us = took_us
            self.slowest = (
                f"{name if isinstance(name, str) else '?'}, rank {event.rank}"
            )
        return True

    @property
    def elapsed_s(self) -> float:
        """Since the first heartbeat of the pass."""
        return self.clock() - self.began_s if self.stage else 0.0

    @property
    def done(self) -> int:
        """Operations of the rank that has done fewest."""
        return min((r.done for r in self.of_rank), default=0)

    @property
    def of(self) -> int:
        """Operations of the rank that has most."""
        return max((r.of for r in self.of_rank), default=0)

    @property
    def rate(self) -> float:
        """Operations a second, of the mean rank; 0 where it is not known yet."""
        elapsed = self.elapsed_s
        every = [r.done for r in self.of_rank]
        # the first heartbeats come together, and tell of what was before
        return sum(every) / len(every) / elapsed if elapsed > SETTLED_S else 0.0

    def share(self, rank: int) -> float:
        """What part of its operations a rank has done."""
        own = self.of_rank[rank]
        return own.done / own.of if own.of else 0.0

    @property
    def late(self) -> list[int]:
        """Ranks that are far behind the first, the last first."""
        shares = [self.share(r) for r in range(len(self.of_rank))]
        if not shares:
            return []
        behind = [r for r, s in enumerate(shares) if max(shares) - s > BEHIND]
        return sorted(behind, key=shares.__getitem__)

    def line(self) -> str:
        """All of it in one line of a log."""
        done, of = self.done, self.of
        said = f"{STAGES.get(self.stage, 'starting')}: {done} of {of} operations"
        if self.rate:
            said += f", {self.rate:.4g} a second"
        if self.late:
            said += f", behind: rank {', '.join(map(str, self.late[:4]))}"
        if self.slowest:
            said += f", slowest: {self.slowest_us:.4g} us, {self.slowest}"
        return said


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
