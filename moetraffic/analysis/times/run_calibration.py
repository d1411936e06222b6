"""Step times of a captured run, and the time model calibrated on them.

A rank communicates from the issue of a collective to its end on that rank; overlapping
collectives count once.  A call *moves* data from its last member's issue on (before,
others wait for that member).  The rest of a step is computation and all other work of
the program.

The trace of a moetraffic workload contains its configuration, so that measured times
can be compared with the model's prediction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
from moetraffic.trace import ROUTING, UNKNOWN_TIME, Trace

from .call_times import step_bounds, times_in_blocks, training_steps
from .iteration_traffic import world_matrices

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
    steps = trace.steps
    start, end = step_bounds(trace)
    known = (start != UNKNOWN_TIME).all(axis=1) & (end > start).all(axis=1)
    there = np.flatnonzero(training_steps(trace, None) & known)
    there = there[warm_up:] if len(there) > warm_up else there
    if not len(there):
        raise AnalysisError(
            f"{trace.name} has no training step with a start and an end: capture with "
            "Recorder.step"
        )
    chosen = steps.iteration[there]
    whole = (end[there] - start[there]) / 1e9
    shape = whole.shape
    calls = _calls(trace, chosen)
    kinds = sorted({trace.groups[s.group].kind for s in trace.sites})
    communicating = _union(calls, shape, "issue")
    return StepTimes(
        steps=chosen,
        whole=whole,
        communicating=np.minimum(communicating, whole),
        moving={kind: _union(calls, shape, "moved", kind) for kind in kinds},
        sent_bytes={
            kind: world_matrices(trace, chosen.tolist(), kinds=[kind])
            .sum(axis=2)
            .astype(np.float64)
            for kind in kinds
        },
    )


@dataclass(frozen=True)
class _Calls:
    """Times of calls on each participating rank, one row per call and rank."""

    step: Int64  # index among the chosen steps
    rank: Int64
    issue: Int64  # ns
    moved: Int64  # ns, last member's issue
    end: Int64  # ns
    kind: npt.NDArray[np.str_]


def _calls(trace: Trace, chosen: Int64) -> _Calls:
    when, site = trace.occurrences.iteration, trace.occurrences.site
    of = np.array([s.operation != ROUTING for s in trace.sites], bool)
    asked = np.flatnonzero(np.isin(when, chosen) & of[site])
    kinds = np.array([trace.groups[s.group].kind for s in trace.sites])
    parts: list[tuple[npt.NDArray[np.generic], ...]] = []
    for part, issue, start, end in times_in_blocks(trace, asked):
        known = (issue != UNKNOWN_TIME) & (end != UNKNOWN_TIME)
        last = np.where(known, issue, UNKNOWN_TIME).max(axis=1, keepdims=True)
        moved = np.where(start != UNKNOWN_TIME, start, np.broadcast_to(last, end.shape))
        place = np.searchsorted(chosen, when[part])
        row, member = np.nonzero(known & (end >= issue))
        parts.append(
            (
                place[row],
                trace.members(part)[row, member],
                issue[row, member],
                np.clip(moved, issue, end)[row, member],
                end[row, member],
                kinds[site[part]][row],
            )
        )
    none: list[npt.NDArray[np.generic]] = [
        np.zeros(0, kind) for kind in (*[np.int64] * 5, np.str_)
    ]
    return _Calls(*map(np.concatenate, zip(none, *parts, strict=True)))


def _union(
    calls: _Calls, shape: tuple[int, ...], begins: str, kind: str | None = None
) -> Float64:
    """Compute the time in which a rank has at least one call active, ``[S, R]`` s."""
    out = np.zeros(shape)
    mine = np.ones(len(calls.step), bool) if kind is None else calls.kind == kind
    for rank in np.unique(calls.rank[mine]):
        of = mine & (calls.rank == rank)
        begin, end = getattr(calls, begins)[of], calls.end[of]
        order = np.argsort(begin, kind="stable")
        begin, end, step = begin[order], end[order], calls.step[of][order]
        before = np.maximum.accumulate(end)
        open_ = np.concatenate([begin[:1], np.maximum(begin[1:], before[:-1])])
        np.add.at(out[:, rank], step, np.maximum(end - open_, 0) / 1e9)
    return out
