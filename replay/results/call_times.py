"""Time model of a replay: waiting, transfer and duration of every call.

For an operation with members r that call at ``i_r`` and end at ``e_r`` (on one clock),
L = max i_r being the call of the last member:

    transfer  = max e_r - L                 time of the network, s
    wait_r    = min(e_r, L) - i_r           time that member r waits for the last one
    call      = max (e_r - i_r)             waiting and transfer of one member together
    waiting   = sum wait_r / sum (e_r - i_r)   share of the members' time in calls

Bandwidths and ratios to lower bounds use the transfer: a call that waits for a late
member would count that time as network time, and the member's own previous call once
more.  Transfers of consecutive operations on the same ranks do not overlap, so their
sum is at most the duration of the replay.  Bytes that early members exchange before L
are not timed: a transfer may be shorter than its lower bound where members arrive far
apart, but the duration of a pass is not, from the first call of any rank to the last
end of any rank.

Operations of sites that are called in the first iteration alone, such as broadcasts of
parameters, are start-up operations: they are reported apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.times.completion import start_up as in_first_alone
from moetraffic.arrays import Bool, Float64, Int64, Integer
from moetraffic.replay.plan.program import KINDS, Plan, Timing
from moetraffic.trace.clock import to_common
from moetraffic.trace.model import ALL_TO_ALL, CLOCK

START_UP, WITHOUT_PHASE = "start-up", "without a phase"

NO_CLOCKS: npt.NDArray[np.void] = np.zeros(0, CLOCK)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measured durations of the n operations of a plan and of its iterations."""

    call_s: Float64  # [n] longest over members, call to end; NaN if not timed
    transfer_s: Float64  # [n] from the last member's call to the last end
    wait_s: Float64  # [n] summed over members, until the last member's call
    inside_s: Float64  # [n] summed over members, call to end
    slowest: Int64  # [n] world rank with the longest call, -1 for none
    last: Int64  # [n] world rank that arrived last, -1 if it has one member
    rank_wait_s: Float64  # [R] waiting of each rank, all operations
    rank_inside_s: Float64  # [R] its time in calls
    iteration: Int64  # [T] iterations, ascending
    wall_s: Float64  # [T] first call to last end, on the rank for which it is longest
    wall_rank: Int64  # [T] that rank
    pass_s: float  # first call of any rank to last end of any rank

    def waiting(self, at: Int64 | slice = slice(None)) -> float:
        """Return the share of the members' time in calls that they wait; NaN if none.

        ``at`` selects operations.
        """
        inside = float(self.inside_s[at].sum())
        return float(self.wait_s[at].sum()) / inside if inside > 0 else float("nan")


def measure(
    plan: Plan,
    times: Mapping[int, Timing],
    clocks: npt.NDArray[np.void] = NO_CLOCKS,
) -> Measured:
    """Compute operation and iteration durations from the times of all ranks.

    A member whose recorded start is later than its call, as on a device that runs
    behind the host, arrives at the start.

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
    ended = np.full(count, least, np.int64)
    last = np.full(count, -1, np.int64)
    iteration, place = np.unique(plan.iteration, return_inverse=True)
    wall = np.full(len(iteration), -1, np.int64)
    wall_rank = np.full(len(iteration), -1, np.int64)
    members = np.zeros(count, np.int64)
    spans: dict[int, tuple[Int64, Int64, Int64]] = {}
    begins: list[int] = []
    for rank, timing in sorted(times.items()):
        at = timing.operation
        members[at] += 1
        took = timing.end - timing.issue
        more = took > longest[at]
        longest[at[more]], slowest[at[more]] = took[more], rank
        arrival = common(clocks, rank, np.maximum(timing.issue, timing.start))
        end = common(clocks, rank, timing.end)
        spans[rank] = at, arrival, end
        if len(at):
            begins.append(int(common(clocks, rank, timing.issue).min()))
        later = arrival > arrived[at]
        arrived[at[later]], last[at[later]] = arrival[later], rank
        ended[at] = np.maximum(ended[at], end)
        span = _spans(place.reshape(-1)[at], timing, len(iteration))
        more = span > wall
        wall[more], wall_rank[more] = span[more], rank
    timed = members > 0
    last[members < 2] = -1
    wait, inside = np.zeros(count), np.zeros(count)
    rank_wait, rank_inside = np.zeros(plan.world), np.zeros(plan.world)
    for rank, (at, arrival, end) in spans.items():
        waited = np.maximum(np.minimum(end, arrived[at]) - arrival, 0) / 1e9
        within = np.maximum(end - arrival, 0) / 1e9
        wait[at] += waited
        inside[at] += within
        rank_wait[rank], rank_inside[rank] = waited.sum(), within.sum()
    # clock offsets have errors: durations are at least 0
    moved = np.maximum(np.where(timed, ended, 0) - np.where(timed, arrived, 0), 0)
    return Measured(
        call_s=np.where(timed, longest / 1e9, np.nan),
        transfer_s=np.where(timed, moved / 1e9, np.nan),
        wait_s=wait,
        inside_s=inside,
        slowest=slowest,
        last=last,
        rank_wait_s=rank_wait,
        rank_inside_s=rank_inside,
        iteration=np.asarray(iteration, np.int64),
        wall_s=np.where(wall >= 0, wall / 1e9, np.nan),
        wall_rank=wall_rank,
        pass_s=(int(ended.max()) - min(begins)) / 1e9 if begins else math.nan,
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


def start_up(plan: Plan) -> Bool:
    """Mark operations of sites that are called in the first iteration alone, ``[n]``.

    See :func:`moetraffic.analysis.times.completion.start_up`.
    """
    return in_first_alone(plan.iteration, plan.site, first=plan.first)


def parts(plan: Plan) -> Iterator[tuple[str, str, Int64]]:
    """Yield subsets of a plan's operations: attribute, value and indices ``[k]``.

    First all operations; then by kind of operation, stream (if there are several),
    phase and layer; then the all-to-alls without a phase, where others have one, with
    their labels, such as "(count exchange)".  Start-up operations are in none of these,
    but in a subset of their own.
    """
    usual = ~start_up(plan)
    yield "all", "", np.flatnonzero(usual)
    phases = [s.phase for s in plan.sites]
    layers = [str(s.layer) if s.layer >= 0 else "" for s in plan.sites]
    attributes: tuple[tuple[str, Sequence[str], Integer], ...] = (
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
            rows = np.flatnonzero((of == name) & usual)
            if len(rows):
                yield by, name, rows
    bare = np.array(
        [s.operation == ALL_TO_ALL and not s.phase for s in plan.sites], bool
    )
    rows = np.flatnonzero(bare[plan.site] & usual)
    if len(rows) and any(phases):
        told = dict.fromkeys(plan.sites[n].label for n in np.unique(plan.site[rows]))
        labels = ", ".join(filter(None, told)).replace("_", " ")
        yield WITHOUT_PHASE, f"({labels})" if labels else "", rows
    if not usual.all():
        yield START_UP, "", np.flatnonzero(~usual)
