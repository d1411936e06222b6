"""Judgment of a fitted generator: are its samples as close to the run as reruns are?

A generator is sampled twice at the captured size.  Each downstream figure
(:mod:`moetraffic.validation.downstream`) of the samples is compared with the run's.
What difference is accepted is that of reruns (runs of the same initialization and other
data), times 1.25, or 2%.  Without reruns it is a guess: :data:`GUESSED`, or twice the
difference between the two samples where that is more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.trace import Trace
from moetraffic.validation.downstream import (
    FIGURES,
    accepted_difference,
    difference,
    downstream,
)
from moetraffic.validation.routing_counts import RoutingCounts, routing_counts

from .generator import Demand
from .scenario import Scenario

GUESSED = 0.1
"""Difference that is accepted of a fit without reruns, a guess."""

SAMPLES = 2
"""Samples that are drawn."""


@dataclass(frozen=True, kw_only=True)
class FigureJudgment:
    """One downstream figure of a run and of samples of its generator."""

    name: str
    captured: float
    generated: float  # mean of the samples
    difference: float  # of the samples to the run: mean, with its sign
    error: float  # mean absolute difference of the samples to the run
    accepted: float

    @property
    def failed(self) -> bool:
        """Whether the error is more than what is accepted; unknown is no failure."""
        return self.error > self.accepted


@dataclass(frozen=True, kw_only=True)
class Judgment:
    """Judgment of a fitted generator."""

    figures: tuple[FigureJudgment, ...]  # those that the run is long enough for
    reruns: int  # runs beside the fitted one; 0: what is accepted is a guess

    @property
    def failed(self) -> tuple[FigureJudgment, ...]:
        """Figures whose error is not accepted, the worst first."""
        failed = [f for f in self.figures if f.failed]
        return tuple(sorted(failed, key=lambda f: -f.error / f.accepted))

    @property
    def nearest(self) -> FigureJudgment | None:
        """The figure whose error is closest to, or furthest beyond, the accepted."""
        return max(self.figures, key=lambda f: f.error / f.accepted, default=None)


def judge(
    sample: Callable[[int], Demand],
    trace: Trace,
    reruns: Sequence[Trace] = (),
    tick: Callable[[int], None] = lambda done: None,
) -> Judgment:
    """Judge a fitted generator.

    Parameters
    ----------
    sample
        Of a number from 0 on: a sample of the captured size and length.
    trace
        Run that it was fitted to.
    reruns
        Traces of runs of the same initialization with other data.
    tick
        Receives how many of the 3 + reruns runs are done.

    Raises
    ------
    MoetrafficError
        If the routing of a trace is not known.
    """
    run = routing_counts(trace)
    every = [_figures(run)]
    tick(1)
    for rerun in reruns:
        every.append(_figures(routing_counts(rerun)))
        tick(len(every))
    made = []
    for number in range(SAMPLES):
        made.append(_figures(_as_counted(sample(number), run)))
        tick(len(every) + len(made))
    apart = [difference(figures, every[0]) for figures in made]
    between = difference(made[0], made[1])
    accepted = (
        accepted_difference(every)
        if reruns
        else {n: max(GUESSED, 2 * abs(between[n])) for n in FIGURES}
    )
    found = [
        FigureJudgment(
            name=name,
            captured=every[0][name],
            generated=float(np.mean([figures[name] for figures in made])),
            difference=float(np.mean([one[name] for one in apart])),
            error=float(np.mean([abs(one[name]) for one in apart])),
            accepted=accepted[name],
        )
        for name in FIGURES
    ]
    known = tuple(f for f in found if np.isfinite([f.error, f.accepted]).all())
    return Judgment(figures=known, reruns=len(reruns))


def _figures(run: RoutingCounts) -> dict[str, float]:
    return downstream(
        run.counts, holder=run.holder, width=run.width, copy_bytes=run.copy_bytes
    )


def _as_counted(demand: Demand, run: RoutingCounts) -> RoutingCounts:
    """Counts of a sample as those of its run: micro-batches of a layer summed."""
    scene: Scenario = demand.scenario
    summed: list[Int64] = []
    for _, block in demand.blocks():
        total = np.zeros((len(block), len(scene.layers), *block.shape[2:]), np.int64)
        for number, exchange in enumerate(scene.exchanges):
            total[:, scene.layers.index(exchange.layer)] += block[:, number]
        summed.append(total)
    return replace(run, counts=np.concatenate(summed))
