"""Statistical distances: total variation, relative difference, Wasserstein-1."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64

from .skew.measures import shares


def total_variation(p: npt.ArrayLike, q: npt.ArrayLike) -> Float64:
    r"""Compute the total variation distance, :math:`\frac12 \sum_c |p_c - q_c|`.

    ``p``, ``q``: ``[..., C]`` non-negative amounts, such as loads of experts, which are
    divided by their sums; leading axes broadcast.

    Returns
    -------
    float64 array ``[...]``
        0 to 1; NaN where one of the two has no amount.

    Examples
    --------
    >>> total_variation([[1, 1, 2], [4, 0, 0]], [1, 1, 2]).tolist()
    [0.0, 0.75]
    """
    distance: Float64 = np.abs(shares(p) - shares(q)).sum(axis=-1) / 2
    return distance


def relative_difference(x: Float64, y: Float64) -> float:
    """Compute the absolute difference of two means relative to the first.

    ``x``, ``y``: Amounts of one unit, any shape.

    Examples
    --------
    >>> relative_difference(np.array([4.0]), np.array([3.0]))
    0.25
    """
    base = float(x.mean())
    return abs(float(y.mean()) - base) / base if base > 0 else float("nan")


def relative_median(x: Float64, y: Float64) -> float:
    """Compute the absolute difference of two medians relative to the first."""
    return relative_difference(np.median(x, keepdims=True), np.median(y, keepdims=True))


def wasserstein(x: Float64, y: Float64) -> float:
    """Compute the Wasserstein-1 distance of two samples; NaN if one is empty.

    ``x``, ``y``: ``[T]`` and ``[U]``; values that are not finite are left out.

    Examples
    --------
    >>> wasserstein(np.array([0.0, 1.0]), np.array([1.0, 2.0]))
    1.0
    """
    p, q = (np.sort(v[np.isfinite(v)]) for v in (x, y))
    if not (len(p) and len(q)):
        return float("nan")
    if len(p) == len(q):  # ten times faster for many resamples
        return float(np.abs(p - q).mean())
    from scipy.stats import wasserstein_distance

    return float(wasserstein_distance(p, q))
