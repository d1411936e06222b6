"""Calibrate the time model from a captured run: utilization and bandwidths.

The trace of a moetraffic workload contains its configuration, so that measured times
can be compared with the model's prediction.
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
    """Fit compute utilization and effective bandwidths to a captured run.

    Parameters
    ----------
    trace
        Trace captured from a moetraffic workload, with times.
    peak_flops
        Peak FLOP/s per rank; only its product with the fitted utilization matters.
    conventions
        Conventions of counting FLOP.

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
