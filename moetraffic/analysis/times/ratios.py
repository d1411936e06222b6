"""Ratios of the times of the same calls in two runs.

Calls of two traces match if their sites and iterations do: sites are matched by
operation and by the kind and index of their group, so that a run matches its replay on
fewer ranks.  *Waiting* is the share of the members' time in calls before the last
member's issue, and *busbw* the bytes of the busiest link over the transfer time, of
calls with bytes between ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import nan
from typing import Any

import numpy as np

from moetraffic.analysis.claims import SIGNIFICANT
from moetraffic.analysis.intervals import UNKNOWN, Interval, ratio
from moetraffic.arrays import Float64, Int64
from moetraffic.patterns.collectives import sizes, traffic_bytes
from moetraffic.trace import Trace

from .calls import CELLS
from .completion import Calls, by_iteration, completion, parts, quantiles, wall_times
from .runs import mean_of_runs, ratio_of_runs, run_sums

RUNS = ("first", "second")
"""Prefixes of the columns of each run."""


def compare_times(
    a: Trace, b: Trace, *, iterations: range | None = None, seed: int = 0
) -> list[dict[str, Any]]:
    """Compare the times of the same calls in two runs.

    Ratios are of sums over the same calls; iterations are resampled jointly for the
    intervals.  Of a replay of several runs, ratios, waiting and busbw are of all of
    them, with intervals over these (:mod:`.runs`).  Where the runs of two replays are
    not in both traces, or have summed other calls, there is no interval.

    Parameters
    ----------
    a, b
        Two traces, such as a run and its replay.
    iterations
        Iterations; all in both traces if None.

    Returns
    -------
    list of dict
        Rows of the table ``time_ratios``: all calls, by operation, phase and layer,
        start-up, each with measure ``transfer`` and ``call``; then the ``wall`` time of
        iterations.  Empty where no call has times in both.
    """
    traces = a, b
    both = completion(a, iterations), completion(b, iterations)
    x, y = (
        calls[rows] for calls, rows in zip(both, matched(traces, both), strict=True)
    )
    if not len(x):
        return []
    sent = np.stack(
        [busiest_link_bytes(a, x["occurrence"]), busiest_link_bytes(b, y["occurrence"])]
    )
    # NaN, of unknown bytes, is not above 0
    crossed = (sent > 0).all(axis=0) & (x["transfer_s"] > 0) & (y["transfer_s"] > 0)
    table: list[dict[str, Any]] = []
    for by, label, rows in parts(a, x):
        calls, when = (x[rows], y[rows]), x["iteration"][rows]
        moved = rows[np.asarray(crossed)[rows]]
        sums = run_sums(a, calls[0]["site"]), run_sums(b, calls[1]["site"])
        for measure in ("transfer", "call"):
            times = [of_run[f"{measure}_s"] for of_run in calls]
            row: dict[str, Any] = {
                **{"by": by, "label": label, "measure": measure, "calls": len(rows)},
                **_ratio(traces, times, when, sums, measure, seed),
            }
            table.append(row)
            if measure == "call":
                continue
            for n, run in enumerate(RUNS):
                several = row["over"] == "runs" and row[f"{run}_runs"] > 1
                row[f"{run}_waiting"] = _waiting(calls[n], sums[n] if several else {})
                took = (x, y)[n][moved]
                rate = _busbw(traces[n], float(sent[n, moved].sum()), took, several)
                row[f"{run}_busbw"] = rate.value
                row[f"{run}_busbw_low"], row[f"{run}_busbw_high"] = rate.low, rate.high
    (when, one), (_, other) = wall_times(a, x), wall_times(b, y)
    sums = run_sums(a, np.full(len(when), -1)), run_sums(b, np.full(len(when), -1))
    row = {"by": "iteration", "label": "", "measure": "wall", "calls": len(when)}
    return [*table, row | _ratio(traces, [one, other], when, sums, "call", seed)]


def _ratio(
    traces: Sequence[Trace],
    times: Sequence[Float64],
    when: Int64,
    sums: Sequence[dict[str, Float64]],
    measure: str,
    seed: int,
) -> dict[str, Any]:
    """Compute the quantiles of times ``[n]`` in each run, and the ratio of totals."""
    replays = all(trace.meta.origin == "replayed" for trace in traces)
    totals = [
        of_runs.get(f"{measure}_s", np.array([values.sum()]))
        for of_runs, values in zip(sums, times, strict=True)
    ]
    number = [len(values) for values in totals]
    busy = replays and any(bool(trace.runs["busy"].any()) for trace in traces)
    over, tested, p = "runs", UNKNOWN, nan
    if replays and min(number) > 1:
        found, p = ratio_of_runs(*totals, busy=busy)
        tested, _ = ratio_of_runs(*totals, busy=busy, level=1 - SIGNIFICANT)
    elif not replays and min(number) == 1 < max(number):
        with np.errstate(divide="ignore", invalid="ignore"):
            found = mean_of_runs(totals[1] / totals[0])
    else:
        found = ratio(*(by_iteration(values, when) for values in times), seed=seed)
        over = "iterations"
        if replays:  # no interval: two runs of one command differ, too
            over, found = "", Interval(value=found.value, low=nan, high=nan)
    figures = [vars(quantiles(values)) for values in times]
    return {
        **{
            f"{run}_{name}": figures[n][name]
            for name in ("p50", "p99", "total")
            for n, run in enumerate(RUNS)
        },
        **{"ratio": found.value, "ratio_low": found.low, "ratio_high": found.high},
        "over": over,
        **{f"{run}_runs": number[n] for n, run in enumerate(RUNS)},
        **{"p": p, "tested_low": tested.low, "tested_high": tested.high},
        "busy": busy and over == "runs",
        **{f"{run}_waiting": nan for run in RUNS},
        **{f"{run}_busbw{end}": nan for run in RUNS for end in ("", "_low", "_high")},
    }


def _waiting(calls: Calls, sums: dict[str, Float64]) -> float:
    """Compute the share of waiting in the members' time in calls, mean of runs."""
    wait = np.atleast_1d(sums.get("wait_s", calls["wait_s"].sum()))
    inside = np.atleast_1d(sums.get("inside_s", calls["inside_s"].sum()))
    return float((wait / inside).mean()) if inside.all() else nan


def _busbw(trace: Trace, sent: float, calls: Calls, several: bool) -> Interval:
    """Compute the busbw of calls, bytes/s; of several runs, the geometric mean."""
    took = np.array([calls["transfer_s"].sum()])
    if several:  # the runs may have summed calls without bytes with these
        took = run_sums(trace, calls["site"]).get("transfer_s", np.zeros(1))
    return mean_of_runs(sent / took) if took.all() else UNKNOWN


def matched(traces: Sequence[Trace], calls: Sequence[Calls]) -> list[Int64]:
    """Match the calls of two traces by site and iteration.

    Returns rows of the calls of each, ``[n]`` int64, in the order of the first.
    """
    numbers: dict[tuple[object, ...], int] = {}
    sites = [
        np.array([numbers.setdefault(k, len(numbers)) for k in site_keys(t)], np.int64)
        for t in traces
    ]
    one, other = (
        of_run["iteration"] * len(numbers) + number[of_run["site"]]
        for of_run, number in zip(calls, sites, strict=True)
    )
    _, first, second = np.intersect1d(one, other, return_indices=True)
    order = np.argsort(first)
    return [first[order], second[order]]


def site_keys(trace: Trace) -> list[tuple[object, ...]]:
    """Build keys that identify sites across traces, independent of their ranks."""
    seen: Counter[str] = Counter()
    groups = []
    for group in trace.groups:
        groups.append((group.kind, seen[group.kind]))
        seen[group.kind] += 1
    return [
        (
            *(groups[s.group], s.operation, s.phase, s.layer),
            *(s.direction, s.slot, s.label, s.peers),
        )
        for s in trace.sites
    ]


def busiest_link_bytes(trace: Trace, calls: Int64) -> Float64:
    """Compute the bytes of the busiest link of calls, ``[n]``; NaN if unknown.

    Of all-to-alls, the largest row or column sum without the diagonal; of others as in
    :mod:`moetraffic.patterns.collectives`.
    """
    out = np.full(len(calls), np.nan)
    site_of = trace.occurrences.site[calls]
    known = trace.occurrences.matrix[calls] >= 0
    for number in np.unique(site_of[known]).tolist():
        site, width = trace.sites[number], int(trace.width[number])
        rows = np.flatnonzero(known & (site_of == number))
        for block in np.array_split(rows, -(-len(rows) * width**2 // CELLS)):
            if trace.square[number]:
                wire = trace.wire(calls[block]) * ~np.eye(width, dtype=bool)
                out[block] = np.maximum(wire.sum(axis=1), wire.sum(axis=2)).max(axis=1)
                continue
            size = sizes(site.operation, trace.volume(calls[block]))
            ranks = np.full(len(block), width)
            alone = np.full(len(block), site.peers[0] == site.peers[1])
            out[block] = traffic_bytes(site.operation, size, ranks, alone)[1]
    return out
