"""Compute the deviation of replayed issue times from their schedule.

An operation's error is its issue time minus its due time.  Where due times are
*absolute* (pace ``open-loop``), the schedule of a rank lasts from its first to its last
due time, and a slow network makes operations late.  Otherwise an operation is due a gap
after the end of another: a slow network delays due times, and the length of the
schedule is the duration on the rank minus its errors, which add up.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from moetraffic.replay.execution.timing import Timing
from moetraffic.trace.model import UNKNOWN_TIME, Float64, Int64

from .fidelity import LATE_S, Punctuality


def punctuality(
    times: Mapping[int, Timing], *, absolute: bool = False
) -> Punctuality | None:
    """Compute the deviation of issue times from the schedule, over all ranks.

    Parameters
    ----------
    times
        Times of every rank.
    absolute
        Whether due times are independent of when operations end.

    Returns
    -------
    Punctuality or None
        None if no operation has a due time.
    """
    errors: list[Int64] = []
    behind = (float("-inf"), -1)
    longest = (float("-inf"), float("nan"), float("nan"))  # off, schedule, took
    for rank, timing in sorted(times.items()):
        known = timing.due != UNKNOWN_TIME
        if not known.any():
            continue
        issue, due = timing.issue[known], timing.due[known]
        error = issue - due
        errors.append(error)
        behind = max(behind, (float(error[-1]) / 1e9, rank))
        took = float(issue.max() - issue.min()) / 1e9
        schedule = float(due.max() - due.min()) / 1e9
        if not absolute:
            # the error of the first operation does not lengthen the replay
            schedule = took - float(error[1:].sum()) / 1e9
        if schedule > 0:
            longest = max(longest, (took / schedule - 1, schedule, took))
    if not errors:
        return None
    every: Float64 = np.concatenate(errors) / 1e9
    p50, p90, p99 = np.percentile(np.abs(every), [50, 90, 99]).tolist()
    return Punctuality(
        scheduled=len(every),
        error_p50_s=p50,
        error_p90_s=p90,
        error_p99_s=p99,
        error_max_s=float(np.abs(every).max()),
        mean_s=float(every.mean()),
        late=int((every > LATE_S).sum()),
        behind_s=behind[0],
        worst_rank=behind[1],
        schedule_s=longest[1],
        took_s=longest[2],
    )
