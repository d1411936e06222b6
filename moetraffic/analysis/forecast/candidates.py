"""Candidates: forecasters with settings, evaluated at chosen origins only.

The functions of :mod:`moetraffic.analysis.forecast.forecasters` forecast every step;
here the same forecasts are made at some origins of a block of series, and intermediate
results are shared between settings.  Gaps are filled with the last value before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.claim import LEVEL
from moetraffic.analysis.rhythm.periodicity import FIRST_PEAK, autocorrelation
from moetraffic.analysis.rhythm.spectral_lines import strongest_period
from moetraffic.arrays import Float64, Int64

from .autoregression import (
    Autoregression,
    ahead,
    fitting_order,
    moments,
    order_of,
    solve,
)
from .origins import Split

Named = TypeVar("Named")

FAMILIES = ("persistence", "mean", "ema", "seasonal", "ar")
"""Forecasters, simplest first, which breaks ties."""

ALPHAS = (0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01)
"""Candidate weights of the newest value of the exponential moving average."""

CYCLES = (1, 2, 4, 8)
"""Candidate numbers of periods averaged by the seasonal forecaster."""

MAX_ORDER = 8
"""Largest order of the autoregressions."""

EARLY = 1 - 1e-9
"""Maximum error ratio at which a later candidate replaces an earlier one."""

MEMORY = 8192
"""Minimum number of steps before a refit that it is fitted on."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Forecaster with a setting."""

    family: str  # one of FAMILIES
    setting: str  # in words
    cycles: int = 0  # that the seasonal forecaster averages
    order: int = 0  # of the autoregressions; 0: chosen for each series
    alpha: float = 1.0
    period: int = 0


MEAN_OF_PAST = Candidate(family="mean", setting="all before")
"""Mean of all values up to the origin: the error that an NMSE is relative to."""


def candidates(split: Split, *, period: int | None = None) -> tuple[Candidate, ...]:
    """List the forecasters and settings to evaluate on a series.

    ``period``: Of the seasonal forecaster, in steps; None or one that is not seen in
    training: it is not tried.

    Returns
    -------
    tuple of Candidate
        Persistence first.
    """
    known = split.train_end
    found = [Candidate(family="persistence", setting=""), MEAN_OF_PAST]
    found += [
        Candidate(family="ema", setting=f"alpha {alpha:g}", alpha=alpha)
        for alpha in ALPHAS
        if alpha * known >= 1
    ]
    if period is not None and 1 < period <= known:
        found += [
            Candidate(
                family="seasonal",
                setting=f"period {period}"
                + ("" if cycles == 1 else f", mean of {cycles}"),
                cycles=cycles,
                period=period,
            )
            for cycles in CYCLES
            if cycles * period <= known
        ]
    if fitting_order(known, MAX_ORDER):
        found += [
            Candidate(family="ar", setting=f"order {order}, iterated", order=size)
            for order, size in (("by AIC", 0), ("1", 1))
        ]
    return tuple(found)


def best_of(errors: Mapping[Named, float]) -> Named:
    """Return the first name whose error no later one undercuts beyond rounding."""
    best = next(iter(errors))
    for name, error in errors.items():
        if error < errors[best] * EARLY:
            best = name
    return best


def find_period(series: npt.NDArray[np.generic], split: Split) -> int | None:
    """Find the common period of the cells in the training part, if any.

    It exists where the spectrum has a line (:func:`.strongest_period`).  It is the lag
    at which the mean autocorrelation of the cells rises most above its lowest value
    before; the first such lag that rises nearly as much as the best.

    ``series``: ``[T, C]``; at most 256 cells and the last 4096 training steps are
    looked at.

    Returns
    -------
    int or None
        Steps, 2 ... half of the training part; None where the spectrum has no line, or
        nothing rises.
    """
    cells = series.shape[1]
    some = np.unique(np.linspace(0, max(cells - 1, 0), min(cells, 256)).astype(int))
    first = max(0, split.train_end - 4096)
    x = np.asarray(series[first : split.train_end][:, some], np.float64)
    whole = np.isfinite(x).all(axis=0)
    x = x[:, whole]
    furthest = len(x) // 2
    if furthest < 3 or not x.shape[1]:
        return None
    scale = np.sqrt((np.diff(x, axis=0) ** 2).mean(axis=0))
    line = strongest_period(x[:, scale > 0] / scale[scale > 0])
    if line is None or line.p >= LEVEL:
        return None
    acf = autocorrelation(x, furthest + 1)
    varies = np.isfinite(acf).all(axis=0)
    if not varies.any():
        return None
    mean = acf[:, varies].mean(axis=1)
    lags = np.arange(2, furthest + 1)
    peak = (mean[lags] >= mean[lags - 1]) & (mean[lags] > mean[lags + 1])
    rise = mean[lags] - np.minimum.accumulate(mean)[lags]
    rise = np.where(peak & (mean[lags] > 0), rise, 0.0)
    if not rise.any():
        return None
    return int(lags[np.argmax(rise >= FIRST_PEAK * rise.max())])


class SeriesBlock:
    """Series with intermediate results shared by the forecasters.

    Parameters
    ----------
    series
        ``[T, C]``, not finite where not known.
    split
        Of the series.

    Attributes
    ----------
    series
        ``[C, T]`` float64, NaN where not known.
    """

    def __init__(self, series: npt.NDArray[np.generic], split: Split) -> None:
        values = np.ascontiguousarray(series.T, np.float64)
        self.series = np.where(np.isfinite(values), values, np.nan)
        self.split = split
        self.lags = fitting_order(split.train_end, MAX_ORDER)
        self._levels: dict[float, Float64] = {}

    @cached_property
    def held(self) -> Float64:
        """Last known value at each step, ``[C, T]``; NaN before the first."""
        known = np.isfinite(self.series)
        if known.all():
            return self.series
        at = np.where(known, np.arange(self.series.shape[1]), 0)
        at = np.maximum.accumulate(at, axis=1)
        return np.take_along_axis(self.series, at, axis=1)

    @cached_property
    def _filled(self) -> Float64:
        """Last known values, with leading gaps filled by the first value, or 0.

        What is made of it before the first value is masked by :meth:`forecast`.
        """
        held = self.held
        known = np.isfinite(held)
        if known.all():
            return held
        first = np.argmax(known, axis=1)
        start = held[np.arange(len(held)), first][:, None]
        return np.where(known, held, np.where(np.isfinite(start), start, 0.0))

    @cached_property
    def _means(self) -> Float64:
        """Mean of all values up to each step, ``[C, T]``."""
        # a series' own first value keeps the sums small, and comes before all origins
        offset = self._filled[:, :1]
        sums = np.cumsum(self._filled - offset, axis=1)
        return np.asarray(offset + sums / np.arange(1, sums.shape[1] + 1), np.float64)

    def forecast(self, candidate: Candidate, origins: Int64, horizon: int) -> Float64:
        """Forecast the values at ``origins + horizon`` from values up to the origins.

        Parameters
        ----------
        candidate
            What forecasts.
        origins
            ``[n]`` steps.
        horizon
            h >= 1.

        Returns
        -------
        float64 array ``[C, n]``
            NaN where a series had no value yet.
        """
        last = self.held[:, origins]
        if candidate.family == "persistence":
            return last
        if candidate.family == "mean":
            made = self._means[:, origins]
        elif candidate.family == "ema":
            made = self._level(candidate.alpha)[:, origins]
        elif candidate.family == "seasonal":
            made = self._phase(candidate, origins, horizon)
        else:
            made = self._linear(candidate.order, origins, horizon)
        made = np.where(np.isfinite(made), made, last)
        return np.where(np.isfinite(last), made, np.nan)

    def _level(self, alpha: float) -> Float64:
        if alpha not in self._levels:
            # not scipy.signal.lfilter, which takes a second to import
            level = self._filled.T.copy()
            for t in range(1, len(level)):
                level[t] = alpha * level[t] + (1 - alpha) * level[t - 1]
            self._levels = {alpha: level.T}  # one at a time
        return self._levels[alpha]

    def _phase(self, candidate: Candidate, origins: Int64, horizon: int) -> Float64:
        back = origins + horizon - candidate.period * -(-horizon // candidate.period)
        total = np.zeros((len(self.series), len(origins)))
        for cycle in range(candidate.cycles):
            at = back - cycle * candidate.period
            total += np.where(at >= 0, self.held[:, np.maximum(at, 0)], np.nan)
        return total / candidate.cycles

    def _linear(self, order: int, origins: Int64, horizon: int) -> Float64:
        model = ahead(self._one_step[order], horizon)
        refits = self.split.refits()
        # before the first refit its fit is shown, in sample: no such origin is judged
        refit = np.maximum(np.searchsorted(refits, origins + 1, side="right") - 1, 0)
        made: Float64 = model.constant[refit].T.copy()
        for lag in range(model.weights.shape[-1]):
            weight = model.weights[refit, :, lag].T
            if not weight.any():
                continue
            value = self.held[:, np.maximum(origins - lag, 0)]
            made += weight * np.where(origins >= lag, value, np.nan)
        return made

    @cached_property
    def _one_step(self) -> dict[int, Autoregression]:
        """Fit AR models by order (0: chosen), one per refit and series, ``[R, C]``.

        Orders are chosen from the training part.
        """
        whole = moments(
            self.series,
            self._borders.tolist(),
            max_order=self.lags,
            known_until=self.split.train_end,
        )
        training = self._borders[1:] <= self.split.train_end
        chosen = order_of(replace(whole, products=whole.products[training]))
        first = np.minimum(1, self.lags)
        return {n: solve(whole, self._window, p) for n, p in ((0, chosen), (1, first))}

    @cached_property
    def _borders(self) -> Int64:
        """Borders ``[S + 1]`` of the stretches whose moments make up the fits."""
        train, every = self.split.train_end, self.split.refit_every
        if self.split.steps <= MEMORY:  # no fit ever forgets
            return np.concatenate(([0], self.split.refits()))
        before = train - np.arange(0, min(train, MEMORY) + every, every)[::-1]
        return np.concatenate((np.maximum(before, 0)[:-1], self.split.refits()))

    @cached_property
    def _window(self) -> Float64:
        """Select the stretches that each refit is fitted on, ``[R, S]``."""
        refit = self.split.refits()[:, None]
        begin, end = self._borders[:-1], self._borders[1:]
        used = (end <= refit) & (end > refit - MEMORY) & (end > begin)
        return used.astype(np.float64)


def tune(
    block: SeriesBlock,
    tried: Sequence[Candidate],
    horizons: Sequence[int],
    *,
    scale: npt.ArrayLike = 1.0,
) -> dict[int, dict[Candidate, float]]:
    """Choose the best setting of each forecaster on the validation part.

    Parameters
    ----------
    tried
        Forecasters and settings, the simplest first: of two equally good, the first is
        taken.
    horizons
        Iterations ahead; settings are chosen separately for each.
    scale
        ``[C]`` what errors are multiplied by.

    Returns
    -------
    dict of int to dict
        By horizon: the best setting of each family and its mean squared error, the best
        family first.
    """
    square = np.broadcast_to(np.square(scale), len(block.series))
    errors: dict[int, dict[Candidate, float]] = {h: {} for h in horizons}
    cases = []
    for h in horizons:
        origins = block.split.validation(h)
        target = block.series[:, origins + h]
        unknown = ~(np.isfinite(target) & np.isfinite(block.held[:, origins]))
        cases.append((h, origins, target, unknown, int((~unknown).sum())))
    for candidate in tried:
        for h, origins, target, unknown, values in cases:
            miss = block.forecast(candidate, origins, h) - target
            miss[unknown] = 0.0
            total = float((np.einsum("cn,cn->c", miss, miss) * square).sum())
            errors[h][candidate] = total / values if values else float("nan")
    return {h: _ranked(found) for h, found in errors.items()}


def _ranked(errors: Mapping[Candidate, float]) -> dict[Candidate, float]:
    """Rank the families of forecasters, each with its best setting."""
    families: dict[str, dict[Candidate, float]] = {}
    for candidate, error in errors.items():
        families.setdefault(candidate.family, {})[candidate] = error
    best = {name: errors[name] for name in map(best_of, families.values())}
    first = best_of(best)
    return {first: best[first], **best}
