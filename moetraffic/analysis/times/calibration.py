"""The time model's system from a captured run: utilization and bandwidths.

A run of one of our workloads says its own configuration, so that what it measured can
stand beside what the model says of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moetraffic.errors import AnalysisError, LayoutError
from moetraffic.patterns import Workload
from moetraffic.patterns.time_model import (
    KINDS,
    SC21,
    Architecture,
    Configuration,
    Conventions,
    Estimate,
    System,
    estimate,
    operations,
)
from moetraffic.trace import Trace

from .step_times import StepTimes, step_times

BYTES = {"float32": 4.0, "float64": 8.0, "bfloat16": 2.0}


@dataclass(frozen=True, kw_only=True)
class FromTrace:
    """A system that was fitted to a run, and the run itself."""

    config: Configuration  # the run's
    system: System
    measured: StepTimes
    predicted: Estimate  # of the run itself

    @property
    def residual(self) -> float:
        """Relative error of the run's own iteration time: what the terms leave out,
        above all ranks waiting for each other."""
        return float(self.predicted.iteration) / self.measured.iteration_s - 1


def configuration_of(work: Workload) -> Configuration:
    """The configuration of a workload."""
    p, t, g = work.layout, work.training, work.gating
    element = BYTES[t.precision or t.dtype]
    experts = work.model.experts
    padded = experts and g.dispatch == "padded"
    return Configuration(
        model=Architecture.of(work.model, k=g.k if experts else 0),
        pp=p.pp,
        tp=p.tp,
        dp=p.dp,
        ep=p.ep,
        cp=p.cp,
        micro_batch=t.micro_batch,
        global_batch=t.micro_batch * t.accumulation * p.dp,
        element_bytes=element,
        gradient_bytes=BYTES[t.dtype],
        recompute="full" if t.recompute else "none",
        zero=p.zero,
        capacity_factor=g.capacity_factor if padded else 0,
    )


def calibrated(
    trace: Trace,
    *,
    peak_flops: float = 1e12,
    conventions: Conventions = SC21,
) -> FromTrace:
    """Utilization from the run's computing, effective bandwidth from its collectives.

    Parameters
    ----------
    trace
        Captured from a workload of moetraffic's, with times.
    peak_flops
        Of a rank; only its product with the utilization that is found matters.
    conventions
        How FLOP are counted.

    Raises
    ------
    AnalysisError
        If the trace has no workload or no times.
    """
    if not trace.meta.workload or trace.meta.virtual:
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
    work = float(operations(config, conventions).all * config.micro_batches)
    speeds = {
        kind: found.bandwidth(kind)
        for kind in found.moving
        if kind in KINDS and found.sent_bytes[kind].any()
    }
    others = [value for value in speeds.values() if np.isfinite(value)]
    system = System(
        peak_flops=peak_flops,
        utilization=work / (peak_flops * found.compute_s),
        bandwidth={**speeds, "other": min(others, default=np.inf)},
    )
    return FromTrace(
        config=config,
        system=system,
        measured=found,
        predicted=estimate(config, system, conventions=conventions),
    )
