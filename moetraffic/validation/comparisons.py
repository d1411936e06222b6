"""Test suite: the statistics by which a synthetic trace is compared with real ones.

A :class:`Kind` of test is a statistic of a run, of one layer or of all, and a distance
between two such statistics.  Statistics are defined in :mod:`.features`, distances in
:mod:`.two_samples`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.distances import wasserstein

from .features import (
    LAGS,
    SERIES,
    Features,
    autocorrelation,
    hot_overlap,
    joint,
    layer_coupling,
)
from .two_samples import (
    energy_distance,
    kolmogorov_smirnov,
    maximum_mean_discrepancy,
    median_distance,
)

Float64 = npt.NDArray[np.float64]

STRETCHES = 10
"""Number of parts of a run whose mean entropies are compared."""

Figure = Callable[[Features, int], Float64]
"""Function from features and layer position to the statistic compared between runs."""

Apart = Callable[[Float64, Float64], float]


def ordered_wasserstein(x: Float64, y: Float64) -> float:
    """Sum the Wasserstein-1 distances of the columns of ``[T, C]`` and ``[U, C]``."""
    return float(sum(wasserstein(a, b) for a, b in zip(x.T, y.T, strict=True)))


def of_known(distance: Apart) -> Apart:
    """Extend a distance: infinite where one of the two samples alone is unknown."""

    def extended(x: Float64, y: Float64) -> float:
        known = np.isfinite(x).any(), np.isfinite(y).any()
        if not all(known):
            return float("inf") if any(known) else 0.0
        return distance(x, y)

    return extended


def root_mean_square(x: Float64, y: Float64) -> float:
    """Compute the root mean square difference of two curves; inf if one is unknown."""
    both = np.isfinite(x) & np.isfinite(y)
    if (np.isfinite(x) != np.isfinite(y)).any():
        return float("inf")
    return float(np.sqrt(((x[both] - y[both]) ** 2).mean())) if both.any() else 0.0


def trajectory(run: Features) -> Float64:
    """Compute the mean entropy of each layer in parts of a run, ``[STRETCHES * L]``."""
    parts = np.array_split(run.series["entropy"], min(STRETCHES, len(run.load)))
    return np.concatenate([part.mean(axis=0) for part in parts])


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Definition of a test: the statistic compared and its distance."""

    name: str
    measure: str  # name of the distance
    figure: Figure  # the statistic
    apart: Apart  # its distance
    curve: bool = False  # the statistic is a curve, not a sample over time
    per_layer: bool = True  # else of all layers together
    between_layers: bool = False  # needs two or more


def _lags(run: Features) -> int:
    return max(1, min(LAGS, len(run.load) // 2))


def _curve(name: str, figure: Figure, **options: bool) -> Kind:
    """Build a test of curves by their root mean square difference."""
    return Kind(
        name=name,
        measure="root mean square",
        figure=figure,
        apart=root_mean_square,
        curve=True,
        **options,
    )


def _series(name: str) -> Kind:
    """Build a test of a statistic per iteration."""
    entropy = name == "entropy"
    return Kind(
        name="entropy of the load" if entropy else name,
        measure="Kolmogorov-Smirnov" if entropy else "Wasserstein-1",
        figure=lambda run, layer: run.series[name][:, layer],
        apart=of_known(kolmogorov_smirnov if entropy else wasserstein),
    )


_OF_LAYERS = {"per_layer": False, "between_layers": True}

KINDS = (
    Kind(
        name="load of the experts, ordered",
        measure="Wasserstein-1, summed over experts",
        figure=lambda run, layer: run.ordered[:, layer],
        apart=ordered_wasserstein,
    ),
    *(_series(name) for name in SERIES),
    _curve(
        f"autocorrelation, lags 1 to {LAGS}",
        lambda run, layer: autocorrelation(run.load[:, layer], _lags(run)),
    ),
    _curve(
        f"hot set's overlap, lags 1 to {LAGS}",
        lambda run, layer: hot_overlap(run.load[:, layer], _lags(run)),
    ),
    _curve("course of the entropy", lambda run, _: trajectory(run), per_layer=False),
    _curve(
        "coupling of layers' loads",
        lambda run, _: layer_coupling(run.load)[0],
        **_OF_LAYERS,
    ),
    _curve(
        "coupling of layers' changes",
        lambda run, _: layer_coupling(run.load)[1],
        **_OF_LAYERS,
    ),
    Kind(
        name="coupling of rows between layers",
        measure="Wasserstein-1, summed over pairs of layers",
        figure=lambda run, _: run.coupling,
        apart=ordered_wasserstein,
        **_OF_LAYERS,
    ),
)
"""Tests that do not depend on the real runs."""


def joint_kinds(real: Sequence[Features]) -> Iterator[Kind]:
    """Build tests of all statistics jointly, standardized by the real runs.

    MMD has a kernel as wide as the median distance between iterations of real runs.
    """
    every = np.concatenate([joint(run) for run in real])
    mean, unit = every.mean(axis=0), every.std(axis=0)
    unit = np.where(unit > 1e-12, unit, 1.0)
    width = median_distance((every - mean) / unit)
    apart: dict[str, Apart] = {
        "energy distance": energy_distance,
        "MMD": lambda x, y: maximum_mean_discrepancy(x, y, width=width),
    }
    for measure, distance in apart.items():
        yield Kind(
            name="all figures of an iteration jointly",
            measure=measure,
            figure=lambda run, _: np.clip((joint(run) - mean) / unit, -20.0, 20.0),
            apart=distance,
            per_layer=False,
        )


def suite(real: Sequence[Features]) -> tuple[Kind, ...]:
    """Build the test suite for runs of the shape of the real runs."""
    several = len(real[0].layers) > 1
    found = (*KINDS, *joint_kinds(real))
    return tuple(k for k in found if several or not k.between_layers)
