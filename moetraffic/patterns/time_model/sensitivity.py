"""How much the answer depends on each input: elasticities."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.patterns.layouts.configuration import Configuration
from moetraffic.patterns.values import anywhere

from .calls import Traffic
from .conventions import CHOICES, SC21, Conventions
from .estimation import estimate
from .system import System
from .traffic import KINDS

NUMBERS = (
    *("peak_flops", "utilization", "latency_s", "layer_overhead_s"),
    *("iteration_overhead_s", "memory_bytes_s", "optimizer_bytes"),
)
STORED = ("element_bytes", "gradient_bytes", "imbalance")
FIELDS = {"element_bytes": "dtype", "gradient_bytes": "gradient_dtype"}
"""By input, the field of a configuration that gives it."""


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

    factors = (1 + step, 1 / (1 + step))
    inputs: dict[str, list[tuple[Configuration, System]]] = {}
    for name in NUMBERS:
        value = getattr(system, name)
        if np.all((value > 0) & np.isfinite(value)):
            changed = [replace(system, **{name: value * f}) for f in factors]
            inputs[name] = [(config, one) for one in changed]
    for kind in KINDS:
        links = [_Scaled(system, kind, f) for f in factors]
        changed = [replace(system, bandwidth=one, latency_s=0.0) for one in links]
        inputs[f"bandwidth of {kind}"] = [(config, one) for one in changed]
    known = replace(config, gradient_dtype=config.gradient_bytes)
    for name in STORED:
        field, value = FIELDS.get(name, name), getattr(config, name)
        if name == "imbalance" and anywhere(value * (1 + step) > config.most_imbalance):
            continue  # no rank can be busier
        stored = [replace(known, **{field: value * f}) for f in factors]
        inputs[name] = [(one, system) for one in stored]
    found = {}
    for name, ends in inputs.items():
        times = [estimate(*end, conventions=conventions).iteration for end in ends]
        slope = np.log(times[0] / times[1]) / (2 * np.log(1 + step))
        if name in NUMBERS or np.any(slope):
            found[name] = np.asarray(slope)
    base = estimate(config, system, conventions=conventions).iteration
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


@dataclass(frozen=True)
class _Scaled:
    """A system's links, those of one kind of traffic times a factor."""

    system: System
    kind: str
    factor: float

    def speed(self, calls: Traffic) -> Float64:
        """Bytes/s that a rank of this group sends."""
        return self.system.speed(calls) * (
            self.factor if calls.kind == self.kind else 1
        )

    def latency(self, calls: Traffic) -> Float64:
        """Seconds that messages of these calls wait for each other."""
        return self.system.latency(calls)
