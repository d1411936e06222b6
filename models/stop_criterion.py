"""Stop criterion: end training once the expert load is stationary."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np

from moetraffic.analysis.measures import entropy
from moetraffic.capture.annotate import ShardRouting, subscribe_shards

LEAST_STEPS = 500
"""In fewer steps a transient looks like a stable part by chance."""

EVERY_STEPS = 50


class SteadyLoad(ExitStack):
    """Detector of a stationary expert-load evenness in all MoE layers.

    Evenness is the normalized entropy of the load over experts, all ranks and
    micro-batches of a step together.  Called after each step, it is true when in every
    layer its transient (:func:`transient_end`) has ended before the middle of the run,
    and the last quarter of the run is as even as the quarter before, within a standard
    deviation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.curves: dict[int, list[float]] = {}  # layer -> [steps]
        self._loads: dict[int, np.ndarray] = {}  # of this step, layer -> [E]

    def __enter__(self) -> SteadyLoad:
        self.callback(subscribe_shards(self._routed))
        return self

    def __call__(self) -> bool:
        """Add a step's loads; return whether the load of every layer is stationary."""
        for layer, load in self._loads.items():
            curve = self.curves.setdefault(layer, [])
            curve.append(float(entropy(load)))
        self._loads = {}
        steps = max((len(curve) for curve in self.curves.values()), default=0)
        if steps < LEAST_STEPS or steps % EVERY_STEPS:
            return False
        return all(_steady(np.array(curve)) for curve in self.curves.values())

    def _routed(self, decided: ShardRouting) -> None:
        load = decided.demand.sum(0).cpu().numpy()
        before = self._loads.get(decided.layer)
        self._loads[decided.layer] = load if before is None else before + load


def transient_end(curve: np.ndarray) -> int:
    r"""Return the step at which the transient of a curve ``[T]`` ends; -1: it has not.

    The rule is MSER, known from the warm-up of simulations: leave out the first d steps
    for which :math:`\sum_{t \ge d} (x_t - \bar x_d)^2 / (T - d)^2` is least, the
    squared standard error of the mean of the rest, with d at most T/2.  If that limit
    itself is the least, the curve still moves.

    References
    ----------
    K. P. White, An effective truncation heuristic for bias reduction in simulation
    output, Simulation 69 (1997) 323.

    Examples
    --------
    >>> transient_end(np.array([9, 5, 1, 2, 1, 2, 1, 2, 1, 2]))
    2
    """
    half = len(curve) // 2
    rest = (curve - curve.mean())[::-1]
    number = np.arange(1, len(curve) + 1)
    squares = np.cumsum(rest**2) - np.cumsum(rest) ** 2 / number
    error = (np.maximum(squares, 0) / number**2)[::-1]
    step = int(np.argmin(error[: half + 1]))
    return step if step < half else -1


def _steady(curve: np.ndarray) -> bool:
    quarter = len(curve) // 4
    before, last = curve[-2 * quarter : -quarter], curve[-quarter:]
    level = abs(last.mean() - before.mean()) < before.std()
    return transient_end(curve) >= 0 and bool(level)
