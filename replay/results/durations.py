"""Waiting, transfer and duration of every operation of a replay.

For an operation with members r that call at ``i_r`` and end at ``e_r`` (on one clock),
L = max i_r being the call of the last member:

    transfer  = max e_r - L                 time of the network, s
    wait_r    = min(e_r, L) - i_r           time that member r waits for the last one
    call      = max (e_r - i_r)             waiting and transfer of one member together
    waiting   = sum wait_r / sum (e_r - i_r)   share of the members' time in calls

Bandwidths and ratios to bounds use the transfer, as nccl-tests, whose ranks call at the
same time.  Bytes that early members exchange before L are not timed, so a transfer may
be shorter than its bound where members arrive far apart; a pass, from the first call of
any rank to the last end of any rank, is not.  A transfer shorter than the error of the
members' clocks is not determined.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.times.completion import start_up as in_first_alone
from moetraffic.arrays import Bool, Float64, Int64
from moetraffic.replay.plan.operations import KINDS, Plan
from moetraffic.replay.plan.program import Timing
from moetraffic.trace.clock import to_common
from moetraffic.trace.model import CLOCK

Times = Mapping[int, Timing]
"""Times of the operations of every rank, on its own clock."""

NO_CLOCKS: npt.NDArray[np.void] = np.zeros(0, CLOCK)
"""Knots of ranks that share one clock."""


@dataclass(frozen=True, kw_only=True)
class Durations:
    """Durations of the n operations of a pass, of its ranks and of its iterations."""

    call_s: Float64  # [n] longest over members, call to end; NaN: not timed
    transfer_s: Float64  # [n] from the last member's call to the last end
    wait_s: Float64  # [n] summed over members, until the last member's call
    inside_s: Float64  # [n] summed over members, call to end
    error_s: Float64  # [n] error of the members' clocks
    last: Int64  # [n] world rank that called last, -1 if it has one member
    rank_wait_s: Float64  # [R] waiting of each rank, all operations
    rank_inside_s: Float64  # [R] its time in calls
    iteration: Int64  # [T] iterations, ascending
    wall_s: Float64  # [T] first call to last end, on the rank for which it is longest
    pass_s: float  # first call of any rank to last end of any rank

    def waiting(self, rows: Int64 | slice = slice(None)) -> float:
        """Return the share of the members' time in calls that they wait; NaN: none."""
        inside = float(self.inside_s[rows].sum())
        return float(self.wait_s[rows].sum()) / inside if inside > 0 else math.nan


def durations(
    plan: Plan,
    times: Times,
    clocks: npt.NDArray[np.void] = NO_CLOCKS,
    nodes: Sequence[str] = (),
) -> Durations:
    """Compute the durations of a pass from the times of all ranks.

    On a device that runs behind the host, the issue is the start there.  ``clocks`` are
    knots of type CLOCK, and ``nodes`` the host of each rank.
    """
    count, least = len(plan), np.iinfo(np.int64).min
    longest, last = np.full((2, count), -1, np.int64)
    arrived, ended = np.full((2, count), least, np.int64)
    members = np.zeros(count, np.int64)
    iteration, place = np.unique(plan.iteration, return_inverse=True)
    place = place.reshape(-1)
    wall = np.full(len(iteration), -1, np.int64)
    first_call = np.iinfo(np.int64).max
    spans: dict[int, tuple[Int64, Int64, Int64]] = {}
    for rank, timing in sorted(times.items()):
        rows = timing.operation
        arrival = common(clocks, rank, timing.issue)
        end = common(clocks, rank, timing.end)
        members[rows] += 1
        longest[rows] = np.maximum(longest[rows], timing.end - timing.issue)
        later = arrival > arrived[rows]
        arrived[rows[later]], last[rows[later]] = arrival[later], rank
        ended[rows] = np.maximum(ended[rows], end)
        first = np.full(len(iteration), np.iinfo(np.int64).max, np.int64)
        final = np.full(len(iteration), -1, np.int64)
        np.minimum.at(first, place[rows], timing.issue)
        np.maximum.at(final, place[rows], timing.end)
        wall = np.maximum(
            wall, np.where(final < 0, -1, final - np.minimum(first, final))
        )
        first_call = min(first_call, int(arrival.min(initial=first_call)))
        spans[rank] = rows, arrival, end
    timed = members > 0
    last[members < 2] = -1
    wait, inside = np.zeros((2, count))
    rank_wait, rank_inside = np.zeros((2, plan.world))
    for rank, (rows, arrival, end) in spans.items():
        waited = np.maximum(np.minimum(end, arrived[rows]) - arrival, 0) / 1e9
        within = np.maximum(end - arrival, 0) / 1e9
        wait[rows] += waited
        inside[rows] += within
        rank_wait[rank], rank_inside[rank] = waited.sum(), within.sum()
    # clock offsets have errors: durations are at least 0
    moved = np.maximum(np.where(timed, ended, 0) - np.where(timed, arrived, 0), 0)
    return Durations(
        call_s=np.where(timed, longest / 1e9, np.nan),
        transfer_s=np.where(timed, moved / 1e9, np.nan),
        wait_s=wait,
        inside_s=inside,
        error_s=clock_errors_s(plan, clocks, nodes),
        last=last,
        rank_wait_s=rank_wait,
        rank_inside_s=rank_inside,
        iteration=iteration,
        wall_s=np.where(wall >= 0, wall / 1e9, np.nan),
        pass_s=(int(ended.max()) - first_call) / 1e9 if timed.any() else math.nan,
    )


def common(clocks: npt.NDArray[np.void], rank: int, times: Int64) -> Int64:
    """Convert times of a rank, ``[N]`` int64 ns, to rank 0's clock."""
    if not len(clocks):
        return times
    return to_common(clocks, np.full((len(times), 1), rank), times[:, None])[:, 0]


def clock_errors_s(
    plan: Plan, clocks: npt.NDArray[np.void], nodes: Sequence[str]
) -> Float64:
    """Compute the error of differences between the members' clocks, ``[n]`` s.

    It is the sum of the errors of the two least exact hosts; ranks of one host share
    its clock.
    """
    worst: dict[str | int, int] = {}
    for rank, error in zip(clocks["rank"].tolist(), clocks["error_ns"], strict=True):
        host = nodes[rank] if nodes else rank
        worst[host] = max(worst.get(host, 0), int(error))
    of_group = np.zeros(len(plan.groups))
    for number, ranks in enumerate(plan.groups):
        hosts = {nodes[rank] if nodes else rank for rank in ranks}
        errors = sorted(worst.get(host, 0) for host in hosts)
        of_group[number] = sum(errors[-2:]) / 1e9 if len(hosts) > 1 else 0.0
    return of_group[plan.group]


def start_up(plan: Plan) -> Bool:
    """Mark operations of sites that the first iteration alone calls, ``[n]``."""
    return in_first_alone(plan.iteration, plan.site, first=plan.first)


def parts(plan: Plan) -> Iterator[tuple[str, str, Int64]]:
    """Yield subsets of a plan's operations: attribute, value and indices ``[k]``.

    First all operations; then by operation, stream (if there are several), phase and
    layer.  Start-up operations, such as broadcasts of parameters, are in none of
    these, but in a subset of their own.
    """
    usual = ~start_up(plan)
    yield "all", "", np.flatnonzero(usual)
    sites = plan.sites
    streams = plan.streams if len(plan.streams) > 1 else ("",) * len(plan.streams)
    for by, names, index in (
        ("operation", KINDS, plan.kind),
        ("stream", streams, plan.stream),
        ("phase", [s.phase for s in sites], plan.site),
        ("layer", [str(s.layer) if s.layer >= 0 else "" for s in sites], plan.site),
    ):
        values = np.array(names)[index]
        present = set(values[usual].tolist()) - {""}
        for name in dict.fromkeys(n for n in names if n in present):
            yield by, name, np.flatnonzero((values == name) & usual)
    if not usual.all():
        yield "start-up", "", np.flatnonzero(~usual)
