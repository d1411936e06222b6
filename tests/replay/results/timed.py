"""Times of all ranks of a plan, as given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from moetraffic.replay.plan.operations import Plan
from moetraffic.replay.plan.program import Timing
from moetraffic.trace.model import UNKNOWN_TIME


def times_of(plan: Plan, issues: Any, ends: Any) -> dict[int, Timing]:
    """Times given in us by rank and operation, ``[R, n]``."""
    times = {}
    for rank in range(plan.world):
        rows = np.flatnonzero(plan.of_rank(rank))
        issue, end = (np.array(t, np.int64)[rank][rows] * 1000 for t in (issues, ends))
        due = np.full(len(rows), UNKNOWN_TIME, np.int64)
        times[rank] = Timing(operation=rows, issue=issue, end=end, due=due)
    return times


def back_to_back(
    plan: Plan,
    took: Callable[[int, int], int],
    *,
    skew: int = 0,
    orders: Mapping[int, Any] | None = None,
) -> dict[int, Timing]:
    """Times in which rank r needs ``took(r, operation)`` ns, one after another.

    In the plan's order, or in the ``orders`` of the ranks.
    """
    times = {}
    for rank in range(plan.world):
        rows = np.flatnonzero(plan.of_rank(rank))
        if orders is not None:
            rows = orders[rank]
        lasts = np.array([took(rank, row) for row in rows.tolist()], np.int64)
        issue = 10**9 + skew * rank + np.concatenate([[0], np.cumsum(lasts)[:-1]])
        due = np.full(len(rows), UNKNOWN_TIME, np.int64)
        times[rank] = Timing(operation=rows, issue=issue, end=issue + lasts, due=due)
    return times
