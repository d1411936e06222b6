"""Detect iteration boundaries from explicit steps or optimizer steps.

A program that calls ``recorder.step()`` says so.  For others an optimizer's step is
the end of an iteration, if nothing of that iteration follows: several optimizers may
step one after another, and reduce or gather parameters in between.  So the end is only
settled by what comes next: a backward pass, an all-to-all or a routing belongs to the
next iteration, and everything since the last optimizer's step with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class IterationBoundaries:
    """Assigns iteration numbers to a rank's calls, in call order."""

    iteration: int = 0
    marked: bool = False  # the program ends its steps itself
    begun: int = 0  # ns, when this iteration began
    _optimizer: tuple[int, int] | None = None  # calls before it, and its time
    _calls: int = field(default=0)

    @property
    def known(self) -> bool:
        """Whether any iteration has ended."""
        return self.iteration > 0 or self._optimizer is not None

    @property
    def unsettled(self) -> int:
        """Number of latest calls that may belong to the next iteration."""
        return 0 if self._optimizer is None else self._calls - self._optimizer[0]

    def call(self, *, settles: bool) -> tuple[int, int] | None:
        """Process a call.

        Parameters
        ----------
        settles
            Whether it can only belong to a model's forward or backward pass.

        Returns
        -------
        tuple of int or None
            Where this settles the end of an iteration: how many calls before this one
            belong to the next iteration already, and when it ended.
        """
        found = None
        if settles and self._optimizer is not None:
            found = self.settle()
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
        """Process an optimizer step."""
        if not self.marked:
            self._optimizer = (self._calls, when)

    def step(self) -> None:
        """Process an explicit end of an iteration."""
        self.marked = True
        self._optimizer = None
        self.iteration += 1
