"""Compute the durations of replayed operations from the times of all ranks.

The two durations of an operation, ``call`` and ``transfer``, are those of
:mod:`moetraffic.analysis.times.completion`, which computes them for a trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.replay.plan.program import KINDS, Plan, Timing
from moetraffic.trace.clock import to_common
from moetraffic.trace.model import CLOCK, Float64, Int64

NO_CLOCKS: npt.NDArray[np.void] = np.zeros(0, CLOCK)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measured durations of the n operations of a plan and of its iterations."""

    call_s: Float64  # [n] longest over members, call to end; NaN if not timed
    transfer_s: Float64  # [n] from the last member's call to the last end
    slowest: Int64  # [n] world rank with the longest call, -1 for none
    last: Int64  # [n] world rank that arrived last, -1 if it has one member
    iteration: Int64  # [T] iterations, ascending
    wall_s: Float64  # [T] first call to last end, on the rank for which it is longest
    wall_rank: Int64  # [T] that rank


def measure(
    plan: Plan,
    times: Mapping[int, Timing],
    clocks: npt.NDArray[np.void] = NO_CLOCKS,
) -> Measured:
    """Compute operation and iteration durations from the times of all ranks.

    Parameters
    ----------
    plan
        The plan that was replayed.
    times
        Times of every rank.
    clocks
        Clock offsets of type CLOCK, to rank 0's clock.
    """
    count, least = len(plan), np.iinfo(np.int64).min
    longest = np.full(count, -1, np.int64)
    slowest = np.full(count, -1, np.int64)
    arrived = np.full(count, least, np.int64)
    began = np.full(count, least, np.int64)
    ended = np.full(count, least, np.int64)
    last = np.full(count, -1, np.int64)
    iteration, place = np.unique(plan.iteration, return_inverse=True)
    wall = np.full(len(iteration), -1, np.int64)
    wall_rank = np.full(len(iteration), -1, np.int64)
    members = np.zeros(count, np.int64)
    for rank, timing in sorted(times.items()):
        at = timing.operation
        members[at] += 1
        took = timing.end - timing.issue
        more = took > longest[at]
        longest[at[more]], slowest[at[more]] = took[more], rank
        issue, start, end = (
            common(clocks, rank, t) for t in (timing.issue, timing.start, timing.end)
        )
        later = issue > arrived[at]
        arrived[at[later]], last[at[later]] = issue[later], rank
        began[at] = np.maximum(began[at], np.maximum(issue, start))
        ended[at] = np.maximum(ended[at], end)
        span = _spans(place.reshape(-1)[at], timing, len(iteration))
        more = span > wall
        wall[more], wall_rank[more] = span[more], rank
    timed = members > 0
    last[members < 2] = -1
    # clock offsets have errors: durations are at least 0
    moved = np.maximum(np.where(timed, ended, 0) - np.where(timed, began, 0), 0)
    return Measured(
        call_s=np.where(timed, longest / 1e9, np.nan),
        transfer_s=np.where(timed, moved / 1e9, np.nan),
        slowest=slowest,
        last=last,
        iteration=np.asarray(iteration, np.int64),
        wall_s=np.where(wall >= 0, wall / 1e9, np.nan),
        wall_rank=wall_rank,
    )


def common(clocks: npt.NDArray[np.void], rank: int, times: Int64) -> Int64:
    """Convert times of a rank, ``[N]`` int64 ns, to rank 0's clock."""
    if not len(clocks):
        return times
    return to_common(clocks, np.full((len(times), 1), rank), times[:, None])[:, 0]


def _spans(place: Int64, timing: Timing, iterations: int) -> Int64:
    """Compute first call to last end of each iteration, ``[T]`` ns; -1 for none."""
    first = np.full(iterations, np.iinfo(np.int64).max, np.int64)
    final = np.full(iterations, -1, np.int64)
    np.minimum.at(first, place, timing.issue)
    np.maximum.at(final, place, timing.end)
    return np.where(final >= 0, final - np.minimum(first, final), -1)


def parts(plan: Plan) -> Iterator[tuple[str, str, Int64]]:
    """Yield subsets of a plan's operations: attribute, value and indices ``[k]``.

    First all operations; then by kind of operation, stream (if there are several),
    phase and layer.
    """
    yield "all", "", np.arange(len(plan))
    phases = [s.phase for s in plan.sites]
    layers = [str(s.layer) if s.layer >= 0 else "" for s in plan.sites]
    attributes: tuple[tuple[str, Sequence[str], npt.NDArray[np.integer]], ...] = (
        ("operation", KINDS, plan.kind),
        ("stream", plan.streams if len(plan.streams) > 1 else (), plan.stream),
        ("phase", phases, plan.site),
        ("layer", layers, plan.site),
    )
    for by, names, index in attributes:
        if not len(names):
            continue
        of = np.array(names)[index]
        for name in [n for n in dict.fromkeys(names) if n]:
            rows = np.flatnonzero(of == name)
            if len(rows):
                yield by, name, rows
