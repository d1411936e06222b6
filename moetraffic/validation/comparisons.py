"""The test suite: figures by which a synthetic trace is compared with real ones.

A :class:`Kind` of test is a figure of a run, of one layer or of all, and a distance
between two such figures.  Definitions of the figures are in :mod:`.features`, of
distances in :mod:`.two_samples`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def course(run: Features) -> Float64:
    """Compute the mean entropy of each layer in parts of a run, ``[STRETCHES * L]``."""
    parts = np.array_split(run.series["entropy"], min(STRETCHES, len(run.load)))
    return np.concatenate([part.mean(axis=0) for part in parts])


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Definition of a test: the statistic compared and its distance."""

    name: str
    measure: str
    figure: Figure  # what distances are between
    apart: Apart
    curve: bool = False  # the figure is a curve, not a sample over time
    per_layer: bool = True  # else of all layers together
    between_layers: bool = False  # needs two or more


def _series(name: str) -> Figure:
    return lambda run, layer: run.series[name][:, layer]


def _ordered(run: Features, layer: int) -> Float64:
    return run.ordered[:, layer]


def _acf(run: Features, layer: int) -> Float64:
    return autocorrelation(run.load[:, layer], _lags(run))


def _hot(run: Features, layer: int) -> Float64:
    return hot_overlap(run.load[:, layer], _lags(run))


def _lags(run: Features) -> int:
    return max(1, min(LAGS, len(run.load) // 2))


PER_LAYER = (
    Kind(
        name="load of the experts, ordered",
        measure="Wasserstein-1, summed over experts",
        figure=_ordered,
        apart=ordered_wasserstein,
    ),
    Kind(
        name="entropy of the load",
        measure="Kolmogorov-Smirnov",
        figure=_series("entropy"),
        apart=of_known(kolmogorov_smirnov),
    ),
    *(
        Kind(
            name=name,
            measure="Wasserstein-1",
            figure=_series(name),
            apart=of_known(wasserstein),
        )
        for name in SERIES
        if name != "entropy"
    ),
    Kind(
        name=f"autocorrelation, lags 1 to {LAGS}",
        measure="root mean square",
        figure=_acf,
        apart=root_mean_square,
        curve=True,
    ),
    Kind(
        name=f"hot set's overlap, lags 1 to {LAGS}",
        measure="root mean square",
        figure=_hot,
        apart=root_mean_square,
        curve=True,
    ),
)

TOGETHER = (
    Kind(
        name="course of the entropy",
        measure="root mean square",
        figure=lambda run, _: course(run),
        apart=root_mean_square,
        curve=True,
        per_layer=False,
    ),
    Kind(
        name="coupling of layers' loads",
        measure="root mean square",
        figure=lambda run, _: layer_coupling(run.load)[0],
        apart=root_mean_square,
        curve=True,
        per_layer=False,
        between_layers=True,
    ),
    Kind(
        name="coupling of layers' changes",
        measure="root mean square",
        figure=lambda run, _: layer_coupling(run.load)[1],
        apart=root_mean_square,
        curve=True,
        per_layer=False,
        between_layers=True,
    ),
    Kind(
        name="coupling of rows between layers",
        measure="Wasserstein-1, summed over pairs of layers",
        figure=lambda run, _: run.coupling,
        apart=ordered_wasserstein,
        per_layer=False,
        between_layers=True,
    ),
)


def joint(run: Features) -> Float64:
    """Join all statistics of each iteration for energy distance and MMD, ``[T, F]``."""
    flat = np.concatenate(
        [run.ordered.reshape(len(run.load), -1), *run.series.values(), run.coupling], 1
    )
    known: Float64 = np.nan_to_num(flat, nan=0.0, posinf=0.0, neginf=0.0)
    return known


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Standardization of the joint statistics by their mean and scatter."""

    mean: Float64  # [F]
    unit: Float64  # [F]
    width: float  # of MMD's kernel, in these units: the median distance

    @classmethod
    def of(cls, real: Sequence[Features]) -> Scale:
        """Compute the standardization from real runs."""
        every = np.concatenate([joint(run) for run in real])
        mean, unit = every.mean(axis=0), every.std(axis=0)
        unit = np.where(unit > 1e-12, unit, 1.0)
        return cls(mean=mean, unit=unit, width=median_distance((every - mean) / unit))

    def __call__(self, run: Features) -> Float64:
        """Standardize the joint statistics of a run, clipped at 20, ``[T, F]``."""
        scaled = (joint(run) - self.mean) / self.unit
        return np.asarray(np.clip(scaled, -20.0, 20.0), np.float64)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Tests by energy distance and MMD of the joint statistics."""
        return (
            Kind(
                name="all figures of an iteration jointly",
                measure="energy distance",
                figure=lambda run, _: self(run),
                apart=energy_distance,
                per_layer=False,
            ),
            Kind(
                name="all figures of an iteration jointly",
                measure="MMD",
                figure=lambda run, _: self(run),
                apart=lambda x, y: maximum_mean_discrepancy(x, y, width=self.width),
                per_layer=False,
            ),
        )


def battery(real: Sequence[Features]) -> tuple[Kind, ...]:
    """Build the test suite for runs of the shape of the real runs."""
    layers = len(real[0].layers)
    found = (*PER_LAYER, *TOGETHER, *Scale.of(real).kinds)
    return tuple(k for k in found if layers > 1 or not k.between_layers)
