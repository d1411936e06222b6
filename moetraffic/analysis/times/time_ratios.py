"""Ratios of the times of the same calls in two runs.

Calls of two traces match if their sites and iterations do: sites are matched by
operation and by the kind and index of their group, so that a run matches its replay on
fewer ranks.  *Waiting* is the share of the members' time in calls before the last
member's issue, and *busbw* the bytes of the busiest link over the transfer time, of
calls with bytes between ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from moetraffic.analysis.claim import LEVEL as CLAIMED
from moetraffic.analysis.resampling import Interval, ratio
from moetraffic.arrays import Float64, Int64
from moetraffic.patterns.bandwidth.moved_bytes import sizes, traffic_bytes
from moetraffic.trace import Trace

from .call_times import CELLS
from .completion import (
    Completion,
    Quantiles,
    by_iteration,
    completion,
    parts,
    quantiles,
    wall_times,
)
from .repeated_runs import mean_of_runs, ratio_of_runs, run_sums

Key = tuple[object, ...]

MEASURES = ("transfer", "call")


def matched(a: Trace, b: Trace, x: Completion, y: Completion) -> tuple[Int64, Int64]:
    """Match the calls of two traces by site and iteration.

    Returns rows of ``x`` and of ``y``, ``[n]`` int64 each.
    """
    names: dict[Key, int] = {}
    numbers = [
        np.array([names.setdefault(k, len(names)) for k in site_keys(t)], np.int64)
        for t in (a, b)
    ]
    if not (len(x) and len(y)):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    keys = [
        np.stack([number[of.site], of.iteration], axis=1)
        for number, of in zip(numbers, (x, y), strict=True)
    ]
    _, which = np.unique(np.concatenate(keys), axis=0, return_inverse=True)
    which = which.reshape(-1)
    _, mine, theirs = np.intersect1d(
        which[: len(x)], which[len(x) :], return_indices=True
    )
    order = np.argsort(mine, kind="stable")
    return mine[order], theirs[order]


def site_keys(trace: Trace) -> list[Key]:
    """Build keys that identify sites across traces, independent of their ranks."""
    seen: dict[str, int] = {}
    groups = []
    for group in trace.groups:
        number = seen.get(group.kind, 0)
        seen[group.kind] = number + 1
        groups.append((group.kind, number))
    return [
        (
            *(groups[s.group], s.operation, s.phase, s.layer),
            *(s.direction, s.slot, s.label, s.peers),
        )
        for s in trace.sites
    ]


@dataclass(frozen=True, kw_only=True)
class TimeRatio:
    """Times of the same calls in two runs, and their ratio."""

    by: str  # "all", "operation", "phase", "layer", "start-up" or "iteration"
    label: str
    measure: str  # of MEASURES, or "wall" of iterations
    number: int  # calls or iterations in both runs
    a: Quantiles
    b: Quantiles
    ratio: Interval  # sum of the second run over that of the first
    waiting: tuple[float, float] | None = None  # of each run, with ``transfer``
    busbw_gbs: tuple[float, float] | None = None  # of calls that move bytes, likewise
    runs: tuple[int, int] | None = None  # timed runs of each, one of a captured run
    p: float | None = None  # of no difference between the runs of two replays
    busy: bool = False  # whether other processes used their hosts: interval is wider
    ratio_tested: Interval | None = None  # over runs, of the test's confidence level
    busbw_runs: tuple[Interval, Interval] | None = None  # over the runs of each, GB/s


def compare_times(
    a: Trace,
    b: Trace,
    *,
    iterations: range | None = None,
    seed: int = 0,
) -> tuple[TimeRatio, ...]:
    """Compare the times of the same calls in two runs.

    Ratios are of sums over the same calls; iterations are resampled jointly for the
    intervals.  Of a replay of several runs, ratios, waiting and busbw are of all of
    them, with intervals over these (:mod:`.repeated_runs`), as ``replay`` states them.
    Where the runs of two replays are not in both traces, or have summed other calls,
    there is no interval.

    Parameters
    ----------
    a, b
        Two traces, such as a run and its replay.
    iterations
        Iterations; all in both traces if None.

    Returns
    -------
    tuple of TimeRatio
        All, by operation, by phase, by layer, of the start-up; then the iterations as a
        whole.  Empty where no call has times in both.
    """
    every = completion(a, iterations), completion(b, iterations)
    rows = matched(a, b, *every)
    if not len(rows[0]):
        return ()
    x, y = (of.take(at) for of, at in zip(every, rows, strict=True))
    links = link_bytes(a, x.occurrence), link_bytes(b, y.occurrence)
    # NaN, of unknown bytes, is not above 0
    known = np.stack([*links, x.transfer_s, y.transfer_s])
    crossed = np.asarray((known > 0).all(axis=0), bool)
    found = []
    for by, label, mine in parts(a, x):
        for measure in MEASURES:
            one, other = (getattr(of, f"{measure}_s")[mine] for of in (x, y))
            when = x.iteration[mine]
            made = _time_ratio(by, label, measure, one, other, when, seed)
            if measure == "transfer":
                shares = [_share(of.wait_s[mine], of.inside_s[mine]) for of in (x, y)]
                made = replace(made, waiting=_pair(shares))
            made = _of_runs(made, a, b, x.site[mine], y.site[mine])
            if measure == "transfer":
                moved = mine[crossed[mine]]
                sums = [
                    (float(of_link[moved].sum()) / 1e9, of.take(moved))
                    for of_link, of in zip(links, (x, y), strict=True)
                ]
                made = _with_busbw(made, a, b, sums)
            found.append(made)
    (when, one, _), (_, other, _) = wall_times(a, x), wall_times(b, y)
    walls = _time_ratio("iteration", "", "wall", one, other, when, seed)
    iterations_of = np.full(len(when), -1)
    found.append(_of_runs(walls, a, b, iterations_of, iterations_of))
    return tuple(found)


def _of_runs(
    ratio: TimeRatio, a: Trace, b: Trace, of_a: Int64, of_b: Int64
) -> TimeRatio:
    """Replace the figures of one run each by those of all runs of one or two replays.

    ``of_a`` and ``of_b`` are the sites of the calls.
    """
    sums = run_sums(a, of_a), run_sums(b, of_b)
    replays = a.meta.origin == b.meta.origin == "replayed"
    several = sum(s is not None for s in sums)
    runs = [len(s) if s else 1 for s in sums]
    if replays and several < 2:
        alone = Interval(value=ratio.ratio.value, low=np.nan, high=np.nan)
        return replace(ratio, ratio=alone, runs=(runs[0], runs[1]))
    if not replays and several != 1:
        return ratio
    name = "transfer_s" if ratio.measure == "transfer" else "call_s"
    one, other = (
        getattr(s, name) if s else np.array([of.total])
        for s, of in zip(sums, (ratio.a, ratio.b), strict=True)
    )
    if ratio.waiting is not None:
        shares = [
            s.waiting if s else own for s, own in zip(sums, ratio.waiting, strict=True)
        ]
        ratio = replace(ratio, waiting=_pair(shares))
    ratio = replace(ratio, runs=(runs[0], runs[1]))
    if not replays:
        with np.errstate(divide="ignore", invalid="ignore"):
            return replace(ratio, ratio=mean_of_runs(other / one))
    busy = bool(a.runs["busy"].any() or b.runs["busy"].any())
    interval, p = ratio_of_runs(one, other, busy=busy)
    tested, _ = ratio_of_runs(one, other, busy=busy, level=1 - CLAIMED)
    return replace(ratio, ratio=interval, ratio_tested=tested, p=p, busy=busy)


def _with_busbw(
    ratio: TimeRatio, a: Trace, b: Trace, moved: Sequence[tuple[float, Completion]]
) -> TimeRatio:
    """Add the busbw of both runs, from GB of the busiest links and the calls' times.

    Of a replay whose runs are known, it is the geometric mean over the runs.
    """
    replays = a.meta.origin == b.meta.origin == "replayed"
    runs = ratio.runs or (1, 1)
    single = replays and min(runs) < 2
    rates = []
    for trace, number, (gb, calls) in zip((a, b), runs, moved, strict=True):
        taken_s = np.array([calls.transfer_s.sum()])
        if number > 1 and not single:
            sums = run_sums(trace, calls.site)
            if sums is None:
                return ratio  # the runs have summed calls without bytes with these
            taken_s = sums.transfer_s
        if not taken_s.all():
            return ratio  # a run took no time
        rates.append(mean_of_runs(gb / taken_s))
    one, other = rates
    found = replace(ratio, busbw_gbs=_pair([one.value, other.value]))
    return found if single else replace(found, busbw_runs=(one, other))


def link_bytes(trace: Trace, occurrences: Int64) -> Float64:
    """Compute the bytes of the busiest link of calls, ``[n]``; NaN if unknown.

    Of all-to-alls, the largest row or column sum without the diagonal; of others as in
    :mod:`moetraffic.patterns.bandwidth.moved_bytes`.
    """
    out = np.full(len(occurrences), np.nan)
    sites = trace.occurrences.site[occurrences]
    known, width = trace.occurrences.matrix[occurrences] >= 0, trace.width
    for size in np.unique(width[sites]).tolist():
        mine = np.flatnonzero(known & trace.square[sites] & (width[sites] == size))
        step = max(1, CELLS // size**2)
        for first in range(0, len(mine), step):
            at = mine[first : first + step]
            off = trace.wire(occurrences[at]) * ~np.eye(size, dtype=bool)
            out[at] = np.maximum(off.sum(axis=1), off.sum(axis=2)).max(axis=1)
    dense = known & ~trace.square[sites]
    for number in np.unique(sites[dense]).tolist():
        site, at = trace.sites[number], np.flatnonzero(dense & (sites == number))
        for part in np.array_split(at, -(-len(at) * width[number] // CELLS)):
            size = sizes(site.operation, trace.volume(occurrences[part]))
            of = np.full(len(part), width[number])
            alone = np.full(len(part), site.peers[0] == site.peers[1])
            out[part] = traffic_bytes(site.operation, size, of, alone)[1]
    return out


def _pair(values: list[float]) -> tuple[float, float] | None:
    """Return the values of two runs; None if one is unknown."""
    return (values[0], values[1]) if np.isfinite(values).all() else None


def _share(part: Float64, whole: Float64) -> float:
    """Return the quotient of two sums over rows known in both; NaN if none is."""
    both = np.isfinite(part) & np.isfinite(whole)
    total = float(whole[both].sum())
    return float(part[both].sum()) / total if total > 0 else float("nan")


def _time_ratio(
    by: str,
    label: str,
    measure: str,
    one: Float64,
    other: Float64,
    iteration: Int64,
    seed: int,
) -> TimeRatio:
    return TimeRatio(
        by=by,
        label=label,
        measure=measure,
        number=len(one),
        a=quantiles(one),
        b=quantiles(other),
        ratio=ratio(
            by_iteration(one, iteration), by_iteration(other, iteration), seed=seed
        ),
    )
