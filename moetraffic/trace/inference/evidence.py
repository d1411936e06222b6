"""Facts recorded with each call that confirm or contradict what its order implies.

Autograd records the forward passes of a training step, and not those of an evaluation.
A backward call belongs to the step of its forward call, which has the same autograd
sequence number, or whose splits it reverses.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Bool, Int64

from .calls import Calls
from .period import NumberedSteps


def linked_forward(forward: Bool, backward: Bool, link: Int64) -> Int64:
    """Return the last earlier forward call with each backward call's link.

    ``forward`` and ``backward`` are ``[n]`` masks, in call order, ``link`` ``[n]``
    autograd sequence numbers, -1 for none.  The result is ``[n]`` int64, the index of a
    call, -1 where there is none.
    """
    found = np.full(len(link), -1, np.int64)
    last: dict[int, int] = {}
    relevant = (link >= 0) & (forward | backward)
    for at in np.flatnonzero(relevant).tolist():
        number = int(link[at])
        if backward[at]:
            found[at] = last.get(number, -1)
        else:
            last[number] = at
    return found


def recorded_by_autograd(
    forward: Bool, grad: npt.NDArray[Any], of_backward: Int64
) -> Bool:
    """Return a mask of the forward calls that autograd is known to have recorded.

    It has if it was on, or if a backward call follows.  That it was off is no evidence:
    it is off inside an autograd function.  ``forward`` and ``grad`` are ``[n]``, a
    mask, and 1 where autograd was on; ``of_backward`` is ``[n]`` of
    :func:`linked_forward`.
    """
    found = forward & (grad == 1)
    found[of_backward[of_backward >= 0]] = True
    return np.asarray(found, bool)


def contradicted(calls: Calls, steps: NumberedSteps) -> bool:
    """Return whether recorded facts contradict the inferred steps of a rank."""
    table = calls.table
    forward = calls.where([s.direction == "forward" for s in calls.sites])
    backward = calls.where([s.direction == "backward" for s in calls.sites])
    of_backward = linked_forward(forward, backward, table["link"])
    known = recorded_by_autograd(forward & calls.exchange, table["grad"], of_backward)
    evaluated = np.array([k == "evaluation" for k in steps.kinds], bool)[steps.step]
    if (known & evaluated).any():
        return True
    linked = of_backward >= 0
    if (steps.step[of_backward[linked]] != steps.step[linked]).any():
        return True
    # a gradient reverses the splits of a forward call of its own step, if of any, and a
    # recomputed call repeats them
    again = calls.where([s.direction == "recompute" for s in calls.sites])
    own: Counter[tuple[int, ...]] = Counter()
    every: Counter[tuple[int, ...]] = Counter()
    group = np.array([s.group for s in calls.sites], np.int64)[table["site"]]
    for at in np.flatnonzero(calls.exchange & (forward | backward | again)).tolist():
        there, back = calls.share[at].tolist()
        step, of = int(steps.step[at]), int(group[at])
        if forward[at]:
            for kind in (False, True):
                own[kind, step, of, there, back] += 1
                every[kind, of, there, back] += 1
            continue
        splits = (there, back) if again[at] else (back, there)
        mine, any_step = (again[at], step, of, *splits), (again[at], of, *splits)
        if own[mine]:
            own[mine] -= 1
            every[any_step] -= 1
        elif every[any_step]:
            return True
    return False
