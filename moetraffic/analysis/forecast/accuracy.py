r"""Accuracy of forecasts: cosine similarity, hot-cell recall, share within a tolerance.

Forecasts and targets are ``[n, C]``: n origins, C cells (experts, ranks, or pairs of a
matrix) of one amount, such as bytes.  Unknown cells are 0 in both.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64, Floating

TOLERANCES = (0.05, 0.1, 0.2, 0.5)
"""Relative errors for which the share of bytes forecast to within each is reported."""


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
        0 ... 1; NaN where all targets are equal.

    Examples
    --------
    >>> hot_recall(np.array([[5.0, 9, 1, 0]]), np.array([[7.0, 0, 8, 1]]), 2).tolist()
    [0.5]
    """
    shared = (_hot(forecast, hot) * _hot(target, hot)).sum(axis=1) / hot
    even = target.max(axis=1) == target.min(axis=1)
    return np.where(even, np.nan, shared)


def _hot(values: Floating, hot: int) -> Float64:
    """Compute the probability of each cell to be in the top K, ties random."""
    cells = values.shape[1]
    border = np.partition(values, cells - hot, axis=1)[:, cells - hot, None]
    above, tied = values > border, values == border
    places = hot - above.sum(axis=1, keepdims=True)
    chance: Float64 = places / np.maximum(tied.sum(axis=1, keepdims=True), 1)
    return np.asarray(above + tied * chance, np.float64)


def share_within(
    forecast: Float64, target: Float64, size: Float64 | float = 1.0
) -> tuple[float, ...]:
    """Compute the share of bytes in cells forecast to within each of the tolerances.

    Parameters
    ----------
    forecast, target
        Amounts of the same shape.
    size
        Bytes of one unit, broadcast to that shape.

    Returns
    -------
    tuple of float
        0 ... 1, one per value of :data:`TOLERANCES`; NaN if there are no bytes.

    Examples
    --------
    >>> share_within(np.array([1.0, 2.5]), np.array([1.0, 3.0]))
    (0.25, 0.25, 1.0, 1.0)
    """
    above = target > 0
    value, amount = target[above], (target * size)[above]
    miss = np.abs(forecast - target)[above]
    whole = float(amount.sum())
    if not whole > 0:
        return (float("nan"),) * len(TOLERANCES)
    return tuple(
        float(amount[miss <= t * (1 + 1e-12) * value].sum()) / whole for t in TOLERANCES
    )


def mean_of_known(values: npt.ArrayLike) -> float:
    """Compute the mean of the finite values; NaN without any."""
    known = np.asarray(values, np.float64)
    known = known[np.isfinite(known)]
    return float(known.mean()) if known.size else float("nan")
