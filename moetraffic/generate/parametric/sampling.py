"""Sample synthetic token counts, iteration by iteration, with several threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Float32, Floating, Int32
from moetraffic.generate.chance import Use, generator
from moetraffic.generate.generator import block_rows
from moetraffic.generate.scenario import Scenario

from .dynamics import Dynamics
from .experts import Regrouping, followed, part_deviation
from .rows import IterationRows, RowVariation
from .shares import probabilities, rounded


@dataclass(frozen=True, kw_only=True, eq=False)
class SampledDemand:
    """Synthetic token counts of a model, which are drawn when they are read."""

    dynamics: Dynamics  # with the knobs applied already
    rows: RowVariation
    fitted: Scenario  # of the capture
    scenario: Scenario
    iterations: int
    seed: int
    drift: float = 1.0  # how many times as fast the load moves
    threads: int = 0  # 0: as many as the machine has; the counts do not depend on it

    @property
    def about(self) -> str:
        """Provenance for the metadata of the sample."""
        return f"parametric model fitted to {self.fitted.source}"

    @property
    def limits(self) -> list[str]:
        """Sentences on what is unknown of the sample."""
        found = [
            "The sample is drawn from the model: no iteration is a captured one.",
            "Use it to test a scheduler with new traffic. It does not replace a run of "
            "the training: a classifier can distinguish the two.",
            "How similar samples with different seeds are is assumed, not fitted to "
            "reruns.",
        ]
        fitted, own = self.fitted, self.scenario
        size, asked = (f"{s.ranks} ranks, {s.experts} experts" for s in (fitted, own))
        if size != asked or fitted.k != own.k:
            found.append(
                f"Another size is a scenario, not a prediction: the model is fitted at "
                f"{size}, k={fitted.k}. What a training with {asked}, k={own.k} sends "
                "is unknown."
            )
        return found

    @property
    def repeats_from(self) -> int:
        """See :class:`~moetraffic.generate.generator.Demand`."""
        return -1

    def blocks(self, rows: int = 0) -> Iterator[tuple[int, Int32]]:
        """See :class:`~moetraffic.generate.generator.Demand`."""
        scene = self.scenario
        block = block_rows(scene.cells, rows)
        layer_of = [scene.layers.index(x.layer) for x in scene.exchanges]
        shape = (len(layer_of), scene.ranks, scene.experts)
        path = self._moments()
        with ThreadPoolExecutor(self.threads or os.cpu_count() or 1) as pool:
            for first in range(0, self.iterations, block):
                span = range(first, min(first + block, self.iterations))
                out = np.empty((len(span), *shape), np.int32)
                work = []
                for at, iteration in enumerate(span):
                    moment = next(path)
                    for x, layer in enumerate(layer_of):
                        work.append((out[at, x], moment, iteration, x, layer))
                list(pool.map(lambda args: self._draw(*args), work))
                yield first, out

    def _moments(self) -> Iterator[_Moment]:
        d, scene, k = self.dynamics, self.scenario, self.fitted.k
        regrouping = Regrouping(
            before=self.fitted.experts,
            after=scene.experts,
            k_before=k,
            k_after=scene.k,
        )
        layers, experts = d.level.shape[1:]
        leaders = followed(self.seed, layers, experts, regrouping.parts)
        slots, factors = len(scene.slots), self.rows.factors.shape[2]
        for iteration, x in enumerate(d.states(self.seed, k, drift=self.drift)):
            split = np.take_along_axis(x, leaders, axis=1).astype(np.float32)
            rng = generator(self.seed, Use.ROWS, iteration)
            rows = self.rows.at(x, k)
            deviation = part_deviation(
                rows.variance, rows.shares, regrouping.parts, scene.tokens
            )
            yield _Moment(
                rows=rows,
                shared=rng.standard_normal((slots, scene.ranks, factors), np.float32),
                regrouping=regrouping,
                parts=split.reshape(layers, experts, -1),
                deviation=deviation.astype(np.float32),
            )

    def _draw(
        self, out: Int32, moment: _Moment, iteration: int, x: int, layer: int
    ) -> None:
        """Fill ``[R, E']`` counts of one exchange."""
        scene = self.scenario
        rng = generator(self.seed, Use.COUNTS, iteration, x)
        shared = moment.shared[scene.slots.index(scene.exchanges[x].slot)]
        shares = moment.rows.draw(rng, shared, layer, self.fitted.k)
        shares = moment.regrouped(shares, layer, rng)
        out[:] = rounded(shares, scene.copies, rng.random(scene.ranks))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Moment:
    """All that the exchanges of an iteration share."""

    rows: IterationRows
    shared: Float32  # [S, R, Q] factors of the ranks
    regrouping: Regrouping
    parts: Float32  # [L, E, m] log-weights of the parts of an expert
    deviation: Float32  # [L, E] of the parts between rows

    def regrouped(
        self, shares: Floating, layer: int, rng: np.random.Generator
    ) -> Floating:
        """Shares ``[..., E']`` of the new experts."""
        if self.regrouping.trivial:
            return shares
        parts: Floating | None = None
        if self.regrouping.parts > 1:
            mean = self.parts[layer]
            among = rng.standard_normal((len(shares), *mean.shape), np.float32)
            among *= self.deviation[layer][:, None]
            parts = probabilities(among + mean, 1)
        return self.regrouping.shares(shares, parts)
