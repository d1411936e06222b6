"""Correction: forecasts of a target from another series of the same iteration.

Two methods: a column-stochastic map of loads, and a regression of the target's forecast
errors on those of the first dispatch.  Fits use earlier iterations only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from .candidates import Candidate
from .origins import Split
from .transition import apply_transition, fit_transition
from .tuning import block_of, slices, tune

Float64 = npt.NDArray[np.float64]

WIDEST_MAP = 256
"""Maximum number of cells for a column-stochastic map."""

COMPONENTS = 32
"""Maximum principal components of the first dispatch's forecast errors."""

RIDGES = (0.01, 0.1, 1.0, 10.0)
"""Candidate ridges of the regression, relative to the mean eigenvalue."""

EARLY = 1 - 1e-9
"""Maximum error ratio at which a later candidate replaces an earlier one."""

MAP_RIDGES = (0.01, 0.3, 10.0)
"""Candidate ridges of the maps."""

PAST = "history"
"""Name of the forecast from earlier iterations alone."""


def past_forecast(
    series: npt.NDArray[np.generic],
    cut: Split,
    tried: Sequence[Candidate],
    max_order: int,
) -> tuple[Float64, str]:
    """Compute one-step forecasts from the past by the best forecaster on validation.

    Parameters
    ----------
    series
        ``[T, C]``.
    cut
        Of the series.
    tried
        Forecasters and settings, the simplest first.
    max_order
        Of the autoregressions.

    Returns
    -------
    float64 array ``[T, C]`` and str
        Forecasts of each step (those of the training part in sample), and by what.
    """
    blocks = slices(cut, series.shape[1], max_order)
    whole = block_of(series, blocks[0], cut, max_order) if len(blocks) == 1 else None
    scale = np.ones(series.shape[1])
    ranked = tune(series, scale, cut, tried, [1], max_order=max_order, whole=whole)
    best = ranked[1][0][0]
    made = np.full(series.shape, np.nan)
    for part in blocks:
        block = whole or block_of(series, part, cut, max_order)
        made[1:, part] = block.forecast(best, np.arange(cut.steps - 1), 1).T
    return made, f"{best.family} ({best.setting})" if best.setting else best.family


def validation_error(
    y: Float64, made: Mapping[str, Float64], key: str, cut: Split
) -> float:
    """Compute the squared error on validation; missing values use the past forecast.

    Parameters
    ----------
    y
        ``[T, C]`` what came.
    made
        Forecasts by name, that of the past among them.
    key
        Which of them.
    cut
        Of the series.

    Returns
    -------
    float
        Sum of squares.
    """
    when = cut.validation(1) + 1
    past = made[PAST][when]
    f = np.where(np.isfinite(made[key][when]), made[key][when], past)
    miss = np.where(np.isfinite(y[when]) & np.isfinite(past), f - y[when], 0.0)
    return float((miss**2).sum())


def misses_nothing(y: Float64, made: Mapping[str, Float64], cut: Split) -> bool:
    """Check whether a forecast is exact on the validation part.

    Parameters
    ----------
    y, made, cut
        As in :func:`validation_error`.

    Returns
    -------
    bool
    """
    return any(validation_error(y, made, key, cut) == 0 for key in made)


def learned(
    x: npt.NDArray[np.generic],
    surprise: Float64,
    y: Float64,
    past_y: Float64,
    cut: Split,
) -> dict[str, Float64]:
    """Compute the forecasts by map and by regression, each with its best ridge.

    Parameters
    ----------
    x
        ``[T, m]`` the first dispatch.
    surprise
        ``[T, m]`` what its past had not told of it.
    y, past_y
        ``[T, C]`` the target, and its forecast from the past.
    cut
        Of the series.

    Returns
    -------
    dict of str to float64 array ``[T, C]``
        By name and ridge; NaN, or the past, where a map is not fitted yet.
    """
    found: dict[str, Float64] = {}
    rivals: dict[str, Float64] = {PAST: past_y}
    if max(x.shape[1], y.shape[1]) <= WIDEST_MAP:
        ends = (cut.train_end, cut.validation_end)
        for ridge in MAP_RIDGES:
            rivals[f"map, ridge {ridge:g}"] = mapped(x, y, ends, cut, ridge)
        best = min(
            (key for key in rivals if key != PAST),
            key=lambda key: validation_error(y, rivals, key, cut),
        )
        ridge = MAP_RIDGES[list(rivals).index(best) - 1]
        later = (cut.validation_end, cut.steps)
        found[best] = np.where(
            np.arange(cut.steps)[:, None] < cut.validation_end,
            rivals[best],
            mapped(x, y, later, cut, ridge),
        )
    least, regression = np.inf, {PAST: past_y}
    for ridge in RIDGES:
        tries = {
            PAST: past_y,
            "": past_y + corrected(surprise, y - past_y, cut, ridge),
        }
        error = validation_error(y, tries, "", cut)
        if error < least * EARLY:
            least, regression = error, {f"regression, ridge {ridge:g}": tries[""]}
    return found | regression


def mapped(
    x: npt.NDArray[np.generic],
    y: Float64,
    ends: tuple[int, int],
    cut: Split,
    ridge: float,
) -> Float64:
    """Forecast targets by a column-stochastic map fitted to all earlier steps.

    Parameters
    ----------
    x, y
        ``[T, m]`` and ``[T, C]``.
    ends
        The first step that is forecast, and the one after the last.
    cut
        Of the series.
    ridge
        As in :func:`fit_transition`.

    Returns
    -------
    float64 array ``[T, C]``
        NaN elsewhere.
    """
    begin, end = ends
    made = np.full(y.shape, np.nan)
    before, after = np.asarray(x[:begin], np.float64), y[:begin]
    known = np.isfinite(before).all(axis=1) & np.isfinite(after).all(axis=1)
    whole = float(before[known].sum())
    if whole > 0:
        units = float(after[known].sum()) / whole  # of y to one of x
        fitted = fit_transition(before, after, ridge=ridge, tolerance=1e-5)
        told = apply_transition(fitted, np.asarray(x[begin:end], np.float64))
        made[begin:end] = units * told
    return made


def corrected(x: Float64, y: Float64, cut: Split, ridge: float) -> Float64:
    """Forecast the target's errors by regression on those of the first dispatch.

    Parameters
    ----------
    x, y
        ``[T, m]`` and ``[T, C]`` surprises: what the past had not told.
    cut
        Of the series; B is fitted anew at its refits, from all before.
    ridge
        Relative to the mean eigenvalue.

    Returns
    -------
    float64 array ``[T, C]``
        0 in the training part.
    """
    known = np.asarray(np.isfinite(x).all(axis=1) & np.isfinite(y).all(axis=1))
    x = np.where(np.isfinite(x), x, 0.0)
    usable = np.flatnonzero(known[: cut.train_end])
    out = np.zeros(y.shape)
    if len(usable) < 4:
        return out
    # Step 1: the main directions of the first dispatch's surprises in training.
    number = max(1, min(COMPONENTS, x.shape[1], len(usable) // 4))
    gram_wide = x.shape[1] <= len(usable)
    part = x[usable]
    _, vectors = np.linalg.eigh(part.T @ part if gram_wide else part @ part.T)
    main = vectors[:, -number:] if gram_wide else part.T @ vectors[:, -number:]
    z = x @ (main / np.maximum(np.sqrt((main**2).sum(axis=0)), 1e-300))
    # Step 2: ridge at each refit, from all before it.
    borders = [*cut.refits().tolist(), cut.steps]
    held = np.where(known[:, None], np.nan_to_num(y), 0.0)
    score = np.where(known[:, None], z, 0.0)
    moments = score[: borders[0]].T @ score[: borders[0]]
    cross = score[: borders[0]].T @ held[: borders[0]]
    for begin, end in pairwise(borders):
        size = float(np.trace(moments)) / number
        if size > 0:
            left = moments + (ridge + 1e-12) * size * np.eye(number)
            out[begin:end] = z[begin:end] @ np.linalg.solve(left, cross)
        moments = moments + score[begin:end].T @ score[begin:end]
        cross = cross + score[begin:end].T @ held[begin:end]
    return out
