"""Windows of a capture, whose length grows from its beginning."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .constants import CONSTANTS

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


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


def widened(borders: Int64, least: int) -> list[slice]:
    """Windows of at least so many iterations around the same middles."""
    found = []
    count = int(borders[-1])
    for first, last in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
        if last - first < least:
            first = max(0, (first + last) // 2 - least // 2)
            last = min(count, first + least)
        found.append(slice(first, last))
    return found


def interpolated(knots: Float64, values: Float64, count: int) -> Float64:
    """Values ``[K, ...]`` at iterations 0 ... count - 1, linear between knots."""
    at = np.arange(count, dtype=np.float64)
    if len(knots) == 1:
        return np.repeat(values, count, axis=0)
    left = np.clip(np.searchsorted(knots, at) - 1, 0, len(knots) - 2)
    share = np.clip((at - knots[left]) / (knots[left + 1] - knots[left]), 0, 1)
    share = share.reshape(-1, *[1] * (values.ndim - 1))
    return np.asarray((1 - share) * values[left] + share * values[left + 1])
