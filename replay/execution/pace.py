"""Pace of a replay: due times of operations, and how ranks wait for them.

========== =====================================================================
pace       an operation is due
========== =====================================================================
asap       as soon as the operation it waits for has ended
captured   the captured gap after the operation it waits for has ended
scaled:X   X times the captured gap after that
open-loop  at the captured time after the start, whether or not others have ended
========== =====================================================================

Gaps represent compute.  A *sleep* wakes some tens of microseconds late and frees the
processor; *spin* sleeps until shortly before the due time and then polls the clock,
which is exact; *gemm* multiplies matrices on the GPU for the length of the gap.
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from moetraffic.errors import ReplayError
from moetraffic.replay.backends.requirements import on_gpu
from moetraffic.replay.plan.program import UNKNOWN_GAP, Plan
from moetraffic.replay.plan.selection import blocks
from moetraffic.trace import ROUTING, UNKNOWN_TIME, Trace

SPIN_NS = 200_000
"""Time before the due time, in ns, at which polling the clock replaces sleeping."""

_BLOCK_CELLS = 1 << 20  # whose times are read at once

_NAP_NS = 100_000_000  # longer sleeps are split, so that heartbeats continue


class Schedule(str, enum.Enum):
    """Rule that determines the issue times of operations."""

    ASAP = "asap"
    CAPTURED = "captured"
    SCALED = "scaled"
    OPEN_LOOP = "open-loop"


class Gaps(str, enum.Enum):
    """Way of waiting until an operation is due: sleep, spin or matrix products."""

    SLEEP = "sleep"
    SPIN = "spin"
    GEMM = "gemm"


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Pace of a replay: rule for issue times, gap factor and way of waiting.

    Raises
    ------
    ReplayError
        If the factor is not positive and finite.
    """

    schedule: Schedule = Schedule.ASAP
    factor: float = 1.0  # multiplies the captured gaps of a scaled pace
    gaps: Gaps = Gaps.SPIN

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise ReplayError(
                "the factor of the gaps must be a finite number above 0, but is "
                f"{self.factor:g}: give --pace scaled:0.5, or asap for no gaps"
            )

    def __str__(self) -> str:
        if self.schedule is Schedule.SCALED:
            return f"scaled:{str(self.factor).removesuffix('.0')}"
        return str(self.schedule.value)

    @property
    def timed(self) -> bool:
        """Whether operations have due times."""
        return self.schedule is not Schedule.ASAP

    def validate_source(
        self, trace: Trace, iterations: range | None, backend: str
    ) -> None:
        """Check, before a plan is made, that a trace can be replayed at this pace.

        Raises
        ------
        ReplayError
            If no time of these iterations is known, or the backend has no GPU for
            matrix products.
        """
        if not on_gpu(backend):
            self._validate_gaps("cpu")
        if not self.timed:
            return
        calls = trace.find(iterations=iterations)
        made = np.array([s.operation != ROUTING for s in trace.sites], bool)
        calls = calls[made[trace.occurrences.site[calls]]]
        every = (trace.times(calls[at])[0] for at in blocks(trace, calls, _BLOCK_CELLS))
        if not any((issue != UNKNOWN_TIME).any() for issue in every):
            raise ReplayError(
                f"pace {self} needs the captured times, but {trace.name} has none: "
                "choose --pace asap"
            )

    def _validate_gaps(self, device: str) -> None:
        if self.gaps is Gaps.GEMM and device != "cuda":
            raise ReplayError(
                "gaps are filled with matrix products on a CUDA device, but the "
                f"buffers are on {device}: choose --gaps spin, or --backend nccl"
            )

    def validate(self, plan: Plan, rank: int, *, device: str, timeout_s: float) -> None:
        """Check that the program of a rank can be replayed at this pace.

        Raises
        ------
        ReplayError
            If captured times are unknown, a gap is longer than the timeout, or there
            is no GPU for matrix products.
        """
        self._validate_gaps(device)
        program = plan.programs[rank]
        captured = plan.occurrence[program.operation] >= 0
        if not self.timed or not captured.any():
            return
        open_loop = self.schedule is Schedule.OPEN_LOOP
        times = (program.due_ns if open_loop else program.gap_ns)[captured]
        unknown = int(np.count_nonzero(times == UNKNOWN_GAP))
        if unknown:
            raise ReplayError(
                f"pace {self} needs the captured times, but of {unknown} of "
                f"{len(times)} operations of rank {rank} they are unknown in "
                f"{plan.source}: choose --pace asap"
            )
        waits = np.diff(times, prepend=0) if open_loop else times * self.factor
        longest_s = float(waits.max()) / 1e9
        if longest_s > timeout_s:
            raise ReplayError(
                f"an operation waits at most {timeout_s:g} s for the other ranks, but "
                f"at pace {self} rank {rank} pauses for {longest_s:.3g} s: raise "
                "--timeout, lower --pace scaled:X, or choose other --iterations"
            )


ASAP = Pace()
"""Pace that issues each operation as soon as the one it waits for has ended."""


def parse_pace(text: str, gaps: Gaps = Gaps.SPIN) -> Pace:
    """Parse a pace: asap, captured, scaled:0.5 or open-loop.

    Raises
    ------
    ReplayError
        If the text is none of these.
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
    """Wait on the host until a due time; return ``time.monotonic_ns()`` afterwards.

    ``alive`` is called with the time periodically, for heartbeats.
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
