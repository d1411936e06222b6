"""A replay in figures.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from moetraffic.replay.execution.timing import Timing
from moetraffic.replay.plan.program import KINDS, Plan
from moetraffic.tables import Table
from moetraffic.trace.model import Float64

from .durations import Measured
from .fidelity import Fidelity
from .records import to_json

_SLOWEST = 5


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
class SlowOperation:
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
    kinds: Mapping[str, int]  # how many of each kind
    streams: tuple[str, ...]  # that overlapped
    left_out: Mapping[str, int]  # collectives of the trace that were not replayed
    verified: str  # whose bytes, in a pass of its own: "full", "sample of ...", "none"
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
    slowest: tuple[SlowOperation, ...]
    straggler: int | None  # the rank that came last most often
    straggler_share: float  # in how many of the operations with several members
    notes: tuple[str, ...] = ()  # what scaling, padding, completing changed, in words
    fidelity: Fidelity | None = None  # how it stands to what it repeats

    def to_json(self) -> str:
        """One JSON object; names end in the unit: bytes, ``_s``, ``_us``, ``_gbs``.

        GB is 1e9 bytes.
        """
        return to_json("moetraffic replay", self)

    def _repr_html_(self) -> str:
        """How a notebook shows it: what was moved, and how fast."""
        rows: list[tuple[str, object]] = [
            ("backend", self.backend),
            ("pace", self.pace),
            ("ranks", self.ranks),
            ("operations", self.operations),
            ("verified", "every size and byte" if self.verified else "not"),
            ("bytes between ranks", self.network_bytes),
            ("wall time, s", self.wall_s),
            ("median operation, us", self.time_us.p50),
            ("99th percentile, us", self.time_us.p99),
        ]
        if self.total_busbw_gbs is not None:
            rows.append(("busbw, GB/s", self.total_busbw_gbs))
        return Table(
            title=f"replay of {self.source}", rows=rows, notes=self.notes
        ).to_html()


def summarize(
    plan: Plan,
    times: Mapping[int, Timing],
    measured: Measured,
    *,
    backend: str,
    nodes: Sequence[str],
    verified: str,
    pace: str = "asap",
    out: str = "",
    fidelity: Fidelity | None = None,
) -> Summary:
    """A replay in figures.

    Parameters
    ----------
    plan
        What was replayed; this rank's program is enough.
    times
        Every rank's times.
    measured
        What operations took, of these.
    backend, nodes, verified, pace, out, fidelity
        As in :class:`Summary`.
    """
    timed = np.isfinite(measured.call_s)
    seconds = np.where(timed, measured.call_s, 0.0)
    walls = [t.end.max() - t.issue.min() for t in times.values() if len(t.end)]
    moved = (plan.largest_bytes > 0) & (seconds > 0)
    crossed = (plan.bottleneck_bytes > 0) & (seconds > 0)
    busbw = plan.bottleneck_bytes[crossed] / seconds[crossed] / 1e9
    waited = np.bincount(measured.last[measured.last >= 0], minlength=plan.world)
    worst = np.argsort(-seconds, kind="stable")[:_SLOWEST].tolist()
    kinds = np.bincount(plan.kind, minlength=len(KINDS)).tolist()
    return Summary(
        source=plan.source,
        out=out,
        backend=backend,
        pace=pace,
        ranks=plan.world,
        nodes=tuple(nodes),
        first_iteration=int(plan.iteration.min()),
        last_iteration=int(plan.iteration.max()),
        operations=len(plan),
        kinds={k: n for k, n in zip(KINDS, kinds, strict=True) if n},
        streams=plan.streams,
        left_out=dict(plan.left_out),
        verified=verified,
        digest=plan.digest,
        total_bytes=int(plan.total_bytes.sum()),
        network_bytes=int(plan.network_bytes.sum()),
        rank_bytes=tuple(plan.rank_bytes.tolist()),
        buffer_bytes=max(sum(p.buffer_bytes) for p in plan.programs.values()),
        wall_s=float(max(walls)) / 1e9,
        time_us=_spread(seconds[timed] * 1e6),
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
            SlowOperation(
                operation=plan.name(n),
                time_us=float(seconds[n]) * 1e6,
                bytes=int(plan.total_bytes[n]),
                rank=int(measured.slowest[n]),
            )
            for n in worst
        ),
        straggler=int(waited.argmax()) if waited.any() else None,
        straggler_share=float(waited.max() / waited.sum()) if waited.any() else 0.0,
        notes=plan.notes,
        fidelity=fidelity,
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
