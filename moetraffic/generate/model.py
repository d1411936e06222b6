"""Traffic model: fit it to a trace, sample it at any size, store it in a file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from moetraffic.errors import AnalysisError, LayoutError
from moetraffic.trace import Trace

from .dynamics import Dynamics
from .fitting import SHORTEST, Bounds, fit_counts
from .rhythm import Rhythm
from .rows import RowSpread
from .sampling import SampledDemand
from .scenario import Scenario, scenario_of
from .what_if import Knobs

Int32 = npt.NDArray[np.int32]

MOST_ITERATIONS = 10_000_000


@dataclass(frozen=True, kw_only=True, eq=False)
class TrafficModel:
    """Traffic model: dynamics of the expert load, rank differences, and scenario.

    See :mod:`.dynamics`, :mod:`.rows` and :mod:`.inclusion` for the formulas.
    """

    scenario: Scenario
    dynamics: Dynamics
    rows: RowSpread
    bounds: Bounds | None = None  # None: it was not fitted
    rhythm: Rhythm | None = None  # None: the times of the trace were not known
    fitted: int = 0  # iterations that it was fitted to
    settled: int = 0  # the iteration from which on training had settled

    @classmethod
    def fit(
        cls,
        trace: Trace,
        *,
        iterations: range | None = None,
        correct_noise: bool = True,
    ) -> TrafficModel:
        """Fit a traffic model to the routing of a trace.

        Parameters
        ----------
        trace
            Data- and expert-parallel, with the routing of all its ranks.
        iterations
            Those to learn from; None: all.  What is sampled begins like the first.
        correct_noise
            False takes chance for movement of the load, to show what that does.

        Raises
        ------
        TraceError
            If the trace does not hold the routing of all its ranks.
        AnalysisError
            If it is too short, or ranks differ in how many copies they send.
        """
        scenario, layers = scenario_of(trace, iterations)
        count = len(layers[0].iteration)
        if count < SHORTEST:
            raise AnalysisError(
                f"a model is fitted to at least {SHORTEST} iterations, but "
                f"{trace.name} has {count} that are whole: capture more"
            )
        stacked = np.empty(
            (
                count,
                len(scenario.layers),
                len(scenario.slots) * scenario.ranks,
                scenario.experts,
            ),
            np.int32,
        )
        for layer in layers:
            at = scenario.slots.index(layer.slot) * scenario.ranks
            stacked[:, scenario.layers.index(layer.layer), at : at + scenario.ranks] = (
                layer.demand
            )
        sums = stacked.sum(axis=3)
        if (sums != scenario.copies).any():
            raise AnalysisError(
                f"each rank sends k x tokens = {scenario.copies} copies a layer, but "
                f"in {trace.name} ranks send {int(sums.min())} to {int(sums.max())}: "
                "fit to a run whose ranks have as many tokens and experts a token"
            )
        told = fit_counts(
            stacked, k=scenario.k, tokens=scenario.tokens, correct_noise=correct_noise
        )
        return cls(
            scenario=scenario,
            dynamics=told.dynamics,
            rows=told.rows,
            bounds=told.bounds,
            rhythm=Rhythm.fit(trace, scenario),
            fitted=count,
            settled=told.settled,
        )

    def sample(
        self,
        *,
        iterations: int,
        seed: int,
        ranks: int | None = None,
        experts: int | None = None,
        k: int | None = None,
        ep: int | None = None,
        knobs: Knobs | None = None,
        threads: int = 0,
    ) -> SampledDemand:
        """Sample synthetic token counts.

        Parameters
        ----------
        iterations
            How many, from 1 on; the run begins where the captured one began.
        seed
            Same seed, same counts, whatever the threads and blocks.
        ranks, experts, k, ep
            None: as in the trace; see :meth:`Scenario.scaled`.
        knobs
            What if; None: as fitted.
        threads
            0: as many as the machine has.

        Raises
        ------
        LayoutError
            If there cannot be such a run.
        """
        if not 1 <= iterations <= MOST_ITERATIONS:
            raise LayoutError(
                f"a generated run has 1 to {MOST_ITERATIONS} iterations, but "
                f"{iterations} were asked for: change --iterations"
            )
        turned = self if knobs is None else self.turned(knobs)
        return SampledDemand(
            model=turned,
            scenario=self.scenario.scaled(ranks=ranks, experts=experts, k=k, ep=ep),
            iterations=iterations,
            seed=seed,
            bursts=None if knobs is None else knobs.bursts,
            threads=threads,
        )

    def turned(self, knobs: Knobs) -> TrafficModel:
        """The model with its knobs turned; bursts are drawn when it is sampled."""
        return replace(
            self,
            dynamics=knobs.turned(self.dynamics),
            rows=replace(
                self.rows,
                factors=self.rows.factors * knobs.rows,
                variance=self.rows.variance * knobs.rows**2,
            ),
        )

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the model to a file, of 20 to 220 kB for those that ship.

        Raises
        ------
        MoetrafficError
            If the file exists and ``force`` is not given, or the disk refuses.
        """
        from .storage import save

        save(self, Path(path), force=force)

    @classmethod
    def load(cls, path: str | Path) -> TrafficModel:
        """Read a model.

        Raises
        ------
        TraceError
            If there is no such file, or it is damaged or no model.
        """
        from .storage import load

        return load(Path(path))
