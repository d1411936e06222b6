"""How much the answer depends on each input: elasticities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from moetraffic.patterns.layouts.configuration import Configuration
from moetraffic.patterns.values import Float64

from .conventions import CHOICES, SC21, Conventions
from .estimation import estimate
from .system import System
from .traffic import KINDS

NUMBERS = (
    *("peak_flops", "utilization", "latency_s", "layer_overhead_s"),
    *("iteration_overhead_s", "memory_bytes_s", "optimizer_bytes"),
)
STORED = ("element_bytes", "gradient_bytes", "imbalance")


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """Of an iteration's time."""

    elasticities: dict[str, Float64]  # by input: percent of T_iter a percent of it
    conventions: dict[str, Float64]  # by "field=choice": T_iter over T_iter, less 1


def sensitivity(
    config: Configuration,
    system: System,
    *,
    conventions: Conventions = SC21,
    step: float = 0.01,
) -> Sensitivity:
    """Elasticities of an iteration's time to each input, and what conventions change.

    ``d ln T/d ln x`` by central differences in ``ln x``, a bandwidth of a kind by its
    time.  Inputs that are 0 or infinite have none and are left out.  Under a bottleneck
    that changes (overlap that is just used up) it is the mean of both sides.

    Parameters
    ----------
    config, system, conventions
        As of :func:`estimate`.
    step
        Relative, of each input.
    """
    base = estimate(config, system, conventions=conventions).iteration
    found: dict[str, Float64] = {}
    for name in NUMBERS:
        value = getattr(system, name)
        if np.all((value > 0) & np.isfinite(value)):
            ends = [
                replace(system, **{name: value * factor})
                for factor in (1 + step, 1 / (1 + step))
            ]
            found[name] = _slope([(config, one) for one in ends], conventions, step)
    for kind in KINDS:
        ends = [
            replace(system, bandwidth=_scaled(system, kind, factor))
            for factor in (1 + step, 1 / (1 + step))
        ]
        slope = _slope([(config, one) for one in ends], conventions, step)
        if np.any(slope):
            found[f"bandwidth of {kind}"] = slope
    for name in STORED:
        value = getattr(config, name)
        changed = [
            replace(config, **{name: value * factor})
            for factor in (1 + step, 1 / (1 + step))
        ]
        slope = _slope([(one, system) for one in changed], conventions, step)
        if np.any(slope):
            found[name] = slope
    choices = {
        f"{field}={choice}": estimate(
            config, system, conventions=replace(conventions, **{field: choice})
        ).iteration
        / base
        - 1
        for field, all_of in CHOICES.items()
        for choice in all_of
        if choice != getattr(conventions, field)
    }
    return Sensitivity(elasticities=found, conventions=choices)


class _Scaled:
    """Some bandwidth, and a factor."""

    def __init__(self, system: System, kind: str, factor: float) -> None:
        self._system, self._kind, self._factor = system, kind, factor

    def speed(self, calls: object) -> Float64:
        from .calls import Traffic

        assert isinstance(calls, Traffic)
        return self._system.speed(calls) * (
            self._factor if calls.kind == self._kind else 1
        )


def _scaled(system: System, kind: str, factor: float) -> Mapping[str, object]:
    return {"other": _Scaled(system, kind, factor)}


def _slope(
    ends: list[tuple[Configuration, System]], conventions: Conventions, step: float
) -> Float64:
    above, below = (
        estimate(config, system, conventions=conventions).iteration
        for config, system in ends
    )
    return np.asarray(np.log(above / below) / (2 * np.log(1 + step)))
