"""Comparison of a replay with the captured run and with baselines.

Completion times of all operations, of each kind, stream, phase and layer, and of
iterations; their busbw and waiting; and ratios to the baselines (:mod:`.baselines`),
each with a confidence interval from iterations resampled jointly for both
(:mod:`moetraffic.analysis.intervals`).  A ratio is of sums over the operations whose
time is known in both.  Several runs: :mod:`.runs`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.intervals import UNKNOWN, Interval, ratio
from moetraffic.analysis.times.completion import by_iteration, quantiles
from moetraffic.analysis.times.runs import mean_of_runs
from moetraffic.arrays import Float64, Int64
from moetraffic.errors import ReplayError
from moetraffic.replay.plan.program import KINDS, Plan, Timing
from moetraffic.trace.model import ALL_TO_ALL, UNKNOWN_TIME

from .baselines import Baselines
from .call_times import NO_CLOCKS, Measured, measure, parts
from .result import (
    LATE_S,
    Fidelity,
    PartFidelity,
    Punctuality,
)

Times = Mapping[int, Timing]


def audit(
    plan: Plan,
    times: Times,
    measured: Measured,
    *,
    baselines: Baselines | None = None,
    clocks: npt.NDArray[np.void] = NO_CLOCKS,
    absolute: bool = False,
    pairs: Sequence[tuple[Times, Times, Times]] = (),
    captured_wall_s: Mapping[int, float] | None = None,
) -> Fidelity:
    """Compare the durations of a replay with the captured run and other baselines.

    ``absolute`` means that due times are those of a fixed schedule, and ``pairs`` are
    the times of passes without and with dense traffic, and with it but without bytes.
    """
    base = baselines or Baselines()
    found = [
        _part(plan, measured, base, by, label, at)
        for by, label, at in parts(plan)
        if np.isfinite(measured.call_s[at]).any()
    ]
    found.append(_iterations(plan, measured, base.pass_bound_s, captured_wall_s or {}))
    passes = [[measure(plan, t).transfer_s for t in pair] for pair in pairs]
    return Fidelity(
        parts=tuple(found),
        punctuality=punctuality(times, absolute=absolute),
        slowdown=slowdown(plan, [(a, b) for a, b, _ in passes]) if pairs else None,
        control=slowdown(plan, [(a, c) for a, _, c in passes]) if pairs else None,
        slowdown_by_bytes=slowdown_by_bytes(plan, passes) if pairs else None,
        pairs=len(pairs),
        bound_of=base.bound_of,
        bound_exceeded=base.bound_exceeded,
        bound_hosts_match=base.bound_hosts_match,
        pass_bound_s=base.pass_bound_s,
        model_of=base.model_of,
        model_beyond=base.model_beyond,
        clock_error_s=float(clocks["error_ns"].max()) / 1e9 if len(clocks) else 0.0,
        notes=base.notes,
    )


def slowdown(plan: Plan, pairs: Sequence[tuple[Float64, Float64]]) -> Interval:
    """Compute the slowdown of all-to-alls by dense traffic, a ratio of total times.

    Both passes of a pair follow each other, so that other load of the machine affects
    both; iterations are resampled together with their counterpart of the pair.

    ``pairs`` are transfer times of the plan's operations, each ``[n]`` s: of a pass of
    the all-to-alls alone, and of one of all operations.

    It is the sum of the transfer times with dense traffic over the sum without.

    Raises
    ------
    ReplayError
        If there is no pair, or the plan has no all-to-all.
    """
    exchanges = _exchanges(plan)
    if not (len(pairs) and len(exchanges)):
        raise ReplayError(
            "a slowdown is measured from pairs of passes with all-to-alls, but there "
            f"are {len(pairs)} pairs and {len(exchanges)} all-to-alls: replay a trace "
            "that has some, with and without the dense traffic"
        )
    sums: tuple[list[Float64], list[Float64]] = ([], [])
    for pair in pairs:
        taken = _both(exchanges, *pair)
        at, taken = exchanges[np.isfinite(taken[0])], taken[:, np.isfinite(taken[0])]
        for into, call in zip(sums, taken, strict=True):
            into.append(by_iteration(call, plan.iteration[at]))
    without, with_dense = (np.concatenate(s) for s in sums)
    return ratio(without, with_dense)


def slowdown_by_bytes(plan: Plan, pairs: Sequence[Sequence[Float64]]) -> Interval:
    """Compute the slowdown of all-to-alls by the bytes of dense traffic alone.

    ``pairs`` are transfer times, ``[n]`` s, of the three passes of :func:`audit`.  The
    transfer time beside the traffic is divided by that beside its operations without
    bytes, of the same pair; the interval is between pairs
    (:func:`~moetraffic.analysis.times.runs.mean_of_runs`).
    """
    exchanges = _exchanges(plan)
    sums = [np.nansum(_both(exchanges, p[2], p[1]), axis=1) for p in pairs]
    return mean_of_runs([with_bytes / without for without, with_bytes in sums])


def _exchanges(plan: Plan) -> Int64:
    return np.flatnonzero(plan.kind == KINDS.index(ALL_TO_ALL))


def _both(operations: Int64, one: Float64, other: Float64) -> Float64:
    """Transfer times of two passes, ``[2, n]`` s; NaN where one is unknown."""
    taken = np.stack([one[operations], other[operations]])
    return np.where(np.isfinite(taken).all(axis=0), taken, np.nan)


def punctuality(times: Times, *, absolute: bool = False) -> Punctuality | None:
    """Compute the deviation of issue times from the schedule, over all ranks.

    An operation's error is its issue time minus its due time.  Where due times are
    *absolute* (pace ``open-loop``), the schedule of a rank lasts from its first to its
    last due time, and a slow network makes operations late.  Otherwise an operation is
    due a gap after the end of another: a slow network delays due times, and the length
    of the schedule is the duration on the rank minus its errors, which add up.

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


def _part(
    plan: Plan,
    measured: Measured,
    base: Baselines,
    by: str,
    label: str,
    at: Int64,
) -> PartFidelity:
    at = at[np.isfinite(measured.call_s[at])]
    call, transfer = measured.call_s[at], measured.transfer_s[at]
    link_bytes = plan.bottleneck_bytes[at]
    crossed = np.flatnonzero((link_bytes > 0) & (transfer > 0))
    when = plan.iteration[at][crossed]
    busbw = ratio(
        by_iteration(transfer[crossed], when),
        by_iteration(link_bytes[crossed] / 1e9, when),
    )

    def over(baseline: Float64 | None, own: Float64) -> Interval:
        if baseline is None:
            return UNKNOWN
        other = baseline[at]
        both = np.isfinite(other) & (other > 0)
        when = plan.iteration[at][both]
        return ratio(by_iteration(other[both], when), by_iteration(own[both], when))

    return PartFidelity(
        by=by,
        label=label,
        number=len(at),
        total_bytes=int(plan.total_bytes[at].sum()),
        network_bytes=int(plan.network_bytes[at].sum()),
        time_s=quantiles(call),
        transfer_s=quantiles(transfer),
        **_straggler(measured.last[at]),
        waiting=measured.waiting(at),
        busbw_gbs=busbw.value,
        busbw_low_gbs=busbw.low,
        busbw_high_gbs=busbw.high,
        shown_waiting=measured.waiting(at),
        shown_busbw_gbs=busbw.value,
        over_captured=over(base.captured_call_s, call),
        transfer_over_captured=over(base.captured_transfer_s, transfer),
        over_bound=over(base.bound_s, transfer),
        over_ports=over(base.ports_s, transfer),
        over_model=over(base.model_s, transfer),
    )


def _iterations(
    plan: Plan,
    measured: Measured,
    bound_s: float,
    captured_s: Mapping[int, float],
) -> PartFidelity:
    known = np.isfinite(measured.wall_s)
    over = measured.pass_s / bound_s if bound_s > 0 else math.nan
    own, when = measured.wall_s[known], measured.iteration[known]
    before = np.array([captured_s.get(i, np.nan) for i in when.tolist()], np.float64)
    both = np.isfinite(before)
    return PartFidelity(
        by="iteration",
        label="",
        number=len(own),
        total_bytes=int(plan.total_bytes.sum()),
        network_bytes=int(plan.network_bytes.sum()),
        time_s=quantiles(own),
        **_straggler(measured.wall_rank[known]),
        waiting=measured.waiting(),
        shown_waiting=measured.waiting(),
        over_captured=ratio(before[both], own[both]),
        over_bound=Interval(value=over, low=math.nan, high=math.nan),
    )


def _straggler(ranks: Int64) -> dict[str, Any]:
    """Find the most frequent rank and its share; negative ranks are not counted."""
    times = np.bincount(ranks[ranks >= 0], minlength=1)
    if not times.any():
        return {"straggler": -1, "straggler_share": 0.0}
    share = float(times.max() / times.sum())
    return {"straggler": int(times.argmax()), "straggler_share": share}
