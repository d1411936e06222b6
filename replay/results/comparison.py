"""Times of a replay's operations by kind, phase and layer, and ratios to baselines.

A ratio is of sums over the operations whose time is known in both.  With several timed
passes (runs) its interval is over these; with one, over its iterations, which are
resampled jointly for both sums.  Times are of the run with the median total.

With row and column sums of an operation's byte matrix, and its transfer time t,

    busbw = (largest row or column sum without the diagonal) / t

which is nccl-tests' busbw for an even all-to-all (doc/PERFORMANCE.md, "Bandwidth"), and
the bandwidth of the busiest rank's link for an uneven one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from moetraffic.analysis.intervals import UNKNOWN, Interval, ratio
from moetraffic.analysis.times.completion import by_iteration, completion, quantiles
from moetraffic.analysis.times.runs import mean_of_runs
from moetraffic.arrays import Float64, Int64
from moetraffic.replay.plan.operations import KINDS, Plan
from moetraffic.trace.model import ALL_TO_ALL, UNKNOWN_TIME
from moetraffic.trace.trace import Trace

from .durations import Durations, Times, parts

Row = dict[str, Any]

Baseline = tuple[str, Float64]
"""Field of Durations that is compared, and the baseline of each operation, [n] s."""

LATE_S = 1e-3
"""Delay after the due time, in s, above which an operation counts as late."""


def median_run(totals_s: Sequence[float]) -> int:
    """Return the run of the median total time; of an even number, the faster one."""
    order = np.argsort(np.asarray(totals_s), kind="stable")
    return int(order[(len(order) - 1) // 2])


def operation_rows(plan: Plan, runs: Sequence[Durations], shown: int) -> list[Row]:
    """List bytes, times, waiting and busbw of each part of the operations.

    Waiting and busbw are means over the runs.  A time below the error of the clocks is
    not determined, and neither is busbw where the mean transfer is; both are NaN.
    """
    own, rows = runs[shown], list[Row]()
    for by, label, selected in parts(plan):
        at = selected[np.isfinite(own.call_s[selected])]
        if not len(at):
            continue
        error = own.error_s[at]
        transfer, call = quantiles(own.transfer_s[at]), quantiles(own.call_s[at])
        busbw = UNKNOWN
        if own.transfer_s[at].sum() >= error.sum():
            sent = plan.bottleneck_bytes.astype(np.float64)
            busbw = over_runs(plan, at, [(run.transfer_s, sent) for run in runs])
        last = np.bincount(own.last[at][own.last[at] >= 0], minlength=1)
        least = float(np.median(error))
        rows.append(
            {
                "by": by,
                "label": label,
                "calls": len(at),
                "bytes": int(plan.total_bytes[at].sum()),
                "bytes_between_ranks": int(plan.network_bytes[at].sum()),
                **{
                    f"transfer_{name}": value if value >= least else math.nan
                    for name, value in vars(transfer).items()
                },
                **{f"call_{name}": value for name, value in vars(call).items()},
                "waiting_in_calls": float(np.mean([run.waiting(at) for run in runs])),
                "busbw": busbw.value,
                "busbw_low": busbw.low,
                "busbw_high": busbw.high,
                "last_rank": int(last.argmax()) if last.any() else -1,
                "last_share": float(last.max() / max(1, last.sum())),
                "undetermined": float((own.transfer_s[at] < error).mean()),
            }
        )
    return rows


def ratio_rows(
    plan: Plan,
    runs: Sequence[Durations],
    baselines: Mapping[str, Baseline],
    bound_s: float = math.nan,
) -> list[Row]:
    """List the ratios of the parts' times to those of baselines, by name.

    And of the passes to their lower bound ``bound_s``; NaN: unknown.
    """
    rows = []
    for by, label, at in parts(plan):
        for name, (field, values) in baselines.items():
            pairs = [(values, getattr(run, field)) for run in runs]
            rows.append(_ratio_row(by, label, name, over_runs(plan, at, pairs), runs))
    of_pass = mean_of_runs([run.pass_s / bound_s for run in runs])
    rows.append(_ratio_row("pass", "", "bound", of_pass, runs))
    return [row for row in rows if not math.isnan(row["ratio"])]


def _ratio_row(
    by: str, label: str, baseline: str, value: Interval, runs: Sequence[Durations]
) -> Row:
    return {
        "by": by,
        "label": label,
        "baseline": baseline,
        "ratio": value.value,
        "ratio_low": value.low,
        "ratio_high": value.high,
        "over": "runs" if len(runs) > 1 else "iterations",
    }


def over_runs(
    plan: Plan, at: Int64, runs: Sequence[tuple[Float64, Float64]]
) -> Interval:
    """Compute the ratio of two sums over operations, over runs or iterations.

    ``runs`` are pairs of ``[n]`` amounts, the second over the first; operations in
    which one is unknown, or the first is 0, are left out.
    """
    sums = []
    for below, above in runs:
        used = at[np.isfinite(below[at]) & np.isfinite(above[at]) & (below[at] > 0)]
        used = used[above[used] > 0]
        when = plan.iteration[used]
        sums.append([by_iteration(values[used], when) for values in (below, above)])
    if len(runs) == 1:
        return ratio(*sums[0])
    totals = np.array([[part.sum() for part in pair] for pair in sums])
    return mean_of_runs(totals[:, 1] / np.where(totals[:, 0] > 0, totals[:, 0], np.nan))


def captured_times(trace: Trace, plan: Plan) -> tuple[Float64, Float64]:
    """Return captured call and transfer times of operations, ``[n]`` s each."""
    calls = completion(trace, kind=None)
    row = np.full(len(trace.occurrences) + 1, -1, np.int64)  # the last: not captured
    row[calls["occurrence"]] = np.arange(len(calls))
    at = row[plan.occurrence]
    call, transfer = (
        np.where(at >= 0, np.append(calls[name], math.nan)[at], math.nan)
        for name in ("call_s", "transfer_s")
    )
    return call, transfer


# ---- schedule, and background traffic ------------------------------------------------


def punctuality(times: Times) -> list[Row]:
    """Compute the deviation of issue times from their due times, over all ranks.

    Empty if nothing is due.
    """
    errors = [(t.issue - t.due)[t.due != UNKNOWN_TIME] for t in times.values()]
    error_s = np.concatenate([np.zeros(0), *errors]) / 1e9
    if not len(error_s):
        return []
    p50, p90, p99, most = np.percentile(np.abs(error_s), [50, 90, 99, 100]).tolist()
    return [
        {
            "calls": len(error_s),
            "error_p50": p50,
            "error_p90": p90,
            "error_p99": p99,
            "error_max": most,
            "error_mean": float(error_s.mean()),
            "late_calls": int((error_s > LATE_S).sum()),
        }
    ]


def slowdown_rows(plan: Plan, trials: Sequence[Sequence[Float64]]) -> list[Row]:
    """List the slowdown of all-to-alls by background traffic, with its intervals.

    A trial has the transfer times ``[n]`` s of three passes that follow each other:
    without the traffic, with it, and with its smallest legal sizes.  The first two rows
    are over the pass without; the third, "bytes", is with over smallest, over trials.
    """
    rows = np.flatnonzero(plan.kind == KINDS.index(ALL_TO_ALL))
    found = dict[str, Interval]()
    for number, name in ((1, "with"), (2, "smallest")):
        sums = list[list[Float64]]()
        for trial in trials:
            both = np.stack([trial[0][rows], trial[number][rows]])
            known = np.isfinite(both).all(axis=0)
            when = plan.iteration[rows[known]]
            sums.append([by_iteration(values, when) for values in both[:, known]])
        below, above = (np.concatenate(part) for part in zip(*sums, strict=True))
        found[name] = ratio(below, above)
    found["bytes"] = mean_of_runs(
        [
            float(np.nansum(beside[rows]) / np.nansum(smallest[rows]))
            for _, beside, smallest in trials
        ]
    )
    return [
        {
            "background": name,
            "ratio": value.value,
            "ratio_low": value.low,
            "ratio_high": value.high,
            "over": "trials" if name == "bytes" else "iterations",
        }
        for name, value in found.items()
    ]
