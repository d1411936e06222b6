"""Result of a replay: bytes, times, bandwidths and comparison with baselines.

The time t of an operation is its transfer, from the call of the last member to the last
end (:mod:`.call_times`): that of nccl-tests, whose ranks call at the same time.  With
row and column sums of the operation's byte matrix:

    algbw = (largest row or column sum) / t
    busbw = (largest row or column sum without the diagonal) / t

For an even all-to-all of n ranks these are nccl-tests' algbw = S/t and busbw = algbw
(n-1)/n, S being a rank's buffer; for an uneven one busbw is the bandwidth of the
busiest rank's link.

The parent of the ranks imports this module, which therefore computes no comparison:
:mod:`.audit` does.

References
----------
NVIDIA, nccl-tests, doc/PERFORMANCE.md, "Bandwidth", and src/alltoall.cu.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moetraffic.analysis.intervals import UNKNOWN, Interval
from moetraffic.analysis.times.completion import Quantiles
from moetraffic.arrays import Float64
from moetraffic.errors import ReplayError
from moetraffic.files import write_text
from moetraffic.replay.plan.program import KINDS, Plan
from moetraffic.tables import ShownAsTables

from .call_times import Measured, start_up
from .machine_load import HostLoad
from .output import to_json
from .ports import Ports

if TYPE_CHECKING:
    import pandas as pd


LATE_S = 1e-3
"""Delay after the due time, in s, above which an operation counts as late."""

NO_NIC = "no NIC or switch in use"
"""End of the description of a network of which one host has all ranks."""


@dataclass(frozen=True, kw_only=True)
class PartFidelity:
    """Durations of a subset of operations, or of iterations, and their ratios.

    Of several runs, ratios, waiting and busbw are means over the runs, and the rest is
    of the run in :attr:`Fidelity.shown_run`, as are ``shown_waiting`` and
    ``shown_busbw_gbs``.
    """

    by: str  # "all", "operation", "stream", "phase", "layer", "start-up", "iteration",
    # or "without a phase": all-to-alls that have none, such as exchanges of counts
    label: str
    number: int  # operations, or iterations
    total_bytes: int  # bytes of the operations, also those of ranks to themselves
    network_bytes: int  # bytes between different ranks
    time_s: Quantiles  # on the slowest member; of iterations, first to last
    transfer_s: Quantiles | None = None  # from the last call; None: iterations
    straggler: int  # rank most often last; of iterations, most often slowest
    straggler_share: float  # share of the operations, or iterations, in which it is
    waiting: float = float("nan")  # share of the members' time in calls
    busbw_gbs: float = float("nan")  # busiest links' bytes over transfer; NaN for none
    busbw_low_gbs: float = float("nan")  # its interval
    busbw_high_gbs: float = float("nan")
    shown_waiting: float = float("nan")  # of the shown run, as the times are
    shown_busbw_gbs: float = float("nan")
    over_captured: Interval  # call time, or wall time, over the captured run's
    transfer_over_captured: Interval = UNKNOWN
    over_bound: Interval = UNKNOWN  # transfer times over the operations' lower
    # bounds; of iterations, time of the pass over that of all its bytes
    over_ports: Interval = UNKNOWN  # transfer over the bound of measured ports
    over_model: Interval = UNKNOWN  # transfer over the table of measurements

    @property
    def busbw(self) -> Interval:
        """Busbw with its interval, GB/s."""
        low, high = self.busbw_low_gbs, self.busbw_high_gbs
        return Interval(value=self.busbw_gbs, low=low, high=high)

    @property
    def name(self) -> str:
        """Name of the subset of operations, for tables."""
        return f"{self.by} {self.label}".strip()


@dataclass(frozen=True, kw_only=True)
class Punctuality:
    """Deviation of replayed issue times from their schedule, over all ranks."""

    scheduled: int  # operations, over all ranks, whose due time is known
    error_p50_s: float  # of the absolute error
    error_p90_s: float
    error_p99_s: float
    error_max_s: float
    mean_s: float  # signed: above 0 is behind the schedule
    late: int  # operations issued more than LATE_S after they were due
    behind_s: float  # at the last operation, on the rank that is furthest behind
    worst_rank: int  # that rank
    schedule_s: float  # length on the rank with the largest deviation; NaN: unknown
    took_s: float  # duration of the replay there, first issue to last

    @property
    def off(self) -> float:
        """Duration of the replay divided by that of the schedule, minus 1."""
        return self.took_s / self.schedule_s - 1


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """Comparison of a replay with the captured run and other baselines."""

    parts: tuple[PartFidelity, ...]
    runs: int = 1  # timed passes
    shown_run: int = 0  # the run of the median transfer time, whose times are shown
    punctuality: Punctuality | None  # None if issued as soon as possible
    slowdown: Interval | None  # of all-to-alls with dense traffic over without
    control: Interval | None = None  # the same with dense operations without bytes
    # with these bytes over without, over pairs
    slowdown_by_bytes: Interval | None = None
    pairs: int  # pairs of passes of the slowdown
    bound_of: str  # the network of the lower bound, "" for none
    bound_exceeded: bool = False  # by measured ports
    bound_hosts_match: bool = True  # same ranks on each host
    pass_bound_s: float = float("nan")  # lower bound of a pass, all operations together
    model_of: str  # the table of measurements, "" for none
    model_beyond: str = ""  # how many sizes are outside its range, "" for none
    clock_error_s: float  # of converting times to one clock; 0: all share one
    notes: tuple[str, ...]

    def part(self, by: str, label: str = "") -> PartFidelity | None:
        """Return a part by attribute and value; None if there is none."""
        return next((p for p in self.parts if (p.by, p.label) == (by, label)), None)


_SLOWEST = 5
_FIGURES = (
    *("waiting", "busbw_gbs", "busbw_low_gbs", "busbw_high_gbs"),
    *("shown_waiting", "shown_busbw_gbs", "straggler", "straggler_share"),
)
RATIOS = (
    *("over_captured", "transfer_over_captured"),
    *("over_bound", "over_ports", "over_model"),
)
"""Fields of a part that are ratios of total times."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Distribution of a quantity over operations."""

    min: float
    p50: float
    mean: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, kw_only=True)
class SlowOperation:
    """One of the slowest operations of a replay, with its time and rank."""

    operation: str
    time_us: float
    bytes: int
    rank: int  # the member that waited longest


@dataclass(frozen=True, kw_only=True)
class Replay(ShownAsTables):
    """Result of a replay: bytes, times, bandwidths, fidelity; None if unavailable."""

    registered_in = "moetraffic.replay.results.summary"

    source: str  # the trace that was replayed
    out: str  # the trace that was written, "" for none
    backend: str
    pace: str
    ranks: int
    nodes: tuple[str, ...]  # host of each rank
    first_iteration: int
    last_iteration: int
    operations: int
    kinds: Mapping[str, int]  # number of operations of each kind
    streams: tuple[str, ...]  # streams that overlapped
    left_out: Mapping[str, int]  # collectives of the trace that were not replayed
    verified: str  # "full", "sample of ...", "none": bytes verified before the timing
    digest: str  # of the plan that all ranks agreed on
    total_bytes: int  # traffic, also that of ranks to themselves; of collectives other
    # than all-to-alls that of a ring (moetraffic.patterns.collectives)
    network_bytes: int  # bytes between different ranks
    rank_bytes: tuple[int, ...]  # that each rank sent
    buffer_bytes: int  # send and receive buffer of rank 0
    wall_s: float  # of a pass: first call of any rank to last end of any rank
    transfer_s: float  # sum over operations
    waiting: float | None  # share of the ranks' time in calls
    rank_waiting: tuple[float | None, ...]  # of each rank
    runs: int  # timed passes
    time_us: Spread  # of calls: waiting and transfer of the slowest member
    transfer_us: Spread
    algbw_gbs: Spread | None  # of operations that move bytes
    busbw_gbs: Spread | None  # of operations that move bytes between ranks
    total_busbw_gbs: float | None  # sum of busiest links' bytes / sum of transfers
    slowest: tuple[SlowOperation, ...]
    straggler: int | None  # the rank that arrived last most often
    straggler_share: float  # its share of the operations with several members
    notes: tuple[str, ...] = ()  # descriptions of scaling, padding and completion
    load: tuple[HostLoad, ...] = ()  # other processes on each host meanwhile
    ports: Ports | None = None  # rates of the ranks' ports, measured before
    fidelity: Fidelity | None = None  # comparison with the captured run and baselines

    def to_json(self) -> str:
        """Format as a JSON object; names end in the unit: bytes, ``_s``, ``_gbs``.

        GB is 1e9 bytes.
        """
        return to_json("moetraffic replay", self)

    def write_fidelity(self, path: Path) -> None:
        """Write the comparison with baselines and the rates of ports as JSON.

        Raises
        ------
        ReplayError
            If the file cannot be written.
        """
        if self.fidelity is not None:
            found = {**vars(self.fidelity), "ports": self.ports}
            text = to_json("moetraffic replay fidelity", found, indent=2)
            write_text(path, text + "\n", error=ReplayError)

    def to_frame(self) -> pd.DataFrame:
        """Return times, bandwidths and ratios as a tidy pandas DataFrame.

        Returns
        -------
        DataFrame
            One row for each part of the replay:

            part, label
                ``"all"``; or ``"operation"`` with a kind of collective, ``"stream"``,
                ``"phase"`` or ``"layer"`` with its name; ``"without a phase"``, with
                the labels of these all-to-alls; or ``"iteration"``.
            number
                Operations, or iterations.
            total_bytes, network_bytes
                Traffic (of all-to-alls with rank-local bytes, of other collectives that
                of a ring), and the part between different ranks.
            time_p50_s, time_p90_s, time_p99_s, time_max_s, time_total_s
                From the call to the end, on the slowest member.
            waiting
                Share of the members' time in calls before the last member's call.
            transfer_p50_s, ..., transfer_total_s
                From the last member's call to the last end.
            busbw_gbs, busbw_low_gbs, busbw_high_gbs
                Bytes of the busiest links over the transfer time, GB/s, with its 95%
                confidence interval; of several runs, the mean.
            shown_waiting, shown_busbw_gbs
                Those of the run whose times are given: the one of the median total.
            straggler, straggler_share
                Rank that arrived last most often (-1 for none), and its share.
            over_captured, over_captured_low, over_captured_high
                Total call time over that of the captured run, with its 95% confidence
                interval.
            transfer_over_captured, over_bound, over_ports, over_model (_low, _high)
                Likewise transfer time over that of the captured run, over the lower
                bound on a network, over that of the measured ports, and over a table
                of measurements.

            Unknown values are NaN.
        """
        import pandas as pd

        parts = self.fidelity.parts if self.fidelity is not None else ()
        return pd.DataFrame([_row(part) for part in parts])


def _row(part: PartFidelity) -> dict[str, Any]:
    row: dict[str, Any] = {"part": part.by, "label": part.label}
    for name in ("number", "total_bytes", "network_bytes"):
        row[name] = getattr(part, name)
    for prefix, found in (("time", part.time_s), ("transfer", part.transfer_s)):
        for name in ("p50", "p90", "p99", "max", "total"):
            row[f"{prefix}_{name}_s"] = getattr(found, name, float("nan"))
    for name in _FIGURES:
        row[name] = getattr(part, name)
    for name in RATIOS:
        ratio = getattr(part, name)
        row |= {name: ratio.value, f"{name}_low": ratio.low, f"{name}_high": ratio.high}
    return row


def summarize(
    plan: Plan,
    measured: Measured,
    *,
    backend: str,
    nodes: Sequence[str],
    verified: str,
    pace: str = "asap",
    out: str = "",
    fidelity: Fidelity | None = None,
    load: Sequence[HostLoad] = (),
    ports: Ports | None = None,
) -> Replay:
    """Summarize the bytes, times and bandwidths of a replay.

    Figures over all operations leave start-up operations out.
    """
    timed = np.isfinite(measured.call_s) & ~start_up(plan)
    called = np.where(timed, measured.call_s, 0.0)
    seconds = np.where(timed, measured.transfer_s, 0.0)
    moved = (plan.largest_bytes > 0) & (seconds > 0)
    crossed = (plan.bottleneck_bytes > 0) & (seconds > 0)
    link_bytes, link_s = plan.bottleneck_bytes[crossed], seconds[crossed]
    waited = np.bincount(measured.last[measured.last >= 0], minlength=plan.world)
    slowest = np.argsort(-called, kind="stable")[:_SLOWEST].tolist()
    kinds = np.bincount(plan.kind, minlength=len(KINDS)).tolist()
    return Replay(
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
        wall_s=measured.pass_s,
        transfer_s=float(seconds.sum()),
        waiting=_known(measured.waiting(np.flatnonzero(timed))),
        rank_waiting=tuple(
            _known(wait / inside) if inside > 0 else None
            for wait, inside in zip(
                measured.rank_wait_s.tolist(),
                measured.rank_inside_s.tolist(),
                strict=True,
            )
        ),
        runs=fidelity.runs if fidelity is not None else 1,
        time_us=_spread(called[timed] * 1e6),
        transfer_us=_spread(seconds[timed] * 1e6),
        algbw_gbs=_spread(plan.largest_bytes[moved] / seconds[moved] / 1e9)
        if moved.any()
        else None,
        busbw_gbs=_spread(link_bytes / link_s / 1e9) if crossed.any() else None,
        total_busbw_gbs=float(link_bytes.sum() / link_s.sum() / 1e9)
        if crossed.any()
        else None,
        slowest=tuple(
            SlowOperation(
                operation=plan.name(n),
                time_us=float(called[n]) * 1e6,
                bytes=int(plan.total_bytes[n]),
                rank=int(measured.slowest[n]),
            )
            for n in slowest
        ),
        straggler=int(waited.argmax()) if waited.any() else None,
        straggler_share=float(waited.max() / waited.sum()) if waited.any() else 0.0,
        notes=plan.notes,
        load=tuple(load),
        ports=ports,
        fidelity=fidelity,
    )


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None


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
