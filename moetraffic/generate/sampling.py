"""Sample synthetic token counts, iteration by iteration, with several threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .chance import Use, generator
from .experts import Parts, Regrouping
from .generator import block_rows
from .inclusion import counts, inclusion
from .rows import Middle, middle, row_weights, split_size
from .scenario import Scenario
from .what_if import Bursts

if TYPE_CHECKING:
    from .model import TrafficModel

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, eq=False)
class SampledDemand:
    """Synthetic token counts of a model, which are drawn when they are read."""

    model: TrafficModel  # with the knobs turned already
    scenario: Scenario
    iterations: int
    seed: int
    bursts: Bursts | None = None
    threads: int = 0  # 0: as many as the machine has; the counts do not depend on it

    def blocks(self, rows: int = 0) -> Iterator[tuple[int, Int32]]:
        """See :class:`~.generator.Demand`."""
        scene = self.scenario
        block = block_rows(scene.cells, rows)
        layer_of = [scene.layers.index(x.layer) for x in scene.exchanges]
        shape = (len(layer_of), scene.ranks, scene.experts)
        path = self._states()
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

    def states(self) -> Iterator[tuple[Float64, Float64 | None]]:
        """The latent states, without documents: ``[L, E]`` and parts ``[L, E, m]``."""
        for moment in self._states():
            yield moment.state, moment.parts

    def _states(self) -> Iterator[_Moment]:
        model, scene = self.model, self.scenario
        regrouping = Regrouping(
            before=model.scenario.experts,
            after=scene.experts,
            k_before=model.scenario.k,
            k_after=scene.k,
        )
        parts = None
        if regrouping.parts > 1:
            drawn = Parts.drawn(model.dynamics, regrouping.parts, self.seed)
            parts = drawn.logarithms(self.seed)
        bursts = self.bursts.over(self.seed, model.dynamics) if self.bursts else None
        slots = len(scene.slots)
        for iteration, state in enumerate(model.dynamics.paths(self.seed)):
            if bursts is not None:
                state = state + next(bursts)
            split = None if parts is None else next(parts)
            factors, own, offset = model.rows.at(iteration)
            rng = generator(self.seed, Use.ROWS, iteration)
            shared = model.rows.shared(rng, slots=slots, ranks=scene.ranks)
            lacks = None
            if not regrouping.trivial and (scene.k > 1 or model.scenario.k > 1):
                shares = None if split is None else np.exp(split)
                lacks = regrouping.correction(np.exp(state), shares)
            deviation = np.sqrt((factors**2).sum(axis=2) + own**2)
            k = model.scenario.k
            half = model.rows.half
            around = middle(state + offset, deviation, k=k, half=half)
            size = None
            if split is not None:
                size = split_size(
                    inclusion(np.exp(state), k), around.size * deviation, k=k
                )
            yield _Moment(
                state=state + offset,
                around=around,
                parts=split,
                size=size,
                factors=factors,
                own=own,
                shared=shared,
                regrouping=regrouping,
                lacks=lacks,
            )

    def _draw(
        self, out: Int32, moment: _Moment, iteration: int, x: int, layer: int
    ) -> None:
        """Fill ``[R, E']`` counts of one exchange."""
        scene = self.scenario
        rng = generator(self.seed, Use.COUNTS, iteration, x)
        shared = moment.shared[scene.slots.index(scene.exchanges[x].slot)]
        own = moment.own[layer]
        every = moment.around
        around = Middle(
            angle=every.angle[layer], size=every.size[layer], ratio=every.ratio[layer]
        )
        rows = row_weights(
            rng,
            shared,
            moment.factors[layer],
            own,
            around,
            k=self.model.scenario.k,
        )
        shares = None
        if moment.parts is not None and moment.size is not None:
            parts = rng.standard_normal((scene.ranks, *moment.parts.shape[1:]))
            parts *= moment.size[layer][:, None]
            parts += moment.parts[layer]
            shares = np.exp(parts - parts.max(axis=2, keepdims=True))
            shares /= shares.sum(axis=2, keepdims=True)
        weights = moment.regrouping.rows(rows, shares)
        if moment.lacks is not None:
            weights *= np.exp(moment.lacks[layer])
            weights /= weights.sum(axis=1, keepdims=True)
        out[:] = counts(rng, weights, scene.k, scene.tokens)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Moment:
    """All that the exchanges of an iteration share."""

    state: Float64  # [L, E]
    around: Middle  # [L, E]
    parts: Float64 | None  # [L, E, m] logarithms of shares
    size: Float64 | None  # [L, E] by which parts differ between rows
    factors: Float64  # [L, E, Q]
    own: Float64  # [L, E]
    shared: Float64  # [S, R, Q]
    regrouping: Regrouping
    lacks: Float64 | None  # [L, E']
