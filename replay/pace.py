"""Pace of a replay: due times of operations, and how ranks wait for them.

========== =====================================================================
pace       an operation is due
========== =====================================================================
asap       as soon as the operation it waits for has ended
captured   the captured gap after the operation it waits for has ended
scaled:X   X times the captured gap after that
open-loop  at the captured time after the start, whether or not others have ended
========== =====================================================================

Gaps represent compute.  A rank sleeps until shortly before the due time and then polls
the clock, which is exact; a device polls its own clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from moetraffic.errors import ReplayError
from moetraffic.spelling import check_choice
from moetraffic.trace.model import UNKNOWN_TIME

from .plan.operations import Plan
from .plan.program import UNKNOWN_GAP, Program

SCHEDULES = ("asap", "captured", "scaled", "open-loop")

SPIN_NS = 200_000
"""Time before the due time, in ns, at which polling the clock replaces sleeping."""

NAP_NS = 100_000_000
"""Longest sleep, in ns: longer ones are split, so that signs of life continue."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Pace of a replay: rule for issue times, and gap factor."""

    schedule: str = "asap"  # of SCHEDULES
    factor: float = 1.0  # multiplies the captured gaps of a scaled pace

    def __post_init__(self) -> None:
        check_choice("a pace", self.schedule, SCHEDULES, ReplayError)
        if not 0 < self.factor < math.inf:
            raise ReplayError(
                "the factor of the gaps must be a finite number above 0, but is "
                f"{self.factor:g}: give --pace scaled:0.5, or asap for no gaps"
            )

    def __str__(self) -> str:
        factor = str(self.factor).removesuffix(".0")
        return self.schedule + f":{factor}" * (self.schedule == "scaled")

    @property
    def timed(self) -> bool:
        """Whether operations have due times."""
        return self.schedule != "asap"

    @property
    def absolute(self) -> bool:
        """Whether due times count from the start, not from the ends of others."""
        return self.schedule == "open-loop"

    def waits_ns(self, program: Program, n: int) -> int:
        """Return the n-th operation's wait, ns from its base; UNKNOWN_GAP for none.

        Its base is the begin of the pass in open loop, else the end of ``after``.
        """
        if self.absolute:
            return int(program.due_ns[n])
        gap_ns = int(program.gap_ns[n]) if self.timed else UNKNOWN_GAP
        return gap_ns if gap_ns == UNKNOWN_GAP else round(gap_ns * self.factor)

    def check_plan(self, plan: Plan) -> None:
        """Check that a time of the plan is known."""
        if self.timed and plan.begin_ns == UNKNOWN_TIME:
            raise ReplayError(
                f"pace {self} needs the captured times, but {plan.source} has none: "
                "choose --pace asap"
            )

    def check_program(self, plan: Plan, program: Program, timeout_s: float) -> None:
        """Check that the times of a rank are known, and no gap exceeds the timeout."""
        captured = plan.occurrence[program.operation] >= 0
        if not self.timed or not captured.any():
            return
        times = (program.due_ns if self.absolute else program.gap_ns)[captured]
        unknown = int(np.count_nonzero(times == UNKNOWN_GAP))
        if unknown:
            raise ReplayError(
                f"pace {self} needs the captured times, but of {unknown} of "
                f"{len(times)} operations of rank {program.rank} they are unknown in "
                f"{plan.source}: choose --pace asap"
            )
        waits = np.diff(times, prepend=0) if self.absolute else times * self.factor
        longest_s = float(waits.max()) / 1e9
        if longest_s > timeout_s:
            raise ReplayError(
                f"an operation waits at most {timeout_s:g} s for the other ranks, but "
                f"at pace {self} rank {program.rank} pauses for {longest_s:.3g} s: "
                "raise --timeout, lower --pace scaled:X, or choose other --iterations"
            )


def parse_pace(text: str) -> Pace:
    """Parse a pace: asap, captured, scaled:0.5 or open-loop."""
    name, colon, number = text.partition(":")
    try:
        factor = float(number) if colon else 1.0
    except ValueError:
        factor = math.nan
    if name not in SCHEDULES or bool(colon) != (name == "scaled") or math.isnan(factor):
        raise ReplayError(
            "the pace is asap, captured, scaled:X with a number X, or open-loop, not "
            f"{text[:40]!r}: choose one"
        )
    return Pace(schedule=name, factor=factor)


def wait_until(due_ns: int, alive: Callable[[], object] | None = None) -> int:
    """Wait on the host until a due time; return ``time.monotonic_ns()`` afterwards.

    ``alive`` is called periodically, for signs of life.
    """
    clock = time.monotonic_ns
    now = clock()
    while (left := due_ns - SPIN_NS - now) > 0:
        time.sleep(min(left, NAP_NS) / 1e9)
        now = clock()
        if left > NAP_NS and alive is not None:
            alive()
    while now < due_ns:
        now = clock()
    return now
