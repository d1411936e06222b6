"""Fit of the analog generator: its options, chosen by what paths give.

The time window is compared with the captured run, and the exchange of labels with
reruns of the same initialization, or with how far the run moves itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np
import numpy.typing as npt

from moetraffic.errors import AnalysisError
from moetraffic.generate.chance import Use, generator
from moetraffic.generate.scenario import Scenario

from .analog_path import PathOptions, RunStates, analog_path, smoothed

Float64 = npt.NDArray[np.float64]

LAG = 50
"""Iterations after which a run is as correlated with itself as with its reruns: the
best of 10, 25, 50, 100 and 150 on twelve settings with three reruns each.  The error of
the correlation is .08 in the median and .52 at a router that has settled."""

WINDOWS = (0.2, 0.1)
"""Growth of the time window that is tried, the widest first."""

ALLOWED = 0.02
"""Root mean square error of a figure of the load that a path may have."""

PATHS, COURSES = 4, 8
"""Paths drawn in a trial of the time window, and of the exchange."""

LEAST, MOST = 0.01, 1e4
"""Range of the exchange: nearly no other labels, and any."""

HALVINGS = 8
"""Halvings of the range, on a logarithmic scale."""

Paths = Callable[[PathOptions, int], Float64]
"""(options, seed) -> ``[T, L, E]`` loads along a path of the captured length."""


def fitted_options(
    states: RunStates, loads: Sequence[Float64], tick: Callable[[int], None]
) -> PathOptions:
    """Choose the options of a path.

    Parameters
    ----------
    states
        Of the run.
    loads
        ``[T, L, E]`` load of the run, and of reruns.
    tick
        Receives how many of two steps are done.
    """

    def paths(options: PathOptions, seed: int) -> Float64:
        path = analog_path(states, len(loads[0]), options, generator(seed, Use.COURSE))
        return path.shares(loads[0])

    chosen = _freest(paths, loads[0])
    tick(1)
    lag = min(LAG, len(loads[0]) // 2)
    runs = loads if len(loads) > 1 else [loads[0][:-lag], loads[0][lag:]]
    chosen = replace(chosen, exchange=_exchange(paths, chosen, correlation(runs)))
    tick(2)
    return chosen


def _freest(paths: Paths, load: Float64) -> PathOptions:
    """Find the widest time window with which mean figures of the load stay.

    A wide window mixes moments of a run whose load still changes.
    """
    wanted = _figures(load)
    errors: list[float] = []
    for growth in WINDOWS:
        draw = partial(paths, PathOptions(growth=growth))
        apart = [_figures(draw(seed)) / wanted - 1 for seed in range(PATHS)]
        errors.append(float(np.sqrt(np.square(apart).mean(axis=0)).max()))
        if errors[-1] <= ALLOWED:
            break
    return PathOptions(growth=WINDOWS[int(np.argmin(errors))])


def _figures(share: Float64) -> Float64:
    """Mean entropy, maximum and change of shares ``[N, L, E]``."""
    logs = np.log(np.where(share > 0, share, 1.0))
    figures = [
        -(share * logs).sum(axis=2).mean(),
        share.max(axis=2).mean(),
        np.abs(np.diff(share, axis=0)).sum(axis=2).mean(),
    ]
    return np.maximum(figures, 1e-12)


def _exchange(paths: Paths, options: PathOptions, wanted: float) -> float:
    """Find the exchange with which paths are as correlated as wanted."""
    low, high = float(np.log(LEAST)), float(np.log(MOST))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        trial = replace(options, exchange=float(np.exp(middle)))
        made = correlation([paths(trial, seed) for seed in range(COURSES)])
        low, high = (low, middle) if made <= wanted else (middle, high)
    return float(np.exp(high))


def correlation(loads: Sequence[Float64]) -> float:
    """Correlate the smoothed loads of pairs of runs, above a balanced load: mean."""
    length = min(len(load) for load in loads)
    smooth = [smoothed(load[:length]).ravel() for load in loads]
    found = [
        float(a @ b) / max(float(np.sqrt((a @ a) * (b @ b))), 1e-300)
        for a, b in combinations(smooth, 2)
    ]
    return float(np.mean(found))


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
