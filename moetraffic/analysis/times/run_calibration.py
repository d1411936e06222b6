"""Step times of a captured run, and the time model calibrated on them.

A rank communicates from the issue of a collective to its end on that rank; overlapping
collectives count once.  A call *moves* data from its last member's issue on (before,
others wait for that member).  The rest of a step is computation and all other work of
the program.

The trace of a moetraffic workload contains its configuration, so that measured times
can be compared with the model's prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import AnalysisError, LayoutError
from moetraffic.patterns import Workload
from moetraffic.patterns.time_model import (
    KINDS,
    SC21,
    Configuration,
    Estimate,
    System,
    estimate,
    operations,
)
from moetraffic.trace import UNKNOWN_TIME, Trace

from .intervals import merge_intervals
from .iteration_traffic import world_matrices
from .time_breakdown import covered_ns, rank_calls, training_spans

PEAK_FLOPS = 1e12
"""FLOP/s of a rank; only the product with the fitted utilization matters."""


@dataclass(frozen=True, kw_only=True)
class FromTrace:
    """System parameters fitted to a captured run, with measured and predicted times."""

    config: Configuration  # the run's
    system: System
    measured: StepTimes
    predicted: Estimate  # of the run itself

    @property
    def residual(self) -> float:
        """Relative error of the predicted iteration time (mainly ranks that wait)."""
        return float(self.predicted.iteration) / self.measured.iteration_s - 1


def configuration_of(work: Workload) -> Configuration:
    """Derive the time model's configuration from a workload."""
    t = work.training
    sent_as = t.precision or t.dtype
    return Configuration.of(work.model, work.parallelism, work.gating, dtype=sent_as)


def calibrated(trace: Trace) -> FromTrace:
    """Fit compute utilization and effective bandwidths to a captured run.

    ``trace``: Trace captured from a moetraffic workload, with times.

    Raises
    ------
    AnalysisError
        If the trace has no workload or no times.
    """
    replayed = trace.meta.origin == "replayed"  # its times have no compute
    if not trace.meta.workload or trace.meta.virtual or replayed:
        raise AnalysisError(
            "a calibration needs the configuration and times of a run, but "
            f"{trace.name} is not of a workload that moetraffic trained on ranks: "
            "capture one, or give utilization and bandwidths"
        )
    try:
        config = configuration_of(Workload.from_json(trace.meta.workload))
    except LayoutError as error:
        raise AnalysisError(f"{trace.name} has no sound workload: {error}") from None
    found = step_times(trace)
    work = float(operations(config, SC21).all * config.accumulation)
    speeds = {
        kind: found.bandwidth(kind)
        for kind in found.moving
        if kind in KINDS and found.sent_bytes[kind].any()
    }
    others = [value for value in speeds.values() if np.isfinite(value)]
    system = System(
        peak_flops=PEAK_FLOPS,
        utilization=work / (PEAK_FLOPS * found.compute_s),
        bandwidth={**speeds, "other": min(others, default=np.inf)},
    )
    return FromTrace(
        config=config,
        system=system,
        measured=found,
        predicted=estimate(config, system, conventions=SC21),
    )


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Computation and communication times of training steps, s, ``[S, R]``."""

    steps: Int64  # [S] iterations with known times
    whole: Float64  # from a step's start to its end
    communicating: Float64  # in any collective, waiting included
    moving: dict[str, Float64]  # by kind of group: after the last member's issue
    sent_bytes: dict[str, Float64]  # by kind: bytes of ring algorithms; 0 if unknown

    @property
    def computing(self) -> Float64:
        """Computation time: the rest of a step, ``[S, R]`` s."""
        return np.asarray(self.whole - self.communicating)

    @property
    def iteration_s(self) -> float:
        """Median over steps of the slowest rank's step time, s."""
        return float(np.median(self.whole.max(axis=1)))

    @property
    def compute_s(self) -> float:
        """Median over steps of the computation time averaged over ranks, s."""
        return float(np.median(self.computing.mean(axis=1)))

    @property
    def comm_share(self) -> float:
        """Median over steps of the communication share averaged over ranks."""
        return float(np.median((self.communicating / self.whole).mean(axis=1)))

    def bandwidth(self, kind: str) -> float:
        """Compute the mean bandwidth of transfers in a kind of group, bytes/s."""
        time = float(self.moving[kind].sum())
        return float(self.sent_bytes[kind].sum()) / time if time else float("inf")


def step_times(trace: Trace, *, warm_up: int = 3) -> StepTimes:
    """Measure computation, communication and waiting of training steps.

    Parameters
    ----------
    trace
        Trace with times of steps and of collectives.
    warm_up
        First training steps to leave out, which allocate and connect, if there are
        more.

    Raises
    ------
    AnalysisError
        If no training step has times.
    """
    steps, start, end = training_spans(trace, None)
    known = (start != UNKNOWN_TIME) & (end > start)
    there = np.flatnonzero(known.all(axis=1))
    there = there[warm_up:] if len(there) > warm_up else there
    if not len(there):
        raise AnalysisError(
            f"{trace.name} has no training step with a start and an end: capture with "
            "Recorder.step"
        )
    chosen, spans = steps[there], (start[there], end[there])
    kinds = sorted({trace.groups[s.group].kind for s in trace.sites})
    return StepTimes(
        steps=chosen,
        whole=(spans[1] - spans[0]) / 1e9,
        communicating=_covered(
            [(issue, end) for issue, _, end in rank_calls(trace)], *spans
        ),
        moving={
            kind: _covered([moved for _, *moved in rank_calls(trace, kind)], *spans)
            for kind in kinds
        },
        sent_bytes={
            kind: world_matrices(trace, chosen.tolist(), kinds=[kind])
            .sum(axis=2)
            .astype(np.float64)
            for kind in kinds
        },
    )


def _covered(calls: Sequence[Sequence[Int64]], start: Int64, end: Int64) -> Float64:
    """Compute the time in which a rank has at least one call active, ``[S, R]`` s."""
    ranks = [
        covered_ns(merge_intervals(*one), start[:, rank], end[:, rank])
        for rank, one in enumerate(calls)
    ]
    return np.stack(ranks, axis=1) / 1e9
