r"""Analog generator: synthetic traffic assembled from blocks of one captured run.

1. *Path*: blocks of captured iterations that follow each other like captured ones, with
   other labels of the experts (:mod:`.analog_path`).
2. *Rows*: the captured rows of that iteration, all layers of a rank together, with
   these labels.  So each row sums to k times the tokens, and rows persist, differ and
   are coupled across layers as captured.

What is new in a sample is the order of the blocks, which expert has which load, and how
layers combine these; the ordered loads within a block are captured ones.  Further ranks
send what the captured ones send in the same iteration or in one beside it, as often as
the load of so many ranks is to change (:func:`.analog_fit.shifted_share`).  For other
experts or what-if factors there is :class:`.model.TrafficModel`.

References
----------
U. Lall and A. Sharma, A nearest neighbor bootstrap for resampling hydrologic time
series, Water Resources Research 32 (1996).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from moetraffic.arrays import Float64, Int32, Int64
from moetraffic.errors import AnalysisError
from moetraffic.generate.chance import Use, generator
from moetraffic.generate.generator import block_rows
from moetraffic.generate.scenario import (
    Scenario,
    refuse_length,
    scenario_of,
    stacked_rows,
)
from moetraffic.generate.writing.rhythm import Rhythm
from moetraffic.trace import Trace

from .analog_fit import (
    ERROR,
    LAG,
    LENGTHS,
    check_same_size,
    fitted_options,
    shifted,
    shifted_share,
    shifts,
    wanted_correlation,
)
from .analog_path import AnalogPath, Labels, PathOptions, analog_path, run_labels

FIT_STEPS = 3
"""Steps of a fit: the loads, the length of blocks and the exchange of labels."""

SHORTEST = 30
"""Fewest iterations of a run that is fitted."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Analog:
    """Analog generator fitted to a run: T iterations, L layers, Q rows, E experts.

    Rows are those of all micro-batches and ranks.
    """

    scenario: Scenario
    counts: Int32  # [T, L, Q, E] captured token copies
    labels: Labels
    options: PathOptions = field(default_factory=PathOptions)
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
            presumed: as the run is with itself :data:`.analog_fit.LAG` iterations
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
        scenario, layers = scenario_of(trace)
        when = layers[0].iteration
        if len(when) < SHORTEST:
            raise AnalysisError(
                f"a generator is fitted to at least {SHORTEST} iterations, but "
                f"{trace.name} has {len(when)} that are whole: capture more"
            )
        counts = stacked_rows(scenario, layers)
        loads = [_load(counts)]
        labels = run_labels(loads[0], scenario.ep)
        for rerun in reruns:
            other, others = scenario_of(rerun)
            check_same_size(scenario, other)
            loads.append(_load(stacked_rows(other, others)))
        tick(1)
        return cls(
            scenario=scenario,
            counts=counts,
            labels=labels,
            options=fitted_options(labels, loads, tick),
            correlation=wanted_correlation(loads),
            rhythm=Rhythm.fit(trace, scenario),
            reruns=len(reruns),
        )

    @property
    def about(self) -> str:
        """Provenance for the metadata of samples."""
        how = "presumed" if not self.reruns else f"that of {self.reruns + 1} runs"
        return (
            f"analog model fitted to {self.scenario.source}; correlation of samples "
            f"with other seeds {self.correlation:.2f}, {how}"
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
            From 1 on; the run begins where the captured one began, and beyond its
            length stays in its last third.
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
        rng = generator(seed, Use.STATE)
        path = analog_path(self.labels, self.fitted, iterations, self.options, rng)
        sets = -(-scenario.ranks // self.scenario.ranks)
        share = shifted_share(self.counts, sets) if sets > 1 else 0.0
        away = shifts(iterations, sets, share, generator(seed, Use.ROWS))
        return AnalogDemand(
            fitted=self,
            scenario=scenario,
            path=path,
            iteration=shifted(path.iteration, away, self.fitted),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class AnalogDemand:
    """Synthetic token counts of a path, which are drawn when they are read."""

    fitted: Analog
    scenario: Scenario  # of the sample
    path: AnalogPath  # of N iterations
    iteration: Int64  # [N, m] captured iteration of each set of as many ranks

    @property
    def iterations(self) -> int:
        """Number of iterations N."""
        return len(self.iteration)

    @property
    def repeats_from(self) -> int:
        """See :class:`~moetraffic.generate.generator.Demand`."""
        return self.fitted.fitted if self.iterations > self.fitted.fitted else -1

    @property
    def limits(self) -> list[str]:
        """Sentences on what the sample shares with the run, and on what is unknown."""
        fitted, found = self.fitted, []
        few, many = fitted.scenario.ranks, self.scenario.ranks
        if many > few:
            found.append(
                f"{many} ranks are made of {few} captured ones, by which the fit is "
                "judged; what a training of more ranks learns otherwise is unknown"
            )
        if fitted.options.block > LENGTHS[0]:
            found += ["Samples repeat the run's movement in blocks, with other labels"]
        if self.repeats_from >= 0:
            found.append(
                f"Iterations {self.repeats_from} to {self.iterations - 1} repeat "
                "captured ones back and forth: analyze and evaluate leave them out"
            )
        if not fitted.reruns:
            found.append(
                f"Correlation of samples with other seeds: {fitted.correlation:.2f} is "
                f"presumed, that of the run with itself {LAG} iterations later (median "
                f"error {ERROR:.2f}): give --rerun"
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
                self.path.captured[cut, None, :, None],
                axis=4,
            )
            shape = (*found.shape[:3], len(scene.slots), -1, scene.experts)
            sets = found.reshape(shape)[:, :, layer, slot]  # [b, m, X, R, E]
            ranks = sets.swapaxes(1, 2).reshape(len(sets), len(layer), -1, shape[-1])
            yield first, np.ascontiguousarray(ranks[:, :, : scene.ranks])


def _load(counts: Int32) -> Float64:
    """Load ``[T, L, E]``, shares of the copies, of ``[T, L, Q, E]`` counts."""
    return np.asarray(counts.sum(axis=2) / counts[0, 0].sum())
