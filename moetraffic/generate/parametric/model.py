"""Traffic model: fit it to a trace, sample it at any size, store it in a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from moetraffic.generate.scenario import Scenario, refuse_length, stacked_rows
from moetraffic.generate.writing.rhythm import Rhythm
from moetraffic.trace import Trace

from .calibration import calibrated
from .dynamics import Dynamics
from .fitting import fit_dynamics, fit_rows
from .rows import RowVariation
from .sampling import SampledDemand
from .storage import load, save
from .what_if import Knobs


@dataclass(frozen=True, kw_only=True, eq=False)
class TrafficModel:
    """Traffic model: dynamics of the expert load, rank differences, and scenario.

    See :mod:`.dynamics`, :mod:`.rows` and :mod:`.shares` for the formulas.
    """

    scenario: Scenario
    dynamics: Dynamics
    rows: RowVariation
    rhythm: Rhythm | None = None  # None: the times of the trace were not known
    fitted: int = 0  # iterations that it was fitted to

    @classmethod
    def fit(
        cls,
        trace: Trace,
        *,
        iterations: range | None = None,
        calibrate: bool = True,
        tick: Callable[[int], None] = lambda done: None,
    ) -> TrafficModel:
        """Fit a traffic model to the routing of a trace.

        Parameters
        ----------
        trace
            Data- and expert-parallel, with the routing of all its ranks.
        iterations
            Those to learn from; None: all.  What is sampled begins like the first.
        calibrate
            False omits the calibration by simulated moments, to show its effect.
        tick
            Receives how many of three steps are done: the fit, and two halves of the
            calibration.

        Raises
        ------
        TraceError
            If the trace does not hold the routing of all its ranks.
        AnalysisError
            If it is too short, or ranks differ in how many copies they send.
        """
        scenario, counts = stacked_rows(trace, iterations)
        k, tokens = scenario.k, scenario.tokens
        dynamics = fit_dynamics(counts, k=k, tokens=tokens)
        rows = fit_rows(counts, tokens=tokens)
        tick(1)
        if calibrate:
            half = partial(tick, 2)
            dynamics, rows = calibrated(dynamics, rows, counts, scenario, half)
        tick(3)
        return cls(
            scenario=scenario,
            dynamics=dynamics,
            rows=rows,
            rhythm=Rhythm.fit(trace, scenario),
            fitted=len(counts),
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
        refuse_length(iterations)
        model = self if knobs is None else self.applied(knobs)
        return SampledDemand(
            dynamics=model.dynamics,
            rows=model.rows,
            fitted=self.scenario,
            scenario=self.scenario.scaled(ranks=ranks, experts=experts, k=k, ep=ep),
            iterations=iterations,
            seed=seed,
            drift=1.0 if knobs is None else knobs.drift,
            threads=threads,
        )

    def applied(self, knobs: Knobs) -> TrafficModel:
        """The model with its knobs applied, but drift, which samples get."""
        return replace(
            self,
            dynamics=knobs.applied(self.dynamics),
            rows=self.rows.scaled(np.full(len(self.scenario.layers), knobs.rows)),
        )

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the model to a file, of 16 to 24 kB for those that ship.

        Raises
        ------
        MoetrafficError
            If the file exists and ``force`` is not given, or the disk refuses.
        """
        save(vars(self), Path(path), force=force)

    @classmethod
    def load(cls, path: str | Path) -> TrafficModel:
        """Read a model.

        Raises
        ------
        TraceError
            If there is no such file, or it is damaged or no model.
        """
        return cls(**load(Path(path)))
