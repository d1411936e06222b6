"""Stop criterion: end training once the expert load is stationary."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np

from moetraffic.analysis import initial_transient, normalized_entropy
from moetraffic.capture.annotate import ShardRouting, subscribe_shards

LEAST_STEPS = 500
"""Fewer steps tell a transient from a stable part by luck."""

EVERY_STEPS = 50


class SteadyLoad(ExitStack):
    """Detector of a stationary expert-load uniformity in all MoE layers.

    Uniformity is the normalized entropy of the load over experts, all ranks and
    micro-batches of a step together; the end of its transient is found by
    :func:`moetraffic.analysis.initial_transient`.  Called after each step, it is true
    when that is before the middle of the run for every layer, and the last quarter of
    the run is as uniform as the quarter before, within a standard deviation.
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
            curve.append(float(normalized_entropy(load)))
        self._loads = {}
        steps = max((len(curve) for curve in self.curves.values()), default=0)
        if steps < LEAST_STEPS or steps % EVERY_STEPS:
            return False
        return all(_steady(np.array(curve)) for curve in self.curves.values())

    def _routed(self, decided: ShardRouting) -> None:
        load = decided.demand.sum(0).cpu().numpy()
        before = self._loads.get(decided.layer)
        self._loads[decided.layer] = load if before is None else before + load


def _steady(curve: np.ndarray) -> bool:
    quarter = len(curve) // 4
    before, last = curve[-2 * quarter : -quarter], curve[-quarter:]
    level = abs(last.mean() - before.mean()) < before.std()
    return bool(initial_transient(curve).ended) and bool(level)
