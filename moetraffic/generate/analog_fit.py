"""Fit of the analog generator: its options, chosen by what paths give.

The time window is compared with the captured run, and the exchange of experts with
reruns of the same initialization, or with how far the run moves itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy.ndimage import uniform_filter1d

from moetraffic.errors import AnalysisError

from .analog_path import PathOptions, RunStates, analog_path
from .chance import Use, generator
from .scenario import Scenario

Float64 = npt.NDArray[np.float64]

FIRST, SMOOTHED = 25, 25
"""Iterations of the beginning, and of the moving average of loads."""

LAG = 50
"""Iterations after which a run is as correlated with itself as with its reruns: chosen
among 10, 25, 50 and 100 on six settings with three reruns each (leaving one of them out
chooses 50 four times and 25 twice).  The error of the correlation is .09 in the median
and .52 at a router that has settled."""

WINDOWS = (0.2, 0.1, 0.05, 0.02)
"""Growth of the time window that is tried, the widest first."""

ALLOWED = 0.02
"""Root mean square error of a figure of the load that a path may have."""

PATHS, COURSES = 4, 6
"""Paths drawn in a trial of the time window, and of the exchange of experts."""

LEAST = 1.0
"""Least exchange of experts: experts change places as often as normal states with the
variance of the time scales would be taken for each other."""

MOST, MOST_START = 30.0, 1e6
"""Largest exchange at a block's beginning, and at the first iteration, where experts
of a router that has settled may be in any order."""

TOLERATED = 0.1
"""Correlation above that of the runs that is accepted for less exchange."""

HALVINGS = 8
"""Halvings of the range of exchanges, on a logarithmic scale."""

Paths = Callable[[PathOptions, int], Float64]
"""(options, seed) -> ``[T, L, E]`` loads along a path of the captured length."""


def fitted_options(
    states: RunStates, loads: Sequence[Float64], first: int, tick: Callable[[int], None]
) -> PathOptions:
    """Choose the options of a path.

    Parameters
    ----------
    states
        Of the run.
    loads
        ``[T, L, E]`` load of the run, and of reruns.
    first
        Iterations trained before the first one captured.
    tick
        Receives how many of two steps are done.
    """

    def paths(options: PathOptions, seed: int) -> Float64:
        rng = generator(seed, Use.COURSE)
        path = analog_path(states, len(loads[0]), options, rng, first=first)
        return path.shares(loads[0])

    chosen = _freest(paths, loads[0])
    tick(1)
    if len(loads) < 2:
        lag = min(LAG, len(loads[0]) // 2)
        wanted = max(0.0, correlation([loads[0][:-lag], loads[0][lag:]]))
    else:
        wanted = correlation(loads)
        begin = correlation([load[:FIRST] for load in loads])
        start = _exchange(
            lambda x, seed: paths(replace(chosen, start=x), seed)[:FIRST],
            begin,
            MOST_START,
        )
        # at the least exchange experts begin as captured
        chosen = replace(chosen, start=start if start > LEAST else 0.0)
    exchange = _exchange(
        lambda x, seed: paths(replace(chosen, exchange=x), seed), wanted, MOST
    )
    tick(2)
    return replace(chosen, exchange=exchange)


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


def _exchange(
    draw: Callable[[float, int], Float64], wanted: float, most: float
) -> float:
    """Find the least exchange with which paths are as little correlated as wanted."""

    def enough(exchange: float) -> bool:
        made = correlation([draw(exchange, seed) for seed in range(COURSES)])
        return made <= wanted + TOLERATED

    if enough(LEAST):
        return LEAST
    low, high = np.log([LEAST, most])
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(float(np.exp(middle))) else (middle, high)
    return float(np.exp(high))


def correlation(loads: Sequence[Float64]) -> float:
    """Correlate the smoothed loads of pairs of runs, above a balanced load: mean."""
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
