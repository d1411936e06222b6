"""A rank's timed pass: what every way of going through a program shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from moetraffic.launch import heartbeat
from moetraffic.replay.failure import RankError, lost
from moetraffic.replay.plan.program import Plan, Program
from moetraffic.replay.scratch_file import scratch_array
from moetraffic.trace.model import UNKNOWN_TIME, Int64

from .binding import Binder
from .pace import Pace
from .timing import Timing

BEAT_EVERY_NS = 200_000_000
"""A heartbeat costs some microseconds, so not every operation has one."""

LOOKED_AT = 4096
"""Operations that a heartbeat looks at, at most: it is part of the timed pass."""

PREPARED = 1 << 16
"""Operations whose calls are made before the clock runs; a longer program in blocks."""

BLOCK = 4096


class TimedPass:
    """One pass through a program, with its times.

    Parameters
    ----------
    plan, program
        What is replayed, and this rank's part.
    binder
        Makes its calls.
    pace
        When operations are issued.
    meet
        Waits until all ranks are ready.
    counter
        Where operations entered and left are counted.
    passed
        Operations that were counted before.
    """

    def __init__(
        self,
        plan: Plan,
        program: Program,
        binder: Binder,
        pace: Pace,
        meet: Callable[[], None],
        counter: memoryview,
        passed: int,
    ) -> None:
        count = len(program)
        self.plan = plan
        self.program = program
        self.binder = binder
        self.pace = pace
        self.meet = meet
        self.counter = counter
        self.base = 2 * passed  # what the counter stands at when the pass begins
        self.issue: Int64 = scratch_array(count, np.int64, UNKNOWN_TIME)
        self.start = self.issue  # on a host an exchange begins with the call
        self.end: Int64 = scratch_array(count, np.int64, UNKNOWN_TIME)
        if pace.timed:
            self.due: Int64 = scratch_array(count, np.int64, UNKNOWN_TIME)
        else:  # nothing is due: one number stands for all
            self.due = np.broadcast_to(np.int64(UNKNOWN_TIME), (count,))
        self.done = 0  # operations that have ended
        self._beat_ns = 0
        self._told = 0  # operations that heartbeats have looked at

    def iterations(self) -> list[tuple[int, int]]:
        """Where each iteration begins and ends in the program."""
        when = self.plan.iteration[self.program.operation]
        edges = np.flatnonzero(np.diff(when)) + 1
        begins = [0, *edges.tolist()]
        ends = [*edges.tolist(), len(when)]
        return list(zip(begins, ends, strict=True)) if len(when) else []

    def due_after(self, n: int, since_ns: int) -> int:
        """When an operation is due at a pace of gaps, from the end it waits for."""
        gap = int(self.program.gap_ns[n])
        return since_ns + max(0, round(gap * self.pace.factor))

    def alive(self, now_ns: int) -> None:
        """Show from time to time how far this rank is."""
        if now_ns - self._beat_ns > BEAT_EVERY_NS:
            self._beat_ns = now_ns
            self.beat()

    def beat(self) -> None:
        """Show how far this rank is, and what took long since it last did."""
        count = len(self.program)
        heartbeat.send("step", stage="replay", done=self.done, of=count, **self._news())

    def _news(self) -> dict[str, Any]:
        """The slowest operation since the last heartbeat, and how late the last was."""
        begin, self._told = max(self._told, self.done - LOOKED_AT), self.done
        issue, end = self.issue[begin : self.done], self.end[begin : self.done]
        known = end != UNKNOWN_TIME
        if not known.any():
            return {}
        took = np.where(known, end - issue, -1)
        slow = int(took.argmax())
        last = begin + int(np.flatnonzero(known)[-1])
        due = int(self.due[last])
        late_ns = int(self.issue[last]) - due if due != UNKNOWN_TIME else 0
        return {
            "slowest_us": float(took[slow]) / 1e3,
            "slowest": self.plan.name(int(self.program.operation[begin + slow])),
            "late_s": max(late_ns, 0) / 1e9,
        }

    def failure(self, n: int, error: RuntimeError) -> RankError:
        """What an error in the n-th operation means."""
        name = self.plan.name(int(self.program.operation[n]))
        return lost(self.program.rank, name, error)

    def timing(self) -> Timing:
        """When everything happened."""
        return Timing(
            operation=self.program.operation,
            issue=self.issue,
            start=self.start,
            end=self.end,
            due=self.due,
        )
