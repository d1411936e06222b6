"""Windows of a capture, whose length grows from its beginning."""

from __future__ import annotations

import numpy as np

from moetraffic.arrays import Float64, Int64

from .constants import CONSTANTS


def edges(count: int) -> Int64:
    """Borders ``[K + 1]`` of windows of iterations 0 ... count - 1.

    Routers that have just begun change within a few iterations; later windows are
    longer, up to a limit.
    """
    borders, width = [0], float(CONSTANTS.first_window)
    while borders[-1] < count:
        step = round(min(width, CONSTANTS.longest_window))
        borders.append(min(count, borders[-1] + step))
        width *= CONSTANTS.window_growth
    if len(borders) > 2 and borders[-1] - borders[-2] < CONSTANTS.first_window:
        borders.pop(-2)
    return np.array(borders)


def centers(borders: Int64) -> Float64:
    """Middle iteration of each window."""
    return np.asarray((borders[:-1] + borders[1:] - 1) / 2, np.float64)


def interpolated(knots: Float64, values: Float64, when: Float64 | float) -> Float64:
    """Values ``[K, ...]`` of ascending knots ``[K]`` at iterations ``[...]``.

    Linear between knots, constant before the first and past the last; the result has
    the axes of ``when``, then those of a value.
    """
    place = np.asarray(np.interp(when, knots, np.arange(len(knots))))
    left = np.minimum(place.astype(int), max(len(knots) - 2, 0))
    right = np.minimum(left + 1, len(knots) - 1)
    share = np.where(right > left, place - left, 0.0)
    share = share.reshape(*share.shape, *[1] * (values.ndim - 1))
    return np.asarray((1 - share) * values[left] + share * values[right])
