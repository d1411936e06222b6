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
part but the wall time of that iteration.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Bool, Float64, Int64, Integer
from moetraffic.trace import ROUTING, UNKNOWN_TIME, Trace

from .calls import blocks

Calls = npt.NDArray[Any]
"""Structured array of calls, of type CALL."""

CALL = np.dtype(
    [
        ("occurrence", np.int64),  # index into the trace's occurrences
        ("iteration", np.int64),
        ("site", np.int64),
        ("call_s", np.float64),
        ("transfer_s", np.float64),
        ("wait_s", np.float64),  # summed over members, until the last member's issue
        ("inside_s", np.float64),  # summed over members, issue (or start) to end
        ("last", np.int64),  # world rank of the last issue, -1 for one member
    ]
)
"""Completion times of a call."""

FEWEST = 3
"""Iterations from which a call in the first alone is one of the start-up."""


@dataclass(frozen=True, kw_only=True)
class Quantiles:
    """Quantiles, maximum and sum of times, seconds."""

    p50: float
    p90: float
    p99: float
    max: float
    total: float


def completion(
    trace: Trace, iterations: range | None = None, *, kind: str | None = "train"
) -> Calls:
    """Compute the completion times of every call whose members all have times.

    ``kind`` is that of their steps; None for any.

    Returns a structured array ``[n]`` of type CALL, in the trace's order.
    """
    calls = trace.find(iterations=iterations, kind=kind)
    site = trace.occurrences.site[calls]
    sends = np.array([s.peers[0] >= 0 for s in trace.sites], bool)[site]
    routing = np.array([s.operation == ROUTING for s in trace.sites], bool)[site]
    # a send has two members in a group of any size
    whole = trace.complete(calls[~sends & ~routing])
    calls = np.union1d(calls[sends & ~routing], whole)
    table = np.zeros(len(calls), CALL)
    table["occurrence"] = calls
    table["iteration"] = trace.occurrences.iteration[calls]
    table["site"] = trace.occurrences.site[calls]
    for block, issue, start, end in blocks(trace, calls):
        rows, members = np.searchsorted(calls, block), trace.members(block)
        for name, values in _measured(issue, start, end, members).items():
            table[name][rows] = values
    known: Calls = table[np.isfinite(table["call_s"])]
    return known


def _measured(
    issue: Int64, start: Int64, end: Int64, members: Int64
) -> dict[str, Float64 | Int64]:
    """Compute the times of calls ``[n, W]`` ns; NaN if one of a member is missing.

    Ranks without issue and end took no part: a send has two members of a group.
    """
    known = (issue != UNKNOWN_TIME) & (end != UNKNOWN_TIME)
    apart = (issue == UNKNOWN_TIME) & (end == UNKNOWN_TIME)
    whole = (known | apart).all(axis=1) & known.any(axis=1)
    began = np.where(start != UNKNOWN_TIME, start, issue)
    # an unknown time is the least int64: it is never the latest
    issued, started, ended = (
        np.where(known, times, UNKNOWN_TIME) for times in (issue, began, end)
    )
    first = started.max(axis=1)  # of the transfer
    took = np.where(known, end - np.where(known, issue, 0), UNKNOWN_TIME).max(axis=1)
    # clock errors between ranks may make differences negative
    moved = np.maximum(ended.max(axis=1) - np.where(whole, first, 0), 0)
    waits = np.maximum(np.minimum(end, first[:, None]) - began, 0)
    inside = np.maximum(end - began, 0)
    ns = {
        "call_s": took,
        "transfer_s": moved,
        "wait_s": np.where(known, waits, 0).sum(axis=1),
        "inside_s": np.where(known, inside, 0).sum(axis=1),
    }
    last = members[np.arange(len(issue)), issued.argmax(axis=1)]
    return {
        **{name: np.where(whole, value / 1e9, np.nan) for name, value in ns.items()},
        "last": np.where(known.sum(axis=1) > 1, last, -1),
    }


def wall_times(trace: Trace, calls: Calls) -> tuple[Int64, Float64]:
    """Compute the wall time of iterations, from a rank's first call to its last end.

    Returns iterations ``[T]`` and the seconds ``[T]`` of the slowest rank.
    """
    iterations = np.unique(calls["iteration"])
    shape = len(iterations), trace.meta.world
    begin = np.full(shape, np.iinfo(np.int64).max, np.int64)
    finish = np.full(shape, UNKNOWN_TIME, np.int64)
    for block, issue, _, end in blocks(trace, calls["occurrence"]):
        row = np.searchsorted(iterations, trace.occurrences.iteration[block])
        known = (issue != UNKNOWN_TIME) & (end != UNKNOWN_TIME)
        cell = np.broadcast_to(row[:, None], known.shape), trace.members(block)
        np.minimum.at(begin, tuple(index[known] for index in cell), issue[known])
        np.maximum.at(finish, tuple(index[known] for index in cell), end[known])
    took = np.where(finish != UNKNOWN_TIME, finish - np.minimum(begin, finish), -1)
    return iterations, took.max(axis=1, initial=-1) / 1e9


def start_up(iteration: Int64, site: Integer, *, first: int) -> Bool:
    """Mark calls of sites that only the run's first training step calls, ``[n]``.

    With fewer than FEWEST iterations, none: too few to distinguish them.

    ``first``: The run's first training step; the calls may be of later ones alone.
    """
    if len(np.unique(iteration)) < FEWEST:
        return np.zeros(len(site), bool)
    early = iteration == first
    return np.asarray(early & ~np.isin(site, site[~early]), bool)


def parts(trace: Trace, calls: Calls) -> Iterator[tuple[str, str, Int64]]:
    """Yield the rows of all calls, then those of each operation, phase and layer.

    Start-up calls are in none of these, but in a last part of their own.
    """
    site = calls["site"]
    first = min(trace.iterations.tolist(), default=-1)
    early = start_up(calls["iteration"], site, first=first)
    yield "all", "", np.flatnonzero(~early)
    labels = {
        "operation": [s.operation for s in trace.sites],
        "phase": [s.phase for s in trace.sites],
        "layer": [str(s.layer) if s.layer >= 0 else "" for s in trace.sites],
    }
    for by, names in labels.items():
        name_of = np.array(names, str)[site]
        present = set(name_of[~early].tolist()) - {""}
        for name in dict.fromkeys(n for n in names if n in present):
            yield by, name, np.flatnonzero((name_of == name) & ~early)
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
