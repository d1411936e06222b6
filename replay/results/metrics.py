"""Progress of a running replay, and its metrics for Prometheus' node exporter.

Progress is tracked from the heartbeats of the ranks: operations, rate, late ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import Metric

from moetraffic.errors import ReplayError
from moetraffic.launch import Heartbeat
from moetraffic.replay.request import Request
from moetraffic.report import prometheus
from moetraffic.report.prometheus import gauge, metric
from moetraffic.trace.hdf5.durable import write_text
from moetraffic.units import duration

from .output import to_json
from .result import Fidelity, Replay

STAGES = {"verify": "verifying", "replay": "replaying"}
"""Displayed names of the passes, by their names in heartbeats."""

BEHIND = 0.02
"""Share of a pass by which a rank that counts as late is behind the fastest."""

SETTLED_S = 1.0
"""Time, in s, after which the rate of a pass is displayed."""


@dataclass
class Progress:
    """Progress of all ranks in the current pass."""

    ranks: int
    clock: Callable[[], float] = time.monotonic
    stage: str = ""
    began_s: float = 0.0
    done_of: list[int] = field(default_factory=list)  # operations done, per rank
    planned_of: list[int] = field(default_factory=list)  # operations to do, per rank
    slowest_us: float = 0.0  # duration of the slowest operation reported
    slowest: str = ""  # its name and rank

    def update(self, event: Heartbeat) -> bool:
        """Update from a heartbeat; return whether it reported progress of a pass."""
        stage, of = event.fields.get("stage"), event.fields.get("of")
        done = event.fields.get("done")
        if stage not in STAGES or not isinstance(of, int) or not isinstance(done, int):
            return False
        if not 0 <= event.rank < self.ranks:
            return False
        if stage != self.stage:
            # ignore ranks that still verify when others are in the timed pass
            if self.stage == "replay":
                return False
            self.stage, self.began_s = stage, self.clock()
            self.done_of, self.planned_of = [0] * self.ranks, [0] * self.ranks
        self.done_of[event.rank], self.planned_of[event.rank] = done, of
        took_us = event.fields.get("slowest_us")
        if isinstance(took_us, int | float) and took_us > self.slowest_us:
            name = event.fields.get("slowest")
            name = name if isinstance(name, str) else "?"
            self.slowest_us, self.slowest = took_us, f"{name}, rank {event.rank}"
        return True

    @property
    def elapsed_s(self) -> float:
        """Time since the first heartbeat of the pass."""
        return self.clock() - self.began_s if self.stage else 0.0

    @property
    def done(self) -> int:
        """Smallest number of operations that a rank has completed."""
        return min(self.done_of, default=0)

    @property
    def of(self) -> int:
        """Largest number of operations that a rank has in this pass."""
        return max(self.planned_of, default=0)

    @property
    def rate(self) -> float:
        """Completed operations per second, mean over ranks; 0 if not yet known."""
        elapsed = self.elapsed_s
        # the first heartbeats arrive together and cover what was done before
        return sum(self.done_of) / self.ranks / elapsed if elapsed > SETTLED_S else 0.0

    @property
    def shares(self) -> list[float]:
        """Share of its operations that each rank has completed."""
        both = zip(self.done_of, self.planned_of, strict=True)
        return [done / of if of else 0.0 for done, of in both]

    @property
    def late(self) -> list[int]:
        """Ranks that are far behind the fastest rank, slowest first."""
        shares = self.shares
        most = max(shares, default=0.0)
        behind = [r for r, s in enumerate(shares) if most - s > BEHIND]
        return sorted(behind, key=shares.__getitem__)

    def line(self) -> str:
        """Format the progress as one line of a log."""
        stage = STAGES.get(self.stage, "starting")
        line = f"{stage}: {self.done} of {self.of} operations done by all ranks"
        if self.late:
            last = self.late[0]
            line = (
                f"{stage}: the fastest rank has done {max(self.done_of)} of {self.of} "
                f"operations, the slowest (rank {last}) {self.done_of[last] or 'none'}"
            )
        if self.rate:
            line += f", {self.rate:.4g} a second"
        if self.slowest:
            line += f", slowest: {duration(self.slowest_us / 1e6)}, {self.slowest}"
        return line


# ---- Prometheus ------------------------------------------------------------------


PREFIX = "moetraffic_replay"
RUNNING = "1 while the replay runs, 0 when it has ended."
ENDS = ("value", "low", "high")  # of a ratio and its interval


def write_metrics(path: Path, metrics: Iterable[Metric], source: str) -> None:
    """Write metrics to a file in Prometheus' text format, atomically.

    Every sample is labeled with the name of the replayed trace: a folder may hold the
    files of several replays.

    Raises
    ------
    ReplayError
        If the file cannot be written.
    """
    prometheus.write_metrics(
        path, metrics, PREFIX, {"trace": source}, error=ReplayError
    )


def progress_metrics(progress: Progress) -> Iterator[Metric]:
    """Yield metrics of each rank's progress in a running replay."""
    stage = progress.stage
    ranks = [{"stage": stage, "rank": rank} for rank in range(len(progress.done_of))]
    yield metric(
        "rank_operations_total",
        "Operations that a rank has done in this stage.",
        zip(ranks, progress.done_of, strict=True),
    )
    yield metric(
        "rank_operations_planned",
        "Operations that a rank has to do in this stage.",
        zip(ranks, progress.planned_of, strict=True),
    )
    elapsed_s = progress.elapsed_s
    since = "Time since the stage began."
    yield gauge("stage_elapsed_seconds", since, elapsed_s, stage=stage)
    yield gauge("running", RUNNING, 1)


def result_metrics(replay: Replay) -> Iterator[Metric]:
    """Yield metrics of the result of a replay that has ended."""
    times = replay.time_us
    yield gauge("running", RUNNING, 0)
    yield gauge("ranks", "Ranks that replayed.", replay.ranks)
    yield gauge("operations", "Operations replayed.", replay.operations)
    checked = "1 if every size and byte was checked in a pass before."
    yield gauge("verified", checked, replay.verified == "full")
    yield gauge("wall_seconds", "First call to last end of a pass.", replay.wall_s)
    moved = "Bytes of all operations, also those of a rank to itself."
    yield gauge("moved_bytes", moved, replay.total_bytes)
    yield gauge("network_bytes", "Bytes between ranks.", replay.network_bytes)
    yield metric(
        "rank_sent_bytes",
        "Bytes that a rank sent.",
        [({"rank": r}, sent) for r, sent in enumerate(replay.rank_bytes)],
    )
    yield metric(
        "operation_time_seconds",
        "Time of a call, waiting included, of its slowest member, by quantile.",
        [
            ({"quantile": "0.5"}, times.p50 / 1e6),
            ({"quantile": "0.9"}, times.p90 / 1e6),
            ({"quantile": "0.99"}, times.p99 / 1e6),
        ],
    )
    slowest = "Time of the slowest operation."
    yield gauge("operation_time_max_seconds", slowest, times.max / 1e6)
    if replay.total_busbw_gbs is not None:
        busbw = "Busiest links' bytes over the operations' transfer time."
        yield gauge("busbw_bytes_per_second", busbw, replay.total_busbw_gbs * 1e9)
    if replay.waiting is not None:
        waited = "Share of the ranks' time in calls before the last member's call."
        yield gauge("waiting_share_ratio", waited, replay.waiting)
    if replay.straggler is not None:
        yield gauge(
            "straggler_share_ratio",
            "Share of operations in which the straggler arrived last.",
            replay.straggler_share,
            rank=replay.straggler,
        )
    if replay.fidelity is not None:
        yield from _fidelity(replay.fidelity)


def _fidelity(found: Fidelity) -> Iterator[Metric]:
    for name, what in (
        ("over_captured", "Call time over the captured run's"),
        ("over_bound", "Transfer time over the network's lower bound"),
        ("over_model", "Transfer time over the table of measurements"),
    ):
        yield metric(
            f"time_{name}_ratio",
            f"{what}; value and ends of its interval.",
            [
                (
                    {"by": part.by, "part": part.label, "of": end},
                    getattr(getattr(part, name), end),
                )
                for part in found.parts
                for end in ENDS
            ],
        )
    p = found.punctuality
    if p is not None:
        yield metric(
            "issue_error_seconds",
            "Absolute error of issue times against the schedule, by quantile.",
            [
                ({"quantile": "0.5"}, p.error_p50_s),
                ({"quantile": "0.9"}, p.error_p90_s),
                ({"quantile": "0.99"}, p.error_p99_s),
            ],
        )
        largest = "Largest absolute error of issue times."
        yield gauge("issue_error_max_seconds", largest, p.error_max_s)
        late = "Operations issued more than 1 ms after they were due."
        yield gauge("late_operations", late, p.late)
    if found.slowdown is not None:
        yield metric(
            "slowdown_ratio",
            "All-to-all time with dense traffic over without; value and interval.",
            [({"of": end}, getattr(found.slowdown, end)) for end in ENDS],
        )


def write_reports(request: Request, replay: Replay) -> None:
    """Write the fidelity of a replay as JSON, and its metrics, if requested.

    Raises
    ------
    ReplayError
        If a file cannot be written.
    """
    if request.fidelity is not None and replay.fidelity is not None:
        found = {**vars(replay.fidelity), "ports": replay.ports}
        text = to_json("moetraffic replay fidelity", found, indent=2)
        write_text(request.fidelity, text + "\n", error=ReplayError)
    if request.metrics is not None:
        write_metrics(request.metrics, result_metrics(replay), replay.source)
