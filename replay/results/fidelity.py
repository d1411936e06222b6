"""Fidelity: what is said of a replay beside the run that it repeats.

Records alone, so that the parent of the ranks need not import what measures them:
:mod:`.audit`.
"""

from __future__ import annotations

from dataclasses import dataclass

LATE_S = 1e-3
"""An operation that is issued by more after it was due is late."""

LEVEL = 0.95
"""Of the intervals, as :mod:`moetraffic.analysis.resampling` draws them."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A ratio and its interval of LEVEL; NaN where it is not known."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class DurationQuantiles:
    """How long some operations took, s."""

    p50: float
    p90: float
    p99: float
    max: float
    total: float


@dataclass(frozen=True, kw_only=True)
class PartFidelity:
    """How long some operations, or the iterations, took."""

    by: str  # "all", "operation", "stream", "phase", "layer" or "iteration"
    label: str
    number: int  # operations, or iterations
    time_s: DurationQuantiles  # of the slowest member; of iterations, wall time
    transfer_s: (
        DurationQuantiles | None
    )  # from the last member's call; None for iterations
    straggler: int  # rank that came last most often; that took longest, of iterations
    straggler_share: float  # in how many
    busbw_gbs: float  # busiest links' bytes over their operations' time; NaN for none
    over_captured: Ratio  # call time over the captured run's
    transfer_over_captured: Ratio
    over_bound: Ratio  # call time over the network's lower bound: never below 1
    over_model: Ratio  # call time over the table of measurements


@dataclass(frozen=True, kw_only=True)
class Punctuality:
    """How well a schedule was kept."""

    scheduled: int  # operations, over all ranks, whose due time is known
    error_p50_s: float  # of the absolute error
    error_p90_s: float
    error_p99_s: float
    error_max_s: float
    mean_s: float  # with its sign: above 0 is behind the schedule
    late: int  # operations issued more than LATE_S after they were due
    behind_s: float  # at the last operation, on the rank that is furthest behind
    worst_rank: int  # that rank
    schedule_s: float  # its length, on the rank that was furthest off; NaN: unknown
    took_s: float  # what the replay took there, first issue to last

    @property
    def off(self) -> float:
        """Length of the replay over that of the schedule, minus 1."""
        return self.took_s / self.schedule_s - 1


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """How a replay stands to what it repeats."""

    parts: tuple[PartFidelity, ...]
    punctuality: Punctuality | None  # None where as soon as possible
    slowdown: Ratio | None  # of all-to-alls beside dense traffic over without
    pairs: int  # passes with and without that the slowdown is from
    bound_of: str  # the network whose bound it is, "" for none
    model_of: str  # the table, "" for none
    clock_error_s: float  # of bringing transfers to one clock; 0: all share one
    notes: tuple[str, ...]
