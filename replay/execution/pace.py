"""When operations are issued, and how the time until then is spent.

========== =====================================================================
pace       an operation is due
========== =====================================================================
asap       at once, when what it waits for has ended
captured   the captured gap after what it waits for has ended
scaled:X   X times the captured gap after that
open-loop  at the captured time after the start, whatever has ended by then
========== =====================================================================

Gaps stand for compute.  A sleep wakes some tens of microseconds late, and leaves the
processor to others; *spin* sleeps until shortly before and then looks at the clock,
which is exact; *gemm* multiplies matrices on the GPU for as long.
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from moetraffic.errors import ReplayError
from moetraffic.replay.plan.program import UNKNOWN_GAP, Plan

SPIN_NS = 200_000
"""How long before the time a sleep ends and the looking at the clock begins."""

_NAP_NS = 100_000_000  # a longer sleep is cut, so that the rank shows that it lives


class Schedule(str, enum.Enum):
    """What an operation's time follows from."""

    ASAP = "asap"
    CAPTURED = "captured"
    SCALED = "scaled"
    OPEN_LOOP = "open-loop"


class Gaps(str, enum.Enum):
    """How the time until an operation is due is spent."""

    SLEEP = "sleep"
    SPIN = "spin"
    GEMM = "gemm"


@dataclass(frozen=True, kw_only=True)
class Pace:
    """When operations are issued.

    Raises
    ------
    ReplayError
        If the factor is not positive and finite.
    """

    schedule: Schedule = Schedule.ASAP
    factor: float = 1.0  # of the captured gaps, where scaled
    gaps: Gaps = Gaps.SPIN

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise ReplayError(
                "gaps are multiplied with a number above 0, but it is "
                f"{self.factor:g}: give --pace scaled:0.5, or asap for no gaps"
            )

    def __str__(self) -> str:
        if self.schedule is Schedule.SCALED:
            return f"scaled:{self.factor:g}"
        return str(self.schedule.value)

    @property
    def timed(self) -> bool:
        """Whether anything is waited for but other operations."""
        return self.schedule is not Schedule.ASAP

    def validate(self, plan: Plan, rank: int, *, device: str, timeout_s: float) -> None:
        """Refuse a pace that this program cannot be replayed at.

        Raises
        ------
        ReplayError
            If the capture's times are not known, a gap is longer than other ranks
            wait, or there is no GPU for matrices.
        """
        if self.gaps is Gaps.GEMM and device != "cuda":
            raise ReplayError(
                "gaps are filled with matrix products on a CUDA device, but the "
                f"buffers are on {device}: choose --gaps spin, or --backend nccl"
            )
        program = plan.programs[rank]
        captured = plan.occurrence[program.operation] >= 0
        if not self.timed or not captured.any():
            return
        open_loop = self.schedule is Schedule.OPEN_LOOP
        told = (program.due_ns if open_loop else program.gap_ns)[captured]
        unknown = int(np.count_nonzero(told == UNKNOWN_GAP))
        if unknown:
            raise ReplayError(
                f"pace {self} needs the captured times, but of {unknown} of "
                f"{len(told)} operations of rank {rank} {plan.source} does not tell "
                "them: choose --pace asap"
            )
        waits = np.diff(told, prepend=0) if open_loop else told * self.factor
        longest_s = float(waits.max()) / 1e9
        if longest_s > timeout_s:
            raise ReplayError(
                f"an operation waits at most {timeout_s:g} s for the other ranks, but "
                f"at pace {self} rank {rank} pauses for {longest_s:.3g} s: raise "
                "--timeout, lower --pace scaled:X, or choose other --iterations"
            )


ASAP = Pace()
"""Each operation when what it waits for has ended."""


def pace(text: str, gaps: Gaps = Gaps.SPIN) -> Pace:
    """A pace as people write it: asap, captured, scaled:0.5, open-loop.

    Raises
    ------
    ReplayError
        If it is none of these.
    """
    name, colon, number = text.partition(":")
    known = {s.value for s in Schedule}
    try:
        factor = float(number) if colon else 1.0
    except ValueError:
        factor = math.nan
    if name not in known or bool(colon) != (name == "scaled") or math.isnan(factor):
        raise ReplayError(
            "the pace is asap, captured, scaled:X with a number X, or open-loop, not "
            f"{text[:40]!r}: choose one"
        )
    return Pace(schedule=Schedule(name), factor=factor, gaps=gaps)


def wait_until(
    due_ns: int, gaps: Gaps, alive: Callable[[int], object] = lambda now_ns: None
) -> int:
    """Let time pass on the host; returns ``time.monotonic_ns()`` after it.

    Parameters
    ----------
    due_ns
        Until when, of ``time.monotonic_ns()``.
    gaps
        Sleep, or sleep and spin.
    alive
        Called with the time now and then.
    """
    clock, early = time.monotonic_ns, 0 if gaps is Gaps.SLEEP else SPIN_NS
    now = clock()
    while (left := due_ns - early - now) > 0:
        time.sleep(min(left, _NAP_NS) / 1e9)
        now = clock()
        if left > _NAP_NS:
            alive(now)
    while now < due_ns:
        now = clock()
    return now
