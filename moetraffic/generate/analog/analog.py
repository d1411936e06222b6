"""Analog generator: synthetic traffic that is one captured run with other labels.

An iteration of a sample is a captured one, in the order of the run, all layers and
ranks together, with other labels of the experts (:mod:`.labels`).  So each row sums to
k times the tokens, rows persist, differ and are coupled across layers as captured, and
what does not depend on labels is the same in every sample.  Beyond the run its last
third comes again and again, each time with new labels.

New in a sample is which expert has which load, and how layers combine these.  Further
ranks send what the captured ones send in the same iteration or in one beside it, as
often as the load of so many ranks is to change (:func:`.analog_fit.shifted_share`).
For other experts or what-if factors there is :class:`.model.TrafficModel`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Float64, Int32, Int64
from moetraffic.generate.chance import Use, generator
from moetraffic.generate.generator import block_rows
from moetraffic.generate.scenario import Scenario, refuse_length, stacked_rows
from moetraffic.generate.writing.rhythm import Rhythm
from moetraffic.trace import Trace
from moetraffic.trace.model import REPEATED

from .analog_fit import (
    ERROR,
    LAG,
    check_same_size,
    fitted_exchange,
    shifted,
    shifted_share,
    shifts,
    wanted_correlation,
)
from .labels import SMOOTHED, Labels

FIT_STEPS = 3
"""Steps of a fit: the run, the reruns and the exchange of labels."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Analog:
    """Analog generator fitted to a run: T iterations, L layers, Q rows, E experts.

    Rows are those of all micro-batches and ranks.
    """

    scenario: Scenario
    counts: Int32  # [T, L, Q, E] captured token copies
    labels: Labels
    exchange: float = 1.0  # tau of labels
    rhythm: Rhythm | None = None  # None: the times of the trace were not known
    reruns: int = 0  # beside the run
    correlation: float = 1.0  # of samples' smoothed loads, wanted: that of reruns

    @classmethod
    def fit(
        cls,
        trace: Trace,
        *,
        reruns: Sequence[Trace] = (),
        tick: Callable[[int], None] = lambda done: None,
    ) -> Analog:
        """Fit to the routing of a trace.

        Parameters
        ----------
        trace
            Data- and expert-parallel, with the routing of all its ranks.
        reruns
            Traces of runs of the same initialization with other data: samples of
            different seeds have loads as correlated as these.  Without any this is
            assumed: as the run is with itself :data:`.analog_fit.LAG` iterations
            later.
        tick
            Receives how many of the FIT_STEPS steps are done.

        Raises
        ------
        TraceError
            If the trace does not hold the routing of all its ranks.
        AnalysisError
            If it is too short, or ranks differ in how many copies they send.
        """
        scenario, counts = stacked_rows(trace)
        loads = [_load(counts)]
        tick(1)
        for rerun in reruns:
            other, rows = stacked_rows(rerun)
            check_same_size(scenario, other)
            loads.append(_load(rows))
        tick(2)
        labels, wanted = Labels.of(loads[0], scenario.ep), wanted_correlation(loads)
        exchange = fitted_exchange(labels, wanted)
        tick(3)
        return cls(
            scenario=scenario,
            counts=counts,
            labels=labels,
            exchange=exchange,
            correlation=wanted,
            rhythm=Rhythm.fit(trace, scenario),
            reruns=len(reruns),
        )

    @property
    def fitted(self) -> int:
        """Number of iterations T that it was fitted to."""
        return len(self.counts)

    def sample(
        self,
        *,
        iterations: int,
        seed: int,
        ranks: int | None = None,
        ep: int | None = None,
    ) -> AnalogDemand:
        """Sample synthetic token counts.

        Parameters
        ----------
        iterations
            From 1 on: those of the run in their order, then of its last third.
        seed
            Same seed, same counts.
        ranks, ep
            None: as captured; see :meth:`Scenario.scaled`.

        Raises
        ------
        LayoutError
            If there cannot be such a run.
        """
        refuse_length(iterations)
        scenario = self.scenario.scaled(ranks=ranks, ep=ep)
        at, turn = _order(self.fitted, iterations)
        rng = generator(seed, Use.STATE)
        sets = -(-scenario.ranks // self.scenario.ranks)
        share = shifted_share(self.counts, sets) if sets > 1 else 0.0
        away = shifts(iterations, sets, share, generator(seed, Use.ROWS))
        return AnalogDemand(
            fitted=self,
            scenario=scenario,
            iteration=shifted(at, away, self.fitted),
            turn=turn,
            labels=self.labels.drawn(int(turn[-1]) + 1, self.exchange, rng),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class AnalogDemand:
    """Synthetic token counts of N iterations, which are drawn when they are read."""

    fitted: Analog
    scenario: Scenario  # of the sample
    iteration: Int64  # [N, m] captured iteration of each set of as many ranks
    turn: Int64  # [N] how often the end of the run came before
    labels: Int64  # [turns, L, E] captured expert that a synthetic one follows

    @property
    def iterations(self) -> int:
        """Number of iterations N."""
        return len(self.iteration)

    @property
    def about(self) -> str:
        """Provenance for the metadata of the sample."""
        fitted = self.fitted
        how = "assumed" if not fitted.reruns else f"that of {fitted.reruns + 1} runs"
        added = f"{self._added} {REPEATED}; " if self._added else ""
        return (
            f"{added}analog model fitted to {fitted.scenario.source}; correlation of "
            f"an expert's smoothed load between seeds {fitted.correlation:.2f}, {how}"
        )

    @property
    def _added(self) -> str:
        """Ranks beyond the captured ones as text, "" if there are none."""
        few, many = self.fitted.scenario.ranks, self.scenario.ranks
        return f"ranks {few} to {many - 1}" if many > few else ""

    @property
    def repeats_from(self) -> int:
        """See :class:`~moetraffic.generate.generator.Demand`."""
        return self.fitted.fitted if self.iterations > self.fitted.fitted else -1

    @property
    def limits(self) -> list[str]:
        """Sentences on what the sample shares with the run, and on what is unknown."""
        fitted = self.fitted
        added, alone, again = self._added, "", ""
        if self.repeats_from >= 0:
            again = (
                f" ({self.repeats_from} to {self.iterations - 1} repeat the run's last "
                "third; analyze and evaluate leave them out)"
            )
        when = "in the same iteration"
        if (self.iteration != self.iteration[:, :1]).any():
            alone = f" and in which iteration {added} repeat"
            when = "in the same iteration, the one before or the one after"
        found = [
            f"The sample is the captured iterations in their order{again}, with the "
            "experts relabeled: no row (a rank's copies to each expert) is new. "
            f"Only the labels{alone} depend on the seed."
        ]
        if added:
            found.append(
                f"More ranks are a scenario, not a prediction: {added} repeat what the "
                f"{fitted.scenario.ranks} captured ones send {when}. What a training "
                f"with {self.scenario.ranks} ranks sends is unknown."
            )
        found.append(
            "Use it as a load on a network, or to test a scheduler with other labels; "
            "it is not a further independent run."
        )
        if not fitted.reruns:
            found.append(
                "In two samples (two seeds), the loads of an expert have a correlation "
                f"of {fitted.correlation:.2f} (means of {SMOOTHED} iterations). That "
                "of two trainings is assumed to be the same: the correlation of the "
                f"run's loads with those {LAG} iterations later (median error of this "
                f"assumption: {ERROR:.2f}); --rerun replaces it by a measurement."
            )
        return found

    def blocks(self, rows: int = 0) -> Iterator[tuple[int, Int32]]:
        """See :class:`~moetraffic.generate.generator.Demand`."""
        scene = self.scenario
        step = block_rows(scene.cells, rows)
        layer = [scene.layers.index(x.layer) for x in scene.exchanges]
        slot = [scene.slots.index(x.slot) for x in scene.exchanges]
        for first in range(0, self.iterations, step):
            cut = slice(first, min(first + step, self.iterations))
            found = np.take_along_axis(
                self.fitted.counts[self.iteration[cut]],  # [b, m, L, Q, E]
                self.labels[self.turn[cut], None, :, None],
                axis=4,
            )
            shape = (*found.shape[:3], len(scene.slots), -1, scene.experts)
            sets = found.reshape(shape)[:, :, layer, slot]  # [b, m, X, R, E]
            ranks = sets.swapaxes(1, 2).reshape(len(sets), len(layer), -1, shape[-1])
            yield first, np.ascontiguousarray(ranks[:, :, : scene.ranks])


def _load(counts: Int32) -> Float64:
    """Load ``[T, L, E]``, shares of the copies, of ``[T, L, Q, E]`` counts."""
    return np.asarray(counts.sum(axis=2) / counts[0, 0].sum())


def _order(total: int, iterations: int) -> tuple[Int64, Int64]:
    """Captured iterations of a sample, ``[N]``, and how often the end came before."""
    at = np.arange(iterations)
    tail, past = max(1, total // 3), at - total
    turn = np.where(past < 0, 0, 1 + past // tail)
    return np.where(past < 0, at, total - tail + past % tail), turn
