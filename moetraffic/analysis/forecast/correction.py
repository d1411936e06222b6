"""Correction: forecasts of a target by another series of the same iteration.

The target's forecast errors are regressed on those of the first dispatch.  Fits use
earlier iterations only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64

from .candidates import Candidate, SeriesBlock, best_of, tune
from .origins import Split

COMPONENTS = 32
"""Maximum principal components of the first dispatch's forecast errors."""

RIDGES = (0.01, 0.1, 1.0, 10.0)
"""Candidate ridges of the regression, relative to the mean eigenvalue."""


def past_forecast(
    series: npt.NDArray[np.generic], cut: Split, tried: Sequence[Candidate]
) -> tuple[Float64, str]:
    """Compute one-step forecasts by the forecaster that is best on validation.

    Parameters
    ----------
    series
        ``[T, C]``.
    tried
        Forecasters and settings, the simplest first.

    Returns
    -------
    float64 array ``[T, C]`` and str
        Forecasts of each step (those of the training part in sample), and by what.
    """
    block = SeriesBlock(series, cut)
    best = next(iter(tune(block, tried, [1])[1]))
    made = np.full(series.shape, np.nan)
    made[1:] = block.forecast(best, np.arange(cut.steps - 1), 1).T
    return made, f"{best.family} ({best.setting})" if best.setting else best.family


def validation_error(y: Float64, made: Float64, past: Float64, cut: Split) -> float:
    """Compute the sum of squared errors of a forecast on the validation part.

    Parameters
    ----------
    y
        ``[T, C]`` target.
    made
        ``[T, C]`` forecast.
    past
        ``[T, C]`` forecast from earlier iterations, which replaces missing values.
    """
    when = cut.validation(1) + 1
    f = np.where(np.isfinite(made[when]), made[when], past[when])
    known = np.isfinite(y[when]) & np.isfinite(past[when])
    return float((np.where(known, f - y[when], 0.0) ** 2).sum())


def correction(
    missed: Float64, y: Float64, past: Float64, cut: Split
) -> tuple[str, Float64]:
    """Correct the forecasts ``[T, C]`` from earlier iterations, with the best ridge.

    ``missed``: ``[T, m]`` forecast errors of the first dispatch.  Returns how, and the
    corrected forecasts of ``y``, which are ``past`` before the first fit.
    """
    tries = {ridge: past + regressed(missed, y - past, cut, ridge) for ridge in RIDGES}
    ridge = best_of({r: validation_error(y, m, past, cut) for r, m in tries.items()})
    return f"regression, ridge {ridge:g}", tries[ridge]


def regressed(x: Float64, y: Float64, cut: Split, ridge: float) -> Float64:
    """Forecast the target's errors by regression on those of the first dispatch.

    Parameters
    ----------
    x, y
        ``[T, m]`` and ``[T, C]`` forecast errors from earlier iterations.
    cut
        Of the series; the fit is repeated at its refits, from all steps before.
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
    # Step 1: principal components of the first dispatch's errors in training.
    number = max(1, min(COMPONENTS, x.shape[1], len(usable) // 4))
    gram_wide = x.shape[1] <= len(usable)
    part = x[usable]
    _, vectors = np.linalg.eigh(part.T @ part if gram_wide else part @ part.T)
    main = vectors[:, -number:] if gram_wide else part.T @ vectors[:, -number:]
    z = x @ (main / np.maximum(np.sqrt((main**2).sum(axis=0)), 1e-300))
    # Step 2: ridge at each refit, from all before it.
    borders = [0, *cut.refits().tolist(), cut.steps]
    held = np.where(known[:, None], np.nan_to_num(y), 0.0)
    score = np.where(known[:, None], z, 0.0)
    moments, cross = np.zeros((number, number)), np.zeros((number, y.shape[1]))
    for begin, end in pairwise(borders):
        size = float(np.trace(moments)) / number
        if size > 0:
            left = moments + (ridge + 1e-12) * size * np.eye(number)
            out[begin:end] = z[begin:end] @ np.linalg.solve(left, cross)
        moments = moments + score[begin:end].T @ score[begin:end]
        cross = cross + score[begin:end].T @ held[begin:end]
    return out
