"""Track the progress of the ranks from heartbeats: operations, rate, late ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from moetraffic.launch import Heartbeat

STAGES = {"verify": "verifying", "replay": "replaying"}
"""Displayed names of the passes, by their names in heartbeats."""

BEHIND = 0.02
"""Share of a pass by which a rank that counts as late is behind the fastest."""

SETTLED_S = 1.0
"""Time, in s, after which the rate of a pass is displayed."""


@dataclass
class RankProgress:
    """Progress of one rank in one pass."""

    done: int = 0
    of: int = 0


@dataclass
class Progress:
    """Progress of all ranks in the current pass.

    Parameters
    ----------
    ranks
        Number of ranks.
    clock
        A monotonic clock, s.
    """

    ranks: int
    clock: Callable[[], float] = time.monotonic
    stage: str = ""
    began_s: float = 0.0
    of_rank: list[RankProgress] = field(default_factory=list)
    slowest_us: float = 0.0  # duration of the slowest operation reported
    slowest: str = ""  # its name and rank

    def update(self, event: Heartbeat) -> bool:
        """Update from a heartbeat; return whether it reported progress of a pass."""
        stage, of = event.fields.get("stage"), event.fields.get("of")
        done = event.fields.get("done")
        if stage not in STAGES or not isinstance(of, int) or not isinstance(done, int):
            return False
        if not 0 <= event.rank < self.ranks:
            return False
        if stage != self.stage:
            # ignore ranks that still verify when others are in the timed pass
            if self.stage == "replay":
                return False
            self.stage, self.began_s = stage, self.clock()
            self.of_rank = [RankProgress() for _ in range(self.ranks)]
        self.of_rank[event.rank] = RankProgress(done=done, of=of)
        took_us = event.fields.get("slowest_us")
        if isinstance(took_us, int | float) and took_us > self.slowest_us:
            name = event.fields.get("slowest")
            name = name if isinstance(name, str) else "?"
            self.slowest_us, self.slowest = took_us, f"{name}, rank {event.rank}"
        return True

    @property
    def elapsed_s(self) -> float:
        """Time since the first heartbeat of the pass."""
        return self.clock() - self.began_s if self.stage else 0.0

    @property
    def done(self) -> int:
        """Smallest number of operations that a rank has completed."""
        return min((r.done for r in self.of_rank), default=0)

    @property
    def of(self) -> int:
        """Largest number of operations that a rank has in this pass."""
        return max((r.of for r in self.of_rank), default=0)

    @property
    def rate(self) -> float:
        """Completed operations per second, mean over ranks; 0 if not yet known."""
        elapsed = self.elapsed_s
        every = [r.done for r in self.of_rank]
        # the first heartbeats arrive together and cover what was done before
        return sum(every) / len(every) / elapsed if elapsed > SETTLED_S else 0.0

    def share(self, rank: int) -> float:
        """Return the share of its operations that a rank has completed."""
        own = self.of_rank[rank]
        return own.done / own.of if own.of else 0.0

    @property
    def late(self) -> list[int]:
        """Ranks that are far behind the fastest rank, slowest first."""
        shares = [self.share(r) for r in range(len(self.of_rank))]
        most = max(shares, default=0.0)
        behind = [r for r, s in enumerate(shares) if most - s > BEHIND]
        return sorted(behind, key=shares.__getitem__)

    def line(self) -> str:
        """Format the progress as one line of a log."""
        stage = STAGES.get(self.stage, "starting")
        line = f"{stage}: {self.done} of {self.of} operations"
        if self.rate:
            line += f", {self.rate:.4g} a second"
        if self.late:
            line += f", behind: rank {', '.join(map(str, self.late[:4]))}"
        if self.slowest:
            line += f", slowest: {self.slowest_us:.4g} us, {self.slowest}"
        return line
