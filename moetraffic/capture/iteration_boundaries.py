"""Detect iteration boundaries from explicit steps or optimizer steps.

Calls of ``recorder.step()`` are explicit boundaries.  Otherwise an optimizer step is
the end of an iteration unless calls of the same iteration follow: several optimizers
may step one after another, and reduce or gather parameters in between.  The boundary is
therefore determined by the next calls: a backward pass, an all-to-all or a routing
belongs to the next iteration, as do all calls since the last optimizer step.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class IterationBoundaries:
    """Assigns iteration numbers to the collectives of a rank, in call order."""

    iteration: int = 0
    marked: bool = False  # the program calls step()
    begun: int = 0  # ns, start of this iteration
    _optimizer: tuple[int, int] | None = None  # calls before it, time in ns
    _calls: int = 0

    @property
    def known(self) -> bool:
        """Whether any iteration has ended."""
        return self.iteration > 0 or self._optimizer is not None

    @property
    def unsettled(self) -> int:
        """Number of most recent calls that may belong to the next iteration."""
        return 0 if self._optimizer is None else self._calls - self._optimizer[0]

    def call(self, *, settles: bool) -> tuple[int, int] | None:
        """Count a call, which may show that the current iteration has ended.

        A call ``settles`` if it can only belong to a model's forward or backward pass.
        If an iteration has ended, the result is the number of earlier calls that belong
        to the next iteration, and the time of the end in ns.
        """
        found = self.settle() if settles else None
        self._calls += 1
        return found

    def settle(self) -> tuple[int, int] | None:
        """End the iteration at the last optimizer step, if there was one."""
        if self._optimizer is None:
            return None
        after, when = self._calls - self._optimizer[0], self._optimizer[1]
        self._optimizer = None
        self.iteration += 1
        return after, when

    def optimizer(self, when: int) -> None:
        """Register an optimizer step as a possible end of the iteration."""
        if not self.marked:
            self._optimizer = (self._calls, when)

    def step(self) -> None:
        """End the iteration at an explicit call of ``recorder.step()``."""
        self.marked = True
        self._optimizer = None
        self.iteration += 1
