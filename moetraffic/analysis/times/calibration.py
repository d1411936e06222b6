"""Step times of a captured run, and the time model calibrated on them.

A rank communicates from the issue of a collective to its end on that rank; overlapping
collectives count once.  A call *moves* data from its last member's issue on (before,
others wait for that member).  The rest of a step is computation and all other work of
the program.

The trace of a moetraffic workload contains its configuration, so that measured times
can be compared with the model's prediction.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import AnalysisError, LayoutError
from moetraffic.patterns import Layout, Workload
from moetraffic.timemodel import (
    KINDS,
    Estimate,
    System,
    estimate,
    operations,
)
from moetraffic.trace import UNKNOWN_TIME, Trace

from .breakdown import rank_calls
from .calls import covered_ns, merge_intervals, training_steps
from .traffic import world_matrices

PEAK_FLOPS = 1e12
"""FLOP/s of a rank; only the product with the fitted utilization matters."""

WARM_UP = 3
"""First training steps that are left out, which allocate and connect."""


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
    def ranks(self) -> int:
        """Number of ranks of the run."""
        return len(self.whole[0])

    @property
    def iteration_s(self) -> float:
        """Median over steps of the slowest rank's step time, s."""
        return float(np.median(self.whole.max(axis=1)))

    @property
    def compute_s(self) -> float:
        """Median over steps of the computation time averaged over ranks, s."""
        return float(np.median(self.computing.mean(axis=1)))

    @property
    def communication_s(self) -> float:
        """The rest of an iteration: collectives, and waiting for other ranks, s."""
        return max(self.iteration_s - self.compute_s, 0.0)

    def bandwidth(self, kind: str) -> float:
        """Compute the mean bandwidth of transfers in a kind of group, bytes/s."""
        time = float(self.moving[kind].sum())
        return float(self.sent_bytes[kind].sum()) / time if time else float("inf")


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """System parameters fitted to a captured run, with measured and predicted times."""

    config: Layout  # the run's
    system: System
    measured: StepTimes
    predicted: Estimate  # of the run itself

    @property
    def residual(self) -> float:
        """Relative error of the predicted iteration time (mainly ranks that wait)."""
        return float(self.predicted.iteration) / self.measured.iteration_s - 1


def calibrated(trace: Trace) -> Calibration:
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
    measured = step_times(trace)
    flops = float(operations(config).all * config.accumulation)
    bandwidth = {
        kind: measured.bandwidth(kind)
        for kind, sent in measured.sent_bytes.items()
        if kind in KINDS and sent.any()
    }
    finite = [value for value in bandwidth.values() if np.isfinite(value)]
    system = System(
        peak_flops=PEAK_FLOPS,
        utilization=flops / (PEAK_FLOPS * measured.compute_s),
        bandwidth={**bandwidth, "other": min(finite, default=np.inf)},
    )
    return Calibration(
        config=config,
        system=system,
        measured=measured,
        predicted=estimate(config, system),
    )


def configuration_of(work: Workload) -> Layout:
    """Derive the layout of the time model from a workload."""
    dtype = work.training.precision or work.training.dtype
    return Layout.of(work.model, work.parallelism, work.gating, dtype=dtype)


def step_times(trace: Trace) -> StepTimes:
    """Measure computation, communication and waiting of training steps.

    The first WARM_UP steps are left out, if there are more.

    Raises
    ------
    AnalysisError
        If no training step has times.
    """
    iteration, start, end = training_steps(trace)
    known = ((start != UNKNOWN_TIME) & (end > start)).all(axis=1)
    rows = np.flatnonzero(known)
    rows = rows[WARM_UP:] if len(rows) > WARM_UP else rows
    if not len(rows):
        raise AnalysisError(
            f"{trace.name} has no training step with a start and an end: capture with "
            "Recorder.step"
        )
    steps, start, end = iteration[rows], start[rows], end[rows]
    kinds = sorted({trace.groups[s.group].kind for s in trace.sites})
    calls = {kind: rank_calls(trace, kind) for kind in ("", *kinds)}
    sent = {kind: world_matrices(trace, steps.tolist(), kinds=[kind]) for kind in kinds}
    return StepTimes(
        steps=steps,
        whole=(end - start) / 1e9,
        communicating=covered_s(
            [(issue, finish) for issue, _, finish in calls[""]], start, end
        ),
        moving={
            kind: covered_s(
                [(begin, finish) for _, begin, finish in calls[kind]], start, end
            )
            for kind in kinds
        },
        sent_bytes={kind: b.sum(axis=2).astype(float) for kind, b in sent.items()},
    )


def covered_s(
    calls: Iterable[tuple[Int64, Int64]], start: Int64, end: Int64
) -> Float64:
    """Compute the time in which a rank has at least one call active, ``[S, R]`` s.

    ``calls``: starts and ends of each rank's calls, ns; ``start``, ``end``: ``[S, R]``.
    """
    ranks = [
        covered_ns(merge_intervals(*own), start[:, rank], end[:, rank])
        for rank, own in enumerate(calls)
    ]
    return np.stack(ranks, axis=1) / 1e9
