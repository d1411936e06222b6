"""Series of exchanges that policies are evaluated on, and their forecasts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from moetraffic.analysis.forecast import (
    METHODS,
    Split,
    find_period,
    forecasts,
    tuned,
)
from moetraffic.arrays import Float64, Int64
from moetraffic.errors import AnalysisError

LayerKey = int | tuple[int, int]
"""A layer, or a layer and an expert-parallel group where a layer has several."""


def number_of(layer: LayerKey) -> int:
    """Return the number of a layer, without that of a group."""
    return layer if isinstance(layer, int) else layer[0]


CHOSEN = "chosen"
"""Forecaster that has the lowest error on the second quarter of a run."""

FORECASTERS = ("shuffled", "mean", "persistence", "ema", CHOSEN, "oracle")
"""Forecasters of the next exchange: a random earlier one (a control), the mean of all
earlier ones, the newest known one, an exponential moving average, the forecaster of
:mod:`moetraffic.analysis.forecast` with the lowest error on the second quarter (which
need not be the best one later, or for completion times), the exchange itself."""

FEWEST_ITERATIONS = 16
"""Iterations of a run below which nothing is evaluated."""

HELD_BYTES = 1 << 30
"""Memory of the matrices of one evaluation above which they are read as needed."""

WINDOW_BYTES = 64 << 20
"""Memory of the matrices of a layer that are kept where they are read as needed."""


class MatrixWindow:
    """Matrices ``[T, W, W]`` of which the newest that were used are in memory.

    ``series[t]`` and ``series[a:b]`` read what is needed, as arrays of float64, by a
    function of one index.
    """

    def __init__(
        self, read: Callable[[int], Float64], shape: tuple[int, int, int]
    ) -> None:
        self.shape, self.ndim = shape, len(shape)
        self._read = read
        self._most = max(2, WINDOW_BYTES // (8 * shape[1] * shape[2]))
        self._kept: OrderedDict[int, Float64] = OrderedDict()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int | slice) -> Float64:
        if isinstance(index, slice):
            every = [self._one(at) for at in range(*index.indices(len(self)))]
            return np.array(every).reshape(-1, *self.shape[1:])
        return self._one(range(len(self))[index])

    def _one(self, at: int) -> Float64:
        if at not in self._kept:
            if len(self._kept) >= self._most:
                self._kept.popitem(last=False)
            self._kept[at] = self._read(at)
        self._kept.move_to_end(at)
        return self._kept[at]


@dataclass(frozen=True, kw_only=True, eq=False)
class ExchangeSeries:
    """Exchanges of some layers over the iterations of a run, in one unit."""

    name: str
    phase: str
    iterations: Int64  # [T]
    # [T, W, W] bytes or [T, W, E] token copies
    layers: Mapping[LayerKey, Float64 | MatrixWindow]
    row_bytes: int = 1  # of a token copy on the wire; 0: not known
    # world ranks of a layer's rows, as those of its pipeline stage; absent: all ranks
    ranks: Mapping[LayerKey, tuple[int, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # iterations that are left out, and why
    digest: str = ""  # of the trace file; "": none

    def __post_init__(self) -> None:
        if len(self.iterations) < FEWEST_ITERATIONS:
            raise AnalysisError(
                f"policies are evaluated on the second half of at least "
                f"{FEWEST_ITERATIONS} iterations, but of {self.name} "
                f"{len(self.iterations)} are chosen: choose more, or give a longer run"
            )


class _Chosen(Sequence[Float64]):
    """Some matrices of a series that is read as needed."""

    def __init__(self, series: MatrixWindow, at: Int64) -> None:
        self._series, self._at = series, at

    def __len__(self) -> int:
        return len(self._at)

    def __getitem__(self, index: Any) -> Any:
        return self._series[int(self._at[index])]


def first_point(steps: int) -> int:
    """Return the first iteration that is served: the second half of T steps."""
    return steps // 2


MOST_SERVED = 64
"""Iterations that are served at most, if no other number is asked for."""


def served_points(steps: int, most: int = MOST_SERVED) -> Int64:
    """Return the iterations of T that are served, ``[n]`` consecutive indices."""
    return np.arange(max(first_point(steps), steps - most), steps)


def forecast_points(
    series: Float64 | MatrixWindow,
    points: Int64,
    *,
    age: int,
    forecaster: str,
    seed: int = 0,
) -> Sequence[Float64] | Float64:
    """Forecast a series at some iterations from what is known ``age`` before.

    Parameters
    ----------
    series
        ``[T, ...]``, 0 and above.
    points
        ``[n]`` iterations of the second half.
    age
        Iterations from the newest known one to the forecast one, 1 or more.
    forecaster
        One of FORECASTERS; settings are chosen on the second quarter.

    Returns
    -------
    float64 array ``[n, ...]``, or a sequence that is read as needed
        Depends on ``series[: point - age + 1]`` only, but for the oracle.

    Raises
    ------
    AnalysisError
        If the forecaster needs matrices in memory, but they are read as needed.
    """
    newest = points - age
    chosen: Int64 | None = None
    if forecaster == "oracle":
        chosen = points
    elif forecaster == "persistence":
        chosen = newest
    elif forecaster == "shuffled":
        rng = np.random.default_rng(seed)
        chosen = rng.integers(0, newest + 1)
    if chosen is not None:
        if isinstance(series, MatrixWindow):
            return _Chosen(series, chosen)
        return series[chosen]
    if isinstance(series, MatrixWindow):
        raise AnalysisError(
            f"the forecaster {forecaster!r} needs all matrices in memory, at most "
            f"{HELD_BYTES >> 30} GiB: choose persistence, shuffled and oracle, or "
            "fewer --layers or --iterations"
        )
    if forecaster == "mean":
        sums = np.cumsum(series, axis=0)[newest]
        return sums / (newest + 1).reshape(-1, *[1] * (series.ndim - 1))
    flat = np.asarray(series.reshape(len(series), -1), np.float64)
    known = first_point(len(series)) - age + 1
    parts = Split(
        times=np.arange(len(series)), train_end=known // 2, validation_end=known
    )
    period = find_period(flat[: parts.train_end])
    methods = ("persistence", "ema") if forecaster == "ema" else METHODS
    best = tuned(flat, parts, [age], period=period, methods=methods)[age][0]
    (made,) = forecasts(flat, parts.times, best, {age: newest})
    return np.maximum(made, 0.0).reshape(len(points), *series.shape[1:])
