"""Completion times of the calls of a trace, and their ratios between two runs.

Two times of a call:

``call``
    maximum over the members of the time from the call to its end, each on its own
    clock, as nccl-tests reports with ``--average 3``; includes waiting for late
    members;
``transfer``
    from the last member's issue (or the recorded start of the transfer) to the last
    end, on rank 0's clock: the time taken by the network.

*Waiting* is the share of the members' time in calls before the last member's issue, and
*busbw* the bytes of the busiest link over the transfer time, of calls with bytes
between ranks.  Calls of sites that only the run's first iteration has are *start-up*,
and in no other part but the wall time of that iteration.

The wall time of an iteration on a rank lasts from its first call to its last end; that
of the slowest rank is reported.  Calls of two traces match if their sites and
iterations do: sites are matched by operation and by the kind and index of their group,
so that a run matches its replay on fewer ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from moetraffic.analysis.claim import LEVEL as CLAIMED
from moetraffic.analysis.resampling import Interval, ratio
from moetraffic.arrays import Bool, Float64, Int64, Integer
from moetraffic.patterns.bandwidth.moved_bytes import sizes, traffic_bytes
from moetraffic.trace import ALL_TO_ALL, ROUTING, UNKNOWN_TIME, Trace
from moetraffic.trace.model import WireForm

from .call_times import CELLS, times_in_blocks
from .repeated_runs import mean_of_runs, ratio_of_runs, run_sums

Key = tuple[object, ...]

MEASURES = ("transfer", "call")

FEWEST = 3
"""Iterations from which a call in the first alone is one of the start-up."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """Completion times of n calls, in the trace's order."""

    occurrence: Int64  # [n] index into the trace's occurrences
    iteration: Int64  # [n]
    site: Int64  # [n]
    call_s: Float64  # [n]
    transfer_s: Float64  # [n]
    wait_s: Float64  # [n] summed over members, until the last member's issue
    inside_s: Float64  # [n] summed over members, issue (or start) to end
    last: Int64  # [n] world rank of the last issue, -1 for one member

    def __len__(self) -> int:
        return len(self.occurrence)

    def take(self, rows: Int64) -> Completion:
        """Select calls by row index, in the given order."""
        return Completion(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


def completion(
    trace: Trace, iterations: range | None = None, *, kind: str | None = "train"
) -> Completion:
    """Compute the completion times of every call whose members all have times.

    Parameters
    ----------
    trace
        Trace with times.
    kind
        Kind of step; None for any.
    """
    calls = np.array([s.operation != ROUTING for s in trace.sites], bool)
    asked = trace.find(iterations=iterations, kind=kind)
    asked = asked[calls[trace.occurrences.site[asked]]]
    # a send has two members in a group of any size
    sends = np.array([s.peers[0] >= 0 for s in trace.sites], bool)
    paired = sends[trace.occurrences.site[asked]]
    asked = np.union1d(asked[paired], trace.complete(asked[~paired]))
    parts = [
        (at, *_measured(issue, start, end, trace.members(at)))
        for at, issue, start, end in times_in_blocks(trace, asked)
    ]
    if not parts:
        none = np.zeros(0)
        whole = none.astype(np.int64)
        parts = [(whole, none, none, none, none, whole)]
    at, call, transfer, wait, inside, last = (
        np.concatenate(c) for c in zip(*parts, strict=True)
    )
    keep = np.flatnonzero(np.isfinite(call))
    order = keep[np.argsort(at[keep])]
    found = at[order]
    return Completion(
        occurrence=found,
        iteration=trace.occurrences.iteration[found],
        site=trace.occurrences.site[found].astype(np.int64),
        call_s=call[order],
        transfer_s=transfer[order],
        wait_s=wait[order],
        inside_s=inside[order],
        last=last[order],
    )


def _measured(
    issue: Int64, start: Int64, end: Int64, members: Int64
) -> tuple[Float64, Float64, Float64, Float64, Int64]:
    """Compute call and transfer times, waiting and time inside, s, and the last rank.

    NaN if times are missing.

    A send involves two members of a group that may be larger: ranks without issue and
    end did not take part.
    """
    apart = (issue == UNKNOWN_TIME) & (end == UNKNOWN_TIME)
    known = (issue != UNKNOWN_TIME) & (end != UNKNOWN_TIME)
    whole = (known | apart).all(axis=1) & known.any(axis=1)
    least = np.iinfo(np.int64).min
    took = np.where(known, end - np.where(known, issue, 0), least).max(axis=1)
    began = np.where(start != UNKNOWN_TIME, start, issue)
    first = np.where(known, began, least).max(axis=1)
    ended = np.where(known, end, least).max(axis=1)
    last = members[np.arange(len(issue)), np.where(known, issue, least).argmax(axis=1)]
    last = np.where(known.sum(axis=1) > 1, last, -1)
    # clock errors between ranks may make the difference negative
    moved = np.maximum(ended - np.where(whole, first, 0), 0) / 1e9
    waits = np.minimum(end, first[:, None]) - began
    waited = np.where(known, np.maximum(waits, 0), 0).sum(axis=1) / 1e9
    inside = np.where(known, np.maximum(end - began, 0), 0).sum(axis=1) / 1e9
    return (
        np.where(whole, took / 1e9, np.nan),
        np.where(whole, moved, np.nan),
        np.where(whole, waited, np.nan),
        np.where(whole, inside, np.nan),
        np.asarray(last, np.int64),
    )


def wall_times(trace: Trace, calls: Completion) -> tuple[Int64, Float64, Int64]:
    """Compute wall times of iterations on the slowest rank, first call to last end.

    Parameters
    ----------
    trace
        Trace with times.
    calls
        Completion times of the trace's calls.

    Returns
    -------
    tuple of ndarray
        Iterations ``[T]`` int64; seconds ``[T]`` float64; the rank that took longest
        ``[T]`` int64.
    """
    iterations = np.unique(calls.iteration)
    shape = len(iterations), trace.meta.world
    begin = np.full(shape, np.iinfo(np.int64).max, np.int64)
    finish = np.full(shape, UNKNOWN_TIME, np.int64)
    for part, issue, _, end in times_in_blocks(trace, calls.occurrence):
        place = np.searchsorted(iterations, trace.occurrences.iteration[part])
        known = (issue != UNKNOWN_TIME) & (end != UNKNOWN_TIME)
        row, member = np.nonzero(known)
        at = place[row], trace.members(part)[row, member]
        np.minimum.at(begin, at, issue[row, member])
        np.maximum.at(finish, at, end[row, member])
    took = np.where(finish != UNKNOWN_TIME, finish - np.minimum(begin, finish), -1)
    if not len(iterations):
        return iterations, np.zeros(0), np.zeros(0, np.int64)
    return iterations, took.max(axis=1) / 1e9, took.argmax(axis=1)


# ---- two runs --------------------------------------------------------------------


def matched(a: Trace, b: Trace, x: Completion, y: Completion) -> tuple[Int64, Int64]:
    """Match the calls of two traces by site and iteration.

    Returns
    -------
    tuple of ndarray
        Rows of ``x`` and of ``y``, ``[n]`` int64 each.
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
class Quantiles:
    """Quantiles, maximum and sum of times, seconds."""

    p50: float
    p90: float
    p99: float
    max: float
    total: float


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
    runs: tuple[int, int] | None = None  # of two replays: timed runs of each
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
    intervals.  Of two replays, ratios, waiting and busbw are of all their timed runs,
    with intervals over these (:mod:`.repeated_runs`): where the runs are not in both
    traces, or have summed other calls, there is no interval.

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
    replays = a.meta.origin == b.meta.origin == "replayed"
    found = []
    for by, label, mine in parts(a, x):
        for measure in MEASURES:
            one, other = (getattr(of, f"{measure}_s")[mine] for of in (x, y))
            when = x.iteration[mine]
            made = _time_ratio(by, label, measure, one, other, when, seed)
            if measure == "transfer":
                shares = [_share(of.wait_s[mine], of.inside_s[mine]) for of in (x, y)]
                made = replace(made, waiting=_pair(shares))
            if replays:
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
    found.append(
        _of_runs(walls, a, b, iterations_of, iterations_of) if replays else walls
    )
    return tuple(found)


def _of_runs(
    ratio: TimeRatio, a: Trace, b: Trace, of_a: Int64, of_b: Int64
) -> TimeRatio:
    """Replace the figures of one run each by those of all runs of two replays.

    ``of_a`` and ``of_b`` are the sites of the calls.
    """
    one, other = run_sums(a, of_a), run_sums(b, of_b)
    if one is None or other is None:
        alone = Interval(value=ratio.ratio.value, low=np.nan, high=np.nan)
        runs = (len(one) if one else 1, len(other) if other else 1)
        return replace(ratio, ratio=alone, runs=runs)
    sums = one, other
    name = "transfer_s" if ratio.measure == "transfer" else "call_s"
    totals = [getattr(s, name) for s in sums]
    waiting = ratio.waiting
    if waiting is not None:
        known = all(s.inside_s.all() for s in sums)
        shares = [float((s.wait_s / s.inside_s).mean()) for s in sums if known]
        waiting = _pair(shares) if known else None
    busy = bool(a.runs["busy"].any() or b.runs["busy"].any())
    interval, p = ratio_of_runs(*totals, busy=busy)
    tested, _ = ratio_of_runs(*totals, busy=busy, level=1 - CLAIMED)
    ratio = replace(ratio, ratio=interval, ratio_tested=tested, p=p, busy=busy)
    return replace(ratio, waiting=waiting, runs=(len(one), len(other)))


def _with_busbw(
    ratio: TimeRatio, a: Trace, b: Trace, moved: Sequence[tuple[float, Completion]]
) -> TimeRatio:
    """Add the busbw of both runs, from GB of the busiest links and the calls' times.

    Of two replays whose runs are known, it is the geometric mean over the runs.
    """
    (gb, calls), (other_gb, other_calls) = moved
    if not (calls.transfer_s.any() and other_calls.transfer_s.any()):
        return ratio
    rates = _pair(
        [
            float(gb / calls.transfer_s.sum()),
            float(other_gb / other_calls.transfer_s.sum()),
        ]
    )
    if rates is None or ratio.runs is None or min(ratio.runs) < 2:
        return replace(ratio, busbw_gbs=rates)
    one, other = run_sums(a, calls.site), run_sums(b, other_calls.site)
    if one is None or other is None:
        return ratio  # the runs have summed calls without bytes with these
    if not (one.transfer_s.all() and other.transfer_s.all()):
        return ratio  # a run took no time
    x, y = mean_of_runs(gb / one.transfer_s), mean_of_runs(other_gb / other.transfer_s)
    return replace(ratio, busbw_gbs=(x.value, y.value), busbw_runs=(x, y))


def link_bytes(trace: Trace, occurrences: Int64) -> Float64:
    """Compute the bytes of the busiest link of calls, ``[n]``; NaN if unknown.

    Of all-to-alls, the largest row or column sum without the diagonal; of others as in
    :mod:`moetraffic.patterns.bandwidth.moved_bytes`.
    """
    out = np.full(len(occurrences), np.nan)
    sites = trace.occurrences.site[occurrences]
    known = np.array(
        [s.operation == ALL_TO_ALL and s.wire != WireForm.UNKNOWN for s in trace.sites],
        bool,
    )
    width = np.array([len(trace.groups[s.group].ranks) for s in trace.sites], np.int64)
    for size in np.unique(width[sites]).tolist():
        mine = np.flatnonzero(known[sites] & (width[sites] == size))
        step = max(1, CELLS // size**2)
        for first in range(0, len(mine), step):
            at = mine[first : first + step]
            off = trace.wire(occurrences[at]) * ~np.eye(size, dtype=bool)
            out[at] = np.maximum(off.sum(axis=1), off.sum(axis=2)).max(axis=1)
    dense = ~np.array([s.operation == ALL_TO_ALL for s in trace.sites], bool)
    stored = np.array([s.wire != WireForm.UNKNOWN for s in trace.sites], bool)
    for number in np.unique(sites[(dense & stored)[sites]]).tolist():
        site, at = trace.sites[number], np.flatnonzero(sites == number)
        for part in np.array_split(at, -(-len(at) * width[number] // CELLS)):
            size = sizes(site.operation, trace.volume(occurrences[part]))
            of = np.full(len(part), width[number])
            alone = np.full(len(part), site.peers[0] == site.peers[1])
            out[part] = traffic_bytes(site.operation, size, of, alone)[1]
    return out


def start_up(iteration: Int64, site: Integer, *, first: int) -> Bool:
    """Mark calls of sites that only the run's first training step calls, ``[n]``.

    With fewer than FEWEST iterations, none: too few to distinguish them.

    ``first``: The run's first training step; the calls may be of later ones alone.
    """
    if len(np.unique(iteration)) < FEWEST:
        return np.zeros(len(site), bool)
    early = iteration == first
    return np.asarray(early & ~np.isin(site, site[~early]), bool)


def _pair(values: list[float]) -> tuple[float, float] | None:
    """Return the values of two runs; None if one is unknown."""
    return (values[0], values[1]) if np.isfinite(values).all() else None


def _share(part: Float64, whole: Float64) -> float:
    """Return the quotient of two sums over rows known in both; NaN if none is."""
    both = np.isfinite(part) & np.isfinite(whole)
    total = float(whole[both].sum())
    return float(part[both].sum()) / total if total > 0 else float("nan")


def parts(trace: Trace, calls: Completion) -> Iterator[tuple[str, str, Int64]]:
    """Yield the rows of all calls, then those of each operation, phase and layer.

    Start-up calls are in none of these, but in a last part of their own.
    """
    first = min(trace.iterations.tolist(), default=-1)
    early = start_up(calls.iteration, calls.site, first=first)
    yield "all", "", np.flatnonzero(~early)
    told = {
        "operation": [s.operation for s in trace.sites],
        "phase": [s.phase for s in trace.sites],
        "layer": [str(s.layer) if s.layer >= 0 else "" for s in trace.sites],
    }
    for by, names in told.items():
        of = np.array(names)[calls.site] if len(calls) else np.zeros(0, str)
        present = set(of[~early].tolist()) - {""}
        for name in [n for n in dict.fromkeys(names) if n in present]:
            yield by, name, np.flatnonzero((of == name) & ~early)
    if early.any():
        yield "start-up", "", np.flatnonzero(early)


def by_iteration(values: Float64, iteration: Int64) -> Float64:
    """Sum values of calls over each iteration, ``[T]``, in order of iteration."""
    _, place = np.unique(iteration, return_inverse=True)
    summed = np.bincount(place.reshape(-1), weights=values)
    return np.asarray(summed, np.float64)


def quantiles(values: Float64) -> Quantiles:
    """Compute quantiles, maximum and sum of times ``[n]``, s; NaN if empty."""
    p50, p90, p99, most = [float("nan")] * 4
    if len(values):
        p50, p90, p99, most = np.percentile(values, [50, 90, 99, 100]).tolist()
    return Quantiles(p50=p50, p90=p90, p99=p99, max=most, total=float(values.sum()))


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
