r"""Accuracy of forecasts at each origin: cosine similarity and hot-cell recall.

Forecasts and targets are ``[n, C]``: n origins, C cells (experts, ranks, or pairs of a
matrix) of one amount, such as bytes.  Each measure gives ``[n]``, NaN where there is
nothing to compare.  Unknown cells are 0 in both.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Floating = npt.NDArray[np.floating]


def cosine(forecast: Floating, target: Floating) -> Float64:
    r"""Cosine of the angle between the two as vectors, :math:`f \cdot x / |f| |x|`.

    Non-negative loads that are nearly even have a cosine near 1 whatever is forecast:
    read it beside that of persistence.

    Parameters
    ----------
    forecast, target
        ``[n, C]``.

    Returns
    -------
    float64 array ``[n]``
        NaN where one of them is zero.

    Examples
    --------
    >>> cosine(np.array([[1.0, 0.0]]), np.array([[1.0, 1.0]])).round(6).tolist()
    [0.707107]
    """
    f, x = forecast.astype(np.float64), target.astype(np.float64)
    size = np.sqrt((f**2).sum(axis=1) * (x**2).sum(axis=1))
    out: Float64 = np.full(len(f), np.nan)
    np.divide((f * x).sum(axis=1), size, out=out, where=size > 0)
    return out


def hot_recall(forecast: Floating, target: Floating, hot: int) -> Float64:
    """Compute the recall of the K largest cells by the K largest forecasts.

    A random guess has K/C.  Ties at the border are weighted as if broken at random, so
    that a constant forecast has exactly K/C.

    Parameters
    ----------
    forecast, target
        ``[n, C]``.
    hot
        K, 1 ... C.

    Returns
    -------
    float64 array ``[n]``
        0 ... 1; NaN where all targets are alike: then none is hot.

    Examples
    --------
    >>> hot_recall(np.array([[5.0, 9, 1, 0]]), np.array([[7.0, 0, 8, 1]]), 2).tolist()
    [0.5]
    """
    shared = (_hot(forecast, hot) * _hot(target, hot)).sum(axis=1) / hot
    alike = target.max(axis=1) == target.min(axis=1)
    return np.where(alike, np.nan, shared)


def mean_of_known(values: npt.ArrayLike) -> float:
    """Compute the mean of the finite values; NaN without any."""
    known = np.asarray(values, np.float64)
    known = known[np.isfinite(known)]
    return float(known.mean()) if known.size else float("nan")


def _hot(values: Floating, hot: int) -> Float64:
    """Compute the probability of each cell to be in the top K, ties random."""
    cells = values.shape[1]
    border = np.partition(values, cells - hot, axis=1)[:, cells - hot, None]
    above, tied = values > border, values == border
    places = hot - above.sum(axis=1, keepdims=True)
    chance: Float64 = places / np.maximum(tied.sum(axis=1, keepdims=True), 1)
    return np.asarray(above + tied * chance, np.float64)
