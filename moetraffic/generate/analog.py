r"""Analog generator: synthetic traffic assembled from near moments of one captured run.

1. *States*: the load without the noise of sampled tokens (:mod:`.load_states`).
2. *Path*: blocks of captured states that follow each other like captured ones, and
   experts that change places where their states are alike (:mod:`.analog_path`).
3. *Rows*: the ranks' rows of another captured iteration whose state is near, all layers
   of a rank together, in random order of the ranks.  A row's cells are multiplied by
   the ratio of the path's share to that of the iteration that the row is from, a small
   part of its copies is exchanged with another rank's row, and whole numbers are drawn
   whose expectation that is.  The part is such that rows differ as much as captured.

So each row sums to k times the tokens, no cell exceeds the tokens, and rows differ and
are coupled across layers as captured.  It serves runs of the captured size; for other
ranks, experts or what-if factors there is :class:`.model.TrafficModel`.

References
----------
U. Lall and A. Sharma, A nearest neighbor bootstrap for resampling hydrologic time
series, Water Resources Research 32 (1996).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from moetraffic.errors import AnalysisError, LayoutError
from moetraffic.trace import Trace

from .analog_fit import (
    as_correlated,
    check_same_size,
    exchanged_part,
    freest_path,
    run_load,
)
from .analog_path import AnalogPath, PathOptions, analog_path
from .chance import Use, generator
from .generator import block_rows
from .load_states import LoadStates, load_states, shares
from .rhythm import Rhythm
from .scenario import Scenario, scenario_of, stacked_rows

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

FIT_STEPS = 4
"""Steps of a fit: the states, the path, its course and the rows."""

SHORTEST = 30
"""Fewest iterations of a run that is fitted."""

ROW_WINDOW = 20
"""Iterations before and after, among which those with the nearest states are."""

FORBIDDEN = 1e6
"""Added to the squared distance of an iteration that is to give no rows."""

ROW_GAP = 10
"""Iterations after which rows of one captured iteration may be taken again, so that
the noise of neighboring iterations is independent."""


@dataclass(frozen=True, kw_only=True)
class AnalogOptions:
    """Options of a fitted analog generator."""

    path: PathOptions = field(default_factory=PathOptions)
    exchanged: float = 0.03  # share of a row's copies that another rank's row gives


@dataclass(frozen=True, kw_only=True, eq=False)
class Analog:
    """Analog generator fitted to a run: T iterations, L layers, Q rows, E experts.

    Rows are those of all micro-batches and ranks.
    """

    scenario: Scenario
    counts: Int32  # [T, L, Q, E] captured token copies
    states: LoadStates
    first: int = 0  # iterations trained before the first one captured
    options: AnalogOptions = field(default_factory=AnalogOptions)
    rhythm: Rhythm | None = None  # None: the times of the trace were not known

    @classmethod
    def fit(
        cls,
        trace: Trace,
        *,
        reruns: Sequence[Trace] = (),
        tick: Callable[[int], None] | None = None,
    ) -> Analog:
        """Fit to the routing of a trace.

        Parameters
        ----------
        trace
            Data- and expert-parallel, with the routing of all its ranks.
        reruns
            Traces of runs of the same initialization with other data: samples of
            different seeds have loads as correlated as these.  Without any, experts
            change places by the default of :class:`.analog_path.PathOptions`.
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
        found = cls(
            scenario=scenario,
            counts=counts,
            states=load_states(counts),
            first=int(when[0]),
            rhythm=Rhythm.fit(trace, scenario),
        )
        loads = [run_load(scenario, counts)]
        for rerun in reruns:
            other, others = scenario_of(rerun)
            check_same_size(scenario, other)
            loads.append(run_load(other, stacked_rows(other, others)))
        for step, fitted in enumerate((freest_path, as_correlated, exchanged_part)):
            if tick is not None:
                tick(step + 1)
            found = replace(found, options=fitted(found, loads))
        if tick is not None:
            tick(FIT_STEPS)
        return found

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
        experts: int | None = None,
    ) -> AnalogDemand:
        """Sample synthetic token counts.

        Parameters
        ----------
        iterations
            From 1 on; the run begins where the captured one began, and beyond its
            length stays in its last third.
        seed
            Same seed, same counts.
        ranks, experts
            None, or as captured.

        Raises
        ------
        LayoutError
            If another size is asked for.
        """
        size = (self.scenario.ranks, self.scenario.experts)
        asked = (size[0] if ranks is None else ranks, experts or size[1])
        if asked != size or iterations < 1:
            raise LayoutError(
                f"the analog generator samples 1 iteration or more of {size[0]} ranks "
                f"and {size[1]} experts as captured, but {iterations} of {asked[0]} "
                f"and {asked[1]} were asked for: use the parametric model"
            )
        rng = generator(seed, Use.STATE)
        path = analog_path(
            self.states.angle, iterations, self.options.path, rng, first=self.first
        )
        return AnalogDemand(
            fitted=self,
            iterations=iterations,
            seed=seed,
            path=path,
            givers=self._givers(path),
        )

    def _givers(self, path: AnalogPath) -> Int64:
        """Choose the captured iteration whose rows each iteration takes, ``[N]``.

        It is the one with the nearest state, but none that the path follows and none
        that just gave: the noise of neighboring iterations is independent.
        """
        angle = self.states.angle
        moved = np.diff(angle, axis=0).std(axis=(0, 2))[:, None] + 1e-9
        scaled = angle / moved  # states, in units of a step of their layer
        layer = np.arange(angle.shape[1])
        found = np.empty(len(path.clock), np.int64)
        recent: deque[int] = deque(maxlen=ROW_GAP)
        for n, clock in enumerate(path.clock.tolist()):
            low = max(0, clock - ROW_WINDOW)
            span = scaled[low : clock + ROW_WINDOW + 1]
            apart = ((span - scaled[path.iteration[n], layer]) ** 2).mean(axis=(1, 2))
            for taken in (*path.iteration[n].tolist(), *recent):
                if 0 <= taken - low < len(apart):
                    apart[taken - low] += FORBIDDEN
            found[n] = low + apart.argmin()
            recent.append(int(found[n]))
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class AnalogDemand:
    """Synthetic token counts of a path, which are drawn when they are read."""

    fitted: Analog
    iterations: int  # N
    seed: int
    path: AnalogPath
    givers: Int64  # [N] captured iterations that give the rows

    @property
    def scenario(self) -> Scenario:
        """Scenario of the sample, that of the capture."""
        return self.fitted.scenario

    def blocks(self, rows: int = 0) -> Iterator[tuple[int, Int32]]:
        """See :class:`~.generator.Demand`."""
        scene = self.scenario
        step = block_rows(scene.cells, rows)
        layer = [scene.layers.index(x.layer) for x in scene.exchanges]
        slot = [scene.slots.index(x.slot) for x in scene.exchanges]
        references = self.fitted.states.references
        for first in range(0, self.iterations, step):
            span = range(first, min(first + step, self.iterations))
            drawn = np.stack([self.drawn(n, references) for n in span])
            apart = drawn.reshape(
                len(span), len(scene.layers), len(scene.slots), scene.ranks, -1
            )
            yield first, np.ascontiguousarray(apart[:, layer, slot])

    def drawn(self, n: int, references: Float64) -> Int32:
        """Draw the rows of iteration n, ``[L, Q, E]``."""
        fitted, scene = self.fitted, self.scenario
        states, part = fitted.states, fitted.options.exchanged
        rng = generator(self.seed, Use.COUNTS, n)
        depth, rows = fitted.counts.shape[1:3]
        layer = np.arange(depth)
        at, order = self.path.iteration[n], self.path.captured[n]
        aim = shares(states.angle[at, layer], states.variance[at, layer])  # [L, E]
        giver = self.givers[n]
        given = fitted.counts[giver][:, rng.permutation(rows)]
        other = np.roll(given, 1, axis=1)
        ratio = aim / references[giver]
        mixed = ((1 - part) * given + part * other) * ratio[:, None]
        named = np.take_along_axis(
            mixed, np.broadcast_to(order[:, None], mixed.shape), axis=2
        )
        return whole_rows(named, scene.copies, scene.tokens, rng)


def whole_rows(
    amounts: Float64, copies: int, most: int, rng: np.random.Generator
) -> Int32:
    """Draw whole numbers in proportion to amounts, by systematic sampling.

    Parameters
    ----------
    amounts
        ``[..., E]``, at least 0, of each row some above 0.
    copies
        Sum of each row, at most E times ``most``.
    most
        Largest number.
    rng
        Randomness.

    Returns
    -------
    int32 array ``[..., E]``
        Each the whole number below or above its expectation, the amount scaled to the
        sum and, where it exceeds ``most``, cut, with the rest spread over the others.
    """
    wanted = amounts * (copies / amounts.sum(axis=-1, keepdims=True))
    while (wanted > most * (1 + 1e-9)).any():
        full = wanted >= most
        kept = np.where(full, most, 0.0)
        rest = np.where(full, 0.0, wanted + 1e-9)
        lacking = copies - kept.sum(axis=-1, keepdims=True)
        total = rest.sum(axis=-1, keepdims=True)
        wanted = kept + rest * (lacking / np.where(total > 0, total, 1.0))
    wanted = np.minimum(wanted, most)
    # cells in random order: neighbors of a systematic sample exclude each other
    order = rng.permuted(
        np.broadcast_to(np.arange(wanted.shape[-1]), wanted.shape), axis=-1
    )
    summed = np.cumsum(np.take_along_axis(wanted, order, axis=-1), axis=-1)
    summed[..., -1] = copies
    begin = rng.random((*wanted.shape[:-1], 1))
    steps = np.diff(np.floor(summed + begin), axis=-1, prepend=np.floor(begin))
    found = np.empty(wanted.shape, np.int32)
    np.put_along_axis(found, order, steps.astype(np.int32), axis=-1)
    return found
