"""Completion times of the calls of a trace, and wall times of its iterations.

Two times of a call:

``call``
    maximum over the members of the time from the call to its end, each on its own
    clock, as nccl-tests reports with ``--average 3``; includes waiting for late
    members;
``transfer``
    from the last member's issue (or the recorded start of the transfer) to the last
    end, on rank 0's clock: the time taken by the network.

Calls of sites that only the run's first iteration has are *start-up*, and in no other
part but the wall time of that iteration.  The wall time of an iteration on a rank lasts
from its first call to its last end; that of the slowest rank is reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from moetraffic.arrays import Bool, Float64, Int64, Integer
from moetraffic.trace import ROUTING, UNKNOWN_TIME, Trace

from .call_times import times_in_blocks

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

    ``kind`` is that of their steps; None for any.
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

    Returns iterations ``[T]`` int64; seconds ``[T]`` float64; the rank that took
    longest ``[T]`` int64.
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


@dataclass(frozen=True, kw_only=True)
class Quantiles:
    """Quantiles, maximum and sum of times, seconds."""

    p50: float
    p90: float
    p99: float
    max: float
    total: float


def start_up(iteration: Int64, site: Integer, *, first: int) -> Bool:
    """Mark calls of sites that only the run's first training step calls, ``[n]``.

    With fewer than FEWEST iterations, none: too few to distinguish them.

    ``first``: The run's first training step; the calls may be of later ones alone.
    """
    if len(np.unique(iteration)) < FEWEST:
        return np.zeros(len(site), bool)
    early = iteration == first
    return np.asarray(early & ~np.isin(site, site[~early]), bool)


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
