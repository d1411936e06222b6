"""Select the iterations of a rank that are recorded.

Iterations are recorded whole or not at all, and keep their numbers: every N-th one,
none from the first iteration that begins after a pause until the first one that begins
after it has ended, and none after the maximum size is reached.
"""

from __future__ import annotations

from dataclasses import dataclass

from moetraffic.capture.iteration_boundaries import IterationBoundaries
from moetraffic.units import byte_size

NEVER = -1


@dataclass
class RecordedIterations:
    """Iterations of a rank that are recorded."""

    every: int = 1
    stop: int = NEVER  # first iteration after the maximum size was reached
    _passed: bool = False  # it has calls, which are left out
    _stated: bool = False  # a segment says so
    _paused: int = NEVER  # first iteration of the last pause
    _resumed: int = NEVER  # first iteration after it

    def has(self, iteration: int, *, in_part: bool = False) -> bool:
        """Whether an iteration is recorded: the current or the next one.

        ``in_part``: optimizer steps within it were taken for ends of iterations, so
        that calls are missing where some iterations are not recorded.
        """
        if in_part and (self.every > 1 or self._paused != NEVER):
            return False
        paused = self._paused != NEVER and self._paused <= iteration
        paused &= self._resumed == NEVER or iteration < self._resumed
        stopped = self.stop != NEVER and iteration >= self.stop
        return iteration % self.every == 0 and not paused and not stopped

    def may_have(self, boundaries: IterationBoundaries) -> bool:
        """Whether the last call is of an iteration that is recorded, or may be."""
        iteration, unsettled = boundaries.iteration, boundaries.unsettled > 0
        self._passed |= NEVER < self.stop <= iteration
        return self.has(iteration) or (unsettled and self.has(iteration + 1))

    @property
    def unstated(self) -> bool:
        """Whether no segment says yet that iterations are left out."""
        return self._passed and not self._stated

    def pause(self, iteration: int) -> None:
        """Record no iteration from this one on."""
        if self._paused == NEVER or NEVER < self._resumed < iteration:
            self._paused = iteration
        self._resumed = NEVER

    def resume(self, iteration: int) -> None:
        """Record iterations from this one on."""
        if self._paused != NEVER and self._resumed == NEVER:
            self._resumed = iteration

    def end(self, iteration: int) -> None:
        """Record no iteration from this one on, because of the maximum size."""
        if self.stop == NEVER:
            self.stop = iteration

    def remark(self, most_bytes: int) -> str:
        """State for a segment what the maximum size leaves out, "" for nothing."""
        if not self._passed:
            return ""
        self._stated = True
        return (
            f"iterations from {self.stop} on, because its segments have reached "
            f"{byte_size(most_bytes)}"
        )
