"""Detect iteration boundaries from explicit steps or optimizer steps.

Calls of ``recorder.step()`` are explicit boundaries; the first withdraws those of
earlier optimizer steps, which it shows to be parts of its step.  Otherwise an optimizer
step is the end of an iteration unless calls of the same iteration follow: several
optimizers may step one after another, and reduce or gather parameters in between.  The
boundary is therefore determined by the next calls: a backward pass, an all-to-all or a
routing belongs to the next iteration, as do all calls since the last optimizer step.
Optimizers that step within a backward pass end the iteration with that pass.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class IterationBoundaries:
    """Assigns iteration numbers to the collectives of a rank, in call order."""

    iteration: int = 0
    marked: bool = False  # the program calls step()
    begun: int = 0  # ns, start of this iteration
    first: int = 0  # ns, start of the first one
    kind: str = "train"
    """Kind of the iteration that ended last: "skipped" if all its optimizers were."""
    _optimizer: tuple[int, int] | None = None  # calls before it, time in ns
    _in_backward: bool = False  # the last optimizer step was within a backward pass
    _updated: bool = False  # an optimizer of this iteration was not skipped
    _skipped: bool = False  # one was
    _begins: bool = False  # the first iteration begins with a call that settles
    _calls: int = 0
    _first: int = 0  # calls before this iteration

    @property
    def next_whole(self) -> int:
        """First iteration of which no call has been counted yet."""
        return self.iteration + (self._calls > self._first)

    @property
    def known(self) -> bool:
        """Whether any iteration has ended."""
        return self.iteration > 0 or self._optimizer is not None

    @property
    def unsettled(self) -> int:
        """Number of most recent calls that may belong to the next iteration."""
        return 0 if self._optimizer is None else self._calls - self._optimizer[0]

    def call(
        self, when: int, *, settles: bool, in_backward: bool
    ) -> tuple[int, int] | None:
        """Count a call at ``when`` ns, which may show that the iteration has ended.

        A call ``settles`` if it can only belong to a model's forward or backward pass.
        If an iteration has ended, the result is the number of earlier calls that belong
        to the next iteration, and the time of the end in ns.
        """
        if not self.next_whole or (settles and not self._begins and not self.known):
            # set-up, such as DDP's broadcast of parameters, is no part of a step
            self.first, self.begun, self._begins = when, when, settles
        if self._optimizer is not None and self._in_backward and in_backward:
            # of the same backward pass as the optimizer step
            self._calls += 1
            self._optimizer = (self._calls, self._optimizer[1])
            return None
        found = self.settle() if settles else None
        self._calls += 1
        return found

    def settle(self) -> tuple[int, int] | None:
        """End the iteration at the last optimizer step, if there was one."""
        if self._optimizer is None:
            return None
        first, when = self._optimizer
        self._end(first)
        return self._calls - first, when

    def optimizer(
        self, when: int, *, in_backward: bool = False, skipped: bool = False
    ) -> None:
        """Register an optimizer step as a possible end of the iteration.

        ``in_backward`` is whether calls of the same backward pass may follow, and
        ``skipped`` whether the optimizer left the parameters as they are.
        """
        self._skipped |= skipped
        self._updated |= not skipped
        if not self.marked:
            self._optimizer = (self._calls, when)
            self._in_backward = in_backward

    def step(self) -> bool:
        """End the iteration at an explicit call of ``recorder.step()``.

        The result is whether earlier boundaries at optimizer steps are withdrawn: all
        calls so far then belong to this iteration, the first one.
        """
        withdraws = not self.marked and self.iteration > 0
        if withdraws:
            self.iteration = 0
        self.marked = True
        self._end(self._calls)
        return withdraws

    def _end(self, calls: int) -> None:
        self._first = calls
        self.kind = "skipped" if self._skipped and not self._updated else "train"
        self._skipped = self._updated = False
        self._optimizer = None
        self.iteration += 1
