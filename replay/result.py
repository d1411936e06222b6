"""What a replay gives: a trace with the new times, and a summary.

An operation's time t is the longest over its members from the call to the exchange's
end, as nccl-tests reports with ``--average 3``; it needs no common clock.  With row and
column sums of the operation's matrix of bytes:

    algbw = (largest row or column sum) / t
    busbw = (largest row or column sum without the diagonal) / t

For an even all-to-all of n ranks that is nccl-tests' algbw = S/t and busbw = algbw
(n-1)/n, S being a rank's buffer; for an uneven one busbw says what the busiest rank's
link carried.

References
----------
NVIDIA, nccl-tests, doc/PERFORMANCE.md, "Bandwidth", and src/alltoall.cu.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone

import numpy as np

import moetraffic
from moetraffic.trace.model import (
    ALL_TO_ALL,
    CLOCK,
    UNKNOWN_TIME,
    Float64,
    Int64,
    Steps,
)
from moetraffic.trace.trace import Trace

from .plan import Plan

_SLOWEST = 5


@dataclass(frozen=True, kw_only=True)
class Timing:
    """When one rank's operations happened, ns of its ``time.monotonic_ns``."""

    operation: Int64  # [N] index into the plan's operations
    issue: Int64  # [N] the call
    start: Int64  # [N] the exchange's beginning
    end: Int64  # [N] its end


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How a measured quantity is spread over operations."""

    min: float
    p50: float
    mean: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, kw_only=True)
class Slow:
    """One of the slowest operations."""

    operation: str
    time_us: float
    bytes: int
    rank: int  # the member that waited longest


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A replay in figures; what has no value is None."""

    source: str  # the trace that was replayed
    out: str  # the trace that was written, "" for none
    backend: str
    pace: str
    ranks: int
    nodes: tuple[str, ...]  # host of each rank
    first_iteration: int
    last_iteration: int
    operations: int
    left_out: Mapping[str, int]  # collectives of the trace that were not replayed
    verified: bool  # every size and every byte, in a pass of its own
    digest: str  # of the plan that all ranks agreed on
    total_bytes: int  # all bytes, also those that ranks send to themselves
    network_bytes: int  # bytes between different ranks
    rank_bytes: tuple[int, ...]  # that each rank sent
    buffer_bytes: int  # send and receive buffer of rank 0
    wall_s: float  # first call to last end, of the rank for which that is longest
    time_us: Spread
    algbw_gbs: Spread | None  # of operations that move bytes
    busbw_gbs: Spread | None  # of operations that move bytes between ranks
    total_busbw_gbs: float | None  # sum of busiest links' bytes / sum of times
    slowest: tuple[Slow, ...]
    straggler: int | None  # the rank that others waited for most often
    straggler_share: float  # in how many of the operations with several members

    def to_json(self) -> str:
        """One JSON object; names end in the unit: bytes, ``_s``, ``_us``, ``_gbs``.

        GB is 1e9 bytes.
        """
        return json.dumps({"kind": "moetraffic replay", **asdict(self)})


def member_times(plan: Plan, times: Mapping[int, Timing]) -> tuple[Int64, Int64, Int64]:
    """Of each operation: longest and shortest time of a member, and whose.

    Returns
    -------
    tuple of ndarray
        ``[n]`` int64 ns of the slowest member; ``[n]`` world rank of the slowest;
        ``[n]`` world rank of the fastest, which came last and was waited for, or -1
        where the group has one member.
    """
    count = len(plan)
    longest = np.full(count, -1, np.int64)
    shortest = np.full(count, np.iinfo(np.int64).max, np.int64)
    slow = np.full(count, -1, np.int64)
    fast = np.full(count, -1, np.int64)
    for rank, timing in sorted(times.items()):
        at = timing.operation
        took = timing.end - timing.issue
        more = took > longest[at]
        longest[at[more]], slow[at[more]] = took[more], rank
        less = took < shortest[at]
        shortest[at[less]], fast[at[less]] = took[less], rank
    alone = np.array([len(plan.groups[s.group]) == 1 for s in plan.sites], bool)
    fast[alone[plan.site]] = -1
    return longest, slow, fast


def summarize(
    plan: Plan,
    times: Mapping[int, Timing],
    *,
    backend: str,
    nodes: Sequence[str],
    verified: bool,
    out: str = "",
) -> Summary:
    """A replay in figures.

    Parameters
    ----------
    plan
        What was replayed; this rank's program is enough.
    times
        Every rank's times.
    backend, nodes, verified, out
        As in :class:`Summary`.
    """
    took, slow, fast = member_times(plan, times)
    seconds = took / 1e9
    walls = [t.end.max() - t.issue.min() for t in times.values() if len(t.end)]
    moved = (plan.largest_bytes > 0) & (took > 0)
    crossed = (plan.bottleneck_bytes > 0) & (took > 0)
    busbw = plan.bottleneck_bytes[crossed] / seconds[crossed] / 1e9
    waited = np.bincount(fast[fast >= 0], minlength=plan.world)
    worst = np.argsort(-took, kind="stable")[:_SLOWEST].tolist()
    return Summary(
        source=plan.source,
        out=out,
        backend=backend,
        pace="asap",
        ranks=plan.world,
        nodes=tuple(nodes),
        first_iteration=int(plan.iteration.min()),
        last_iteration=int(plan.iteration.max()),
        operations=len(plan),
        left_out=dict(plan.left_out),
        verified=verified,
        digest=plan.digest,
        total_bytes=int(plan.total_bytes.sum()),
        network_bytes=int(plan.network_bytes.sum()),
        rank_bytes=tuple(plan.rank_bytes.tolist()),
        buffer_bytes=max(sum(p.buffer_bytes) for p in plan.programs.values()),
        wall_s=float(max(walls)) / 1e9,
        time_us=_spread(took / 1e3),
        algbw_gbs=_spread(plan.largest_bytes[moved] / seconds[moved] / 1e9)
        if moved.any()
        else None,
        busbw_gbs=_spread(busbw) if crossed.any() else None,
        total_busbw_gbs=float(
            plan.bottleneck_bytes[crossed].sum() / seconds[crossed].sum() / 1e9
        )
        if crossed.any()
        else None,
        slowest=tuple(
            Slow(
                operation=plan.name(n),
                time_us=float(took[n]) / 1e3,
                bytes=int(plan.total_bytes[n]),
                rank=int(slow[n]),
            )
            for n in worst
        ),
        straggler=int(waited.argmax()) if waited.any() else None,
        straggler_share=float(waited.max() / waited.sum()) if waited.any() else 0.0,
    )


def replayed(
    trace: Trace,
    plan: Plan,
    times: Mapping[int, Timing],
    *,
    backend: str,
    nodes: Sequence[str],
    torch_version: str = "",
) -> Trace:
    """The trace of the replay: the same traffic, at the times of the replay.

    Routings keep their demand and have no times.  Losses and tokens are unknown: a
    replay trains nothing.  Each rank's times are of its own clock.

    Parameters
    ----------
    trace
        The trace that was replayed.
    plan
        What was replayed; this rank's program is enough.
    times
        Every rank's times.
    """
    chosen = trace.select(plan.occurrence)
    same = chosen.find(operation=ALL_TO_ALL, kind=None)
    width = np.array([len(g.ranks) for g in trace.groups], np.int64)
    site_width = width[[s.group for s in trace.sites]]
    occurrence_width = site_width[chosen.occurrences.site]
    row = np.zeros(len(chosen.occurrences), np.int64)
    panels: dict[str, dict[int, Int64]] = {"issue": {}, "start": {}, "end": {}}
    for size in np.unique(occurrence_width).tolist():
        mine = occurrence_width == size
        row[mine] = np.arange(np.count_nonzero(mine))
        for panel in panels.values():
            panel[size] = np.full(
                (np.count_nonzero(mine), size), UNKNOWN_TIME, np.int64
            )
    for rank, timing in times.items():
        seat = [g.ranks.index(rank) if rank in g.ranks else -1 for g in trace.groups]
        group = np.array([s.group for s in trace.sites])[plan.site[timing.operation]]
        member = np.array(seat)[group]
        at = same[timing.operation]
        for size in np.unique(occurrence_width[at]).tolist():
            here = occurrence_width[at] == size
            into = row[at[here]], member[here]
            for name, panel in panels.items():
                panel[size][into] = getattr(timing, name)[here]
    meta = replace(
        trace.meta,
        origin="replayed",
        source=plan.source,
        backend=backend,
        nodes=tuple(nodes),
        complete=True,
        missing="",
        moetraffic=moetraffic.__version__,
        torch=torch_version,
        python=platform.python_version(),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )
    return chosen.replace(
        issue=panels["issue"],
        start=panels["start"],
        end=panels["end"],
        meta=meta,
        steps=_steps(trace, plan, times),
        clocks=np.zeros(0, CLOCK),
    )


def _steps(trace: Trace, plan: Plan, times: Mapping[int, Timing]) -> Steps:
    """A step an iteration, from its first call to its last end on each rank."""
    iterations = np.unique(plan.iteration)
    kinds = dict(zip(trace.steps.iteration.tolist(), trace.steps.kind, strict=True))
    shape = len(iterations), plan.world
    begin = np.full(shape, np.iinfo(np.int64).max, np.int64)
    end = np.full(shape, UNKNOWN_TIME, np.int64)
    for rank, timing in times.items():
        at = np.searchsorted(iterations, plan.iteration[timing.operation])
        np.minimum.at(begin[:, rank], at, timing.issue)
        np.maximum.at(end[:, rank], at, timing.end)
    return Steps(
        iteration=iterations,
        kind=tuple(kinds.get(i, "train") for i in iterations.tolist()),
        loss=np.full(shape, np.nan),
        tokens=np.full(shape, -1, np.int64),
        start=np.where(end == UNKNOWN_TIME, UNKNOWN_TIME, begin),
        end=end,
    )


def _spread(values: Float64) -> Spread:
    p50, p90, p99 = np.percentile(values, [50, 90, 99]).tolist()
    return Spread(
        min=float(values.min()),
        p50=p50,
        mean=float(values.mean()),
        p90=p90,
        p99=p99,
        max=float(values.max()),
    )
