"""Iterations of a rank, from explicit steps or optimizer steps among its calls.

A program that calls ``step()`` ends its iterations itself; optimizer steps are then
parts of them.  Otherwise an optimizer step ends an iteration unless calls of the same
iteration follow: several optimizers may step one after another, and reduce or gather
parameters in between.  The next all-to-all, routing or backward pass therefore settles
the end: it belongs to the next iteration, as do all calls since the last optimizer
step.  Optimizers that step within a backward pass end the iteration with that pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from moetraffic.arrays import Bool

from .log_format import OPTIMIZER, SKIP, STEP


class Mark(NamedTuple):
    """A record that may end an iteration: STEP, OPTIMIZER or SKIP."""

    kind: int
    calls: int  # number of calls before it
    end: int  # ns
    number: int = 0  # of the step; of a SKIP, iterations left out, or explicit steps
    in_backward: bool = False
    skipped: bool = False  # the optimizer left the parameters as they were
    explicit: bool = False  # of a SKIP: the program's step() ended the iterations


class Ended(NamedTuple):
    """An iteration that has ended."""

    number: int
    calls: int  # number of calls before its end
    end: int  # ns
    skipped: bool  # all its optimizers left the parameters as they were
    recorded: bool = True  # False: not recorded, or only in part
    step: int = -1  # number of the explicit step that ended it


def is_marked(marks: Sequence[Mark]) -> bool:
    """Whether the program ends its iterations itself."""
    return any(mark.kind == STEP or mark.explicit for mark in marks)


def ended_iterations(
    marks: Sequence[Mark],
    settles: Bool,
    in_backward: Bool,
    *,
    marked: bool,
    first: int = 0,
    whole: bool = True,
) -> list[Ended]:
    """Return the iterations that have ended, in order.

    Parameters
    ----------
    marks
        Records that may end an iteration, in order.
    settles
        Calls that can only belong to a model's forward or backward pass, ``[n]``: an
        all-to-all, a routing, a call in a backward pass.
    in_backward
        Calls made while the autograd engine runs, ``[n]``.
    marked
        Whether the program ends its iterations itself, see :func:`is_marked`.
    first
        Number of the first iteration.
    whole
        Whether nothing follows: then a last optimizer step ends an iteration, too.
    """
    if marked:
        return [*_explicit(marks, first)]
    return [*_at_optimizers(marks, settles, in_backward, first, whole=whole)]


def _explicit(marks: Sequence[Mark], first: int) -> Iterator[Ended]:
    number, partial = first, False
    updated = skipped = False
    for mark in marks:
        if mark.kind == OPTIMIZER:
            updated |= not mark.skipped
            skipped |= mark.skipped
        elif mark.kind == SKIP and not mark.explicit:
            # before its first step(), the program's optimizers ended iterations
            partial = True
        elif mark.kind == SKIP:
            number = max(number + 1, mark.number)
            yield Ended(number - 1, mark.calls, mark.end, skipped=False, recorded=False)
            updated = skipped = partial = False
        else:
            number = max(number, mark.number)
            yield Ended(
                *(number, mark.calls, mark.end, skipped and not updated),
                *(not partial, mark.number),
            )
            number += 1
            updated = skipped = partial = False


def _at_optimizers(
    marks: Sequence[Mark],
    settles: Bool,
    in_backward: Bool,
    number: int,
    *,
    whole: bool,
) -> Iterator[Ended]:
    plain = np.flatnonzero(settles & ~in_backward)
    settling = np.flatnonzero(settles)
    backward = np.flatnonzero(in_backward)
    last: Mark | None = None  # optimizer step that may end the iteration
    updated = skipped = False

    def end_of(mark: Mark, until: int) -> tuple[int, bool]:
        """Return the calls before the end at an optimizer step, and if it is settled.

        ``until`` is the number of calls before what comes next.
        """
        after = plain if mark.in_backward else settling
        place = int(np.searchsorted(after, mark.calls))
        stop = int(after[place]) if place < len(after) else len(settles)
        calls = mark.calls
        if mark.in_backward:
            # calls of the same backward pass follow
            before = int(np.searchsorted(backward, min(stop, until)))
            if before and backward[before - 1] >= calls:
                calls = int(backward[before - 1]) + 1
        return calls, stop < until

    for mark in marks:
        if last is not None:
            calls, settled = end_of(last, mark.calls)
            if settled or mark.kind == SKIP:
                yield Ended(number, calls, last.end, skipped and not updated)
                number += 1
                updated = skipped = False
            last = None
        if mark.kind == SKIP:
            number += mark.number
            yield Ended(number - 1, mark.calls, mark.end, skipped=False, recorded=False)
            updated = skipped = False
        else:
            last = mark
            updated |= not mark.skipped
            skipped |= mark.skipped
    if last is not None:
        calls, settled = end_of(last, len(settles))
        if settled or whole:
            yield Ended(number, calls, last.end, skipped and not updated)
