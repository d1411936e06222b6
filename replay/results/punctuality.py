"""Punctuality: whether operations were issued when the schedule said so.

An operation's error is its issue minus the time it was due.  Where due times are
*absolute* (pace ``open-loop``), the schedule of a rank is as long as from its first to
its last due time, and a slow network makes operations late.  Otherwise an operation is
due a gap after the end of another: a slow network moves what is due, and the schedule
is what the rank took without its errors, which add up.
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
    """Hold issue times against the schedule.

    Parameters
    ----------
    times
        Every rank's.
    absolute
        Whether nothing that happens moves what is due.

    Returns
    -------
    Punctuality or None
        None where nothing was scheduled.
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
            # the first operation's error is before anything that is counted
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
