"""Data classes for the comparison of a replay with the captured run.

Data classes only, so that the parent of the ranks need not import :mod:`.audit`, which
computes them.
"""

from __future__ import annotations

from dataclasses import dataclass

LATE_S = 1e-3
"""Delay after the due time, in s, above which an operation counts as late."""

LEVEL = 0.95
"""Confidence level of the intervals of :mod:`moetraffic.analysis.resampling`."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Ratio of two durations with its confidence interval; NaN if unknown."""

    value: float
    low: float
    high: float


UNKNOWN_RATIO = Ratio(value=float("nan"), low=float("nan"), high=float("nan"))


@dataclass(frozen=True, kw_only=True)
class DurationQuantiles:
    """Quantiles and sum of the durations of operations, s."""

    p50: float
    p90: float
    p99: float
    max: float
    total: float


@dataclass(frozen=True, kw_only=True)
class PartFidelity:
    """Durations of a subset of operations, or of iterations, and their ratios."""

    by: str  # "all", "operation", "stream", "phase", "layer" or "iteration"
    label: str
    number: int  # operations, or iterations
    total_bytes: int  # bytes of the operations, also those of ranks to themselves
    network_bytes: int  # bytes between different ranks
    time_s: DurationQuantiles  # on the slowest member; of iterations, first to last
    transfer_s: DurationQuantiles | None = None  # from the last call; None: iterations
    straggler: int  # rank most often last; of iterations, most often slowest
    straggler_share: float  # share of the operations, or iterations, in which it is
    busbw_gbs: float = float("nan")  # busiest links' bytes over the time; NaN for none
    over_captured: Ratio  # call time over the captured run's
    transfer_over_captured: Ratio = UNKNOWN_RATIO
    over_bound: Ratio = UNKNOWN_RATIO  # call time over the lower bound: at least 1
    over_model: Ratio = UNKNOWN_RATIO  # call time over the table of measurements

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
    punctuality: Punctuality | None  # None if issued as soon as possible
    slowdown: Ratio | None  # of all-to-alls with dense traffic over without
    pairs: int  # pairs of passes of the slowdown
    bound_of: str  # the network of the lower bound, "" for none
    model_of: str  # the table of measurements, "" for none
    clock_error_s: float  # of converting times to one clock; 0: all share one
    notes: tuple[str, ...]
