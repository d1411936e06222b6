"""Fit of the analog generator: its options, chosen by what samples give.

Each option is chosen by comparing paths or rows that are drawn with the captured ones,
or, for the exchange of experts, with reruns of the same initialization.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy.ndimage import uniform_filter1d

from moetraffic.errors import AnalysisError

from .analog_path import PathOptions, analog_path
from .chance import Use, generator
from .load_states import LEAST_SHARE
from .scenario import Scenario

if TYPE_CHECKING:
    from .analog import Analog, AnalogOptions

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]

STARTS = (0.0, 0.2, 1.0, 5.0, 25.0, 100.0, 400.0, 1600.0, 1e6)
"""Exchange of experts at the first iteration that is tried, with reruns."""

EXCHANGES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 3.0, 10.0)
"""Exchange of experts at later iterations that is tried, with reruns."""

FIRST, SMOOTHED = 25, 25
"""Iterations of the beginning, and of the moving average of loads."""

WINDOWS = (0.2, 0.1, 0.05, 0.02)
"""Growth of the time window that is tried, the widest first."""

ALLOWED = 0.02
"""Root mean square error of a figure of the states that a path may have."""

PATHS, COURSES = 4, 8
"""Paths drawn in a trial of the time window, and of the exchange of experts."""

PARTS = (0.01, 0.15)
"""Least and largest part of a row that is tried to be exchanged."""

TRIED = 64
"""Iterations whose rows are drawn in such a trial."""


def freest_path(fitted: Analog, _: Sequence[Float64]) -> AnalogOptions:
    """Find the widest time window with which mean figures of the states stay.

    A wide window mixes moments of a run whose load still changes.
    """
    wanted = _path_figures(fitted.states.shares)
    errors = []
    for growth in WINDOWS:
        options = replace(fitted.options.path, growth=growth)
        apart = []
        for seed in range(PATHS):
            named = _path_shares(fitted, options, seed)
            apart.append(_path_figures(named) / wanted - 1)
        errors.append(float(np.sqrt((np.array(apart) ** 2).mean(axis=0)).max()))
        if errors[-1] <= ALLOWED:
            break
    chosen = replace(fitted.options.path, growth=WINDOWS[int(np.argmin(errors))])
    return replace(fitted.options, path=chosen)


def _path_figures(share: Float64) -> Float64:
    """Mean entropy, maximum and change of shares ``[N, L, E]``."""
    logs = np.log(np.maximum(share, LEAST_SHARE))
    return np.array(
        [
            -(share * logs).sum(axis=2).mean(),
            share.max(axis=2).mean(),
            np.abs(np.diff(share, axis=0)).sum(axis=2).mean(),
        ]
    )


def as_correlated(fitted: Analog, loads: Sequence[Float64]) -> AnalogOptions:
    """Find how experts change places for samples as correlated as the runs.

    First the exchange at the first iteration, by the correlation of the loads in the
    first FIRST iterations, then that at later ones, by the whole run.

    Parameters
    ----------
    fitted
        Generator.
    loads
        ``[T, L, E]`` load of its run and of reruns; without reruns it stays as it is.
    """
    if len(loads) < 2:
        return fitted.options
    chosen = fitted.options.path
    begins = [replace(chosen, start=value) for value in STARTS]
    chosen = _most_alike(fitted, loads, begins, slice(0, FIRST))
    later = [replace(chosen, exchange=value) for value in EXCHANGES]
    chosen = _most_alike(fitted, loads, later, slice(None))
    return replace(fitted.options, path=chosen)


def _most_alike(
    fitted: Analog,
    loads: Sequence[Float64],
    tried: Sequence[PathOptions],
    span: slice,
) -> PathOptions:
    """Choose the options with which paths are as correlated as the runs."""
    wanted = _correlation([load[span] for load in loads])
    errors = []
    for options in tried:
        made = [_path_shares(fitted, options, seed)[span] for seed in range(COURSES)]
        errors.append(abs(_correlation(made) - wanted))
    return tried[int(np.argmin(errors))]


def _correlation(loads: Sequence[Float64]) -> float:
    """Mean correlation of the smoothed loads of pairs, above a balanced load."""
    length = min(len(load) for load in loads)
    smooth = [
        uniform_filter1d(load[:length], SMOOTHED, axis=0, mode="nearest").ravel()
        - 1 / load.shape[2]
        for load in loads
    ]
    found = [
        a @ b / max(np.sqrt((a @ a) * (b @ b)), 1e-300)
        for a, b in combinations(smooth, 2)
    ]
    return float(np.mean(found))


def _path_shares(fitted: Analog, options: PathOptions, seed: int) -> Float64:
    """Shares of the states along a path of the captured length, ``[T, L, E]``."""
    share = fitted.states.shares
    rng = generator(seed, Use.STATE)
    path = analog_path(
        fitted.states.angle, len(share), options, rng, first=fitted.first
    )
    share = share[path.iteration, np.arange(share.shape[1])]
    named: Float64 = np.take_along_axis(share, path.captured, axis=2)
    return named


def run_load(scenario: Scenario, counts: Int32) -> Float64:
    """Load of a run, ``[T, L, E]`` shares of ``[T, L, Q, E]`` counts."""
    return np.asarray(counts.sum(axis=2) / (counts.shape[2] * scenario.copies))


def check_same_size(one: Scenario, other: Scenario) -> None:
    """Check that a rerun has the layers, ranks and experts of the run.

    Raises
    ------
    AnalysisError
        If it has not.
    """
    sizes = [(len(s.layers), s.ranks, s.experts) for s in (one, other)]
    if sizes[0] != sizes[1]:
        raise AnalysisError(
            "a rerun has the layers, ranks and experts of the run, {} x {} x {}".format(
                *sizes[0]
            )
            + f", but {other.source} has "
            + "{} x {} x {}".format(*sizes[1])
            + ": capture it with the options of the run and another --data-seed"
        )


def exchanged_part(fitted: Analog, _: Sequence[Float64]) -> AnalogOptions:
    """Find the part of a row to exchange with which rows differ as captured.

    Rows drawn from rows differ more than these, by the draw of whole numbers, and less
    by the exchange, almost in proportion to the part.
    """
    total = fitted.fitted
    at = np.unique(np.linspace(0, total - 1, min(total, TRIED)).astype(np.int64))
    wanted = _dispersion(fitted.counts[at])
    found = []
    for part in PARTS:
        options = replace(fitted.options, exchanged=part)
        tried = replace(fitted, options=options)
        sample = tried.sample(iterations=total, seed=0)
        references = fitted.states.references
        found.append(_dispersion(np.stack([sample.drawn(n, references) for n in at])))
    part = np.interp(-wanted, [-x for x in found], PARTS)
    least = 1 / fitted.scenario.copies  # a copy of each row, on average
    return replace(fitted.options, exchanged=float(max(part, least)))


def _dispersion(counts: Int32) -> float:
    """Mean chi-squared of rows against their load, of ``[N, L, Q, E]``."""
    load = counts.mean(axis=2, keepdims=True)
    squared = np.zeros(counts.shape)
    np.divide((counts - load) ** 2, load, out=squared, where=load > 0)
    return float(squared.mean())
