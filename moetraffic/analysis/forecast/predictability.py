"""Predictability: how well forecasts from the past met what came.

Scores are taken over the steps from a warm-up on, where the target, the forecast and
the persistence forecast are all known.  What is measured is loads or bytes as they are;
whether an error is small is told by :func:`mape_floor` and by the skill against
persistence, which costs a scheduler nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.errors import AnalysisError

from .forecasters import FORECASTERS, Forecaster, best_so_far, persistence

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Axis = int | tuple[int, ...]

BEST = "best_so_far"


@dataclass(frozen=True, kw_only=True)
class Scores:
    """How good a forecast was; arrays of the axes that were not pooled, NaN if unknown.

    ``nmse`` is the mean squared error over the variance of the scored targets, each
    series about its own mean: 0 is exact, 1 as good as knowing the mean.  ``mape`` is
    the mean of ``|x - forecast| / x`` over the targets above zero.  ``skill`` is
    ``1 - MSE / MSE of persistence`` at the same horizon: above 0, better than that.
    """

    mse: Float64  # mean squared error, the series' unit squared
    nmse: Float64
    mape: Float64  # a fraction, not percent
    skill: Float64
    count: Int64  # values scored


def score(
    series: npt.ArrayLike,
    forecast: npt.ArrayLike,
    *,
    warm_up: int = 8,
    horizon: int = 1,
    axis: Axis = 0,
) -> Scores:
    """Score forecasts against what happened.

    Parameters
    ----------
    series, forecast
        ``[T, ...]``, time first.
    warm_up
        First step that is scored, so that all forecasters are judged by the same steps.
    horizon
        Steps ahead of the forecasts: what persistence, behind ``skill``, is given.
    axis
        Axes that are pooled to one score, the time among them.  ``(0, -1)`` of
        ``[T, L, E]`` gives a score a layer, in which the experts' squared errors and
        variances are added up before they are divided.

    Returns
    -------
    Scores

    Raises
    ------
    AnalysisError
        If the shapes differ, or the time is not pooled.

    Examples
    --------
    >>> x = [1, 2, 1, 2, 1, 2]
    >>> found = score(x, persistence(x), warm_up=2)
    >>> float(found.nmse), float(found.mape), float(found.skill), int(found.count)
    (4.0, 0.75, 0.0, 4)
    """
    x, f = np.asarray(series, np.float64), np.asarray(forecast, np.float64)
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    if x.shape != f.shape or not x.ndim or 0 not in {a % x.ndim for a in axes}:
        raise AnalysisError(
            f"series and forecast have one shape, whose first axis, the time, is "
            f"pooled, but the shapes are {x.shape} and {f.shape} and axis is {axis}: "
            f"put 0 into axis"
        )
    reference = persistence(x, horizon=horizon)
    x, f, reference = x[warm_up:], f[warm_up:], reference[warm_up:]
    used = np.isfinite(x) & np.isfinite(f) & np.isfinite(reference)
    count = used.sum(axis=axes)
    own = used.sum(axis=0)
    mean = _ratio(np.where(used, x, 0.0).sum(axis=0), own)
    error = np.where(used, (x - f) ** 2, 0.0).sum(axis=axes)
    naive = np.where(used, (x - reference) ** 2, 0.0).sum(axis=axes)
    spread = np.where(used, (x - mean) ** 2, 0.0).sum(axis=axes)
    squares = np.where(used, x**2, 0.0).sum(axis=axes)
    spread = np.where(spread > 1e-24 * squares, spread, 0.0)  # less is rounding
    positive = used & (x > 0)
    relative = np.zeros_like(x)
    np.divide(np.abs(x - f), x, out=relative, where=positive)
    return Scores(
        mse=_ratio(error, count)[()],
        nmse=_ratio(error, spread)[()],
        mape=_ratio(relative.sum(axis=axes), positive.sum(axis=axes))[()],
        skill=(1 - _ratio(error, naive))[()],
        count=count,
    )


def _ratio(part: npt.ArrayLike, whole: npt.ArrayLike) -> Float64:
    """The quotient, NaN where nothing is divided by."""
    above, below = np.asarray(part, np.float64), np.asarray(whole, np.float64)
    quotient: Float64 = np.full(np.broadcast_shapes(above.shape, below.shape), np.nan)
    np.divide(above, below, out=quotient, where=below > 0)
    return quotient


def evaluate(
    series: npt.ArrayLike,
    *,
    forecasters: Mapping[str, Forecaster] | None = None,
    warm_up: int = 8,
    horizon: int = 1,
    axis: Axis = 0,
) -> dict[str, Scores]:
    """Score forecasters on a series, and the one that follows the best of them.

    Parameters
    ----------
    series
        ``[T, ...]``, time first.
    forecasters
        By name, each called as ``forecaster(series, horizon=horizon)``; None:
        :data:`FORECASTERS`.
    warm_up, horizon, axis
        As in :func:`score`.

    Returns
    -------
    dict of str to Scores
        By the forecaster's name, and :func:`best_so_far` under its own.

    Examples
    --------
    >>> import numpy as np
    >>> noise = np.random.default_rng(0).normal(size=5000)
    >>> found = evaluate(noise)
    >>> float(found["persistence"].skill), round(float(found["persistence"].nmse), 1)
    (0.0, 2.0)
    >>> round(float(found["window_mean"].nmse), 1)
    1.1
    """
    chosen = FORECASTERS if forecasters is None else forecasters
    forecasts = {name: make(series, horizon=horizon) for name, make in chosen.items()}
    if forecasts:
        forecasts[BEST] = best_so_far(series, forecasts, horizon=horizon)
    return {
        name: score(series, made, warm_up=warm_up, horizon=horizon, axis=axis)
        for name, made in forecasts.items()
    }


def mape_floor(tokens: npt.ArrayLike, *, experts: int, k: int) -> Float64:
    r"""MAPE that the best possible forecaster of expert loads has by chance alone.

    Even who knows a balanced gate's probabilities misses its counts by the noise of N
    tokens: about :math:`\sqrt{\frac{2}{\pi} \frac{E-k}{kN}}`, the mean absolute
    deviation of a normal variable with the binomial count's CV.

    Parameters
    ----------
    tokens
        N, any shape.
    experts, k
        E, and distinct experts of a token.

    Returns
    -------
    float64 array
        A fraction; NaN without tokens.

    Raises
    ------
    AnalysisError
        If k is not among 1 ... E.

    Examples
    --------
    >>> round(float(mape_floor(4096, experts=8, k=2)), 6)
    0.021593
    """
    if not 1 <= k <= experts:
        raise AnalysisError(
            f"a token's k experts are distinct, but k is {k} of {experts} experts: "
            f"choose k from 1 to {experts}"
        )
    number = np.asarray(tokens, dtype=np.float64)
    result: Float64 = np.sqrt(2 / np.pi * _ratio(float(experts - k), k * number))[()]
    return result
