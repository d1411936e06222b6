r"""Distances of two runs, and those of two halves of one run: noise.

============  ==========================================================================
share         total variation of the mean shares, :math:`\frac12 \sum |p - q|`
amount        difference of the mean amounts of an iteration, over the first
duration      difference of the median transfer times of all-to-alls, over the first
a measure     Wasserstein-1 distance of its values over the iterations
============  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from math import nan
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64

from .claims import LEAST
from .intervals import LEVEL
from .measures import means_of_known, ratio, total_variation
from .rows import Rows

BLOCKS = 8
"""Blocks of a run, whose halves are compared."""

SHARES = {
    "expert_load": "load",
    "demand": "demand_cells",
    "sent": "sent",
    "received": "received",
    "wire": "pairs",
}
"""Arrays of rows whose shares are compared, by subject."""

AMOUNTS = {"demand": "load", "wire": "sent"}
"""Arrays of rows whose sums are compared, by subject."""

MEASURES = ("entropy", "max_mean", "cv", "gini")
"""Measures of matrices that are compared."""


def share(x: Float64, y: Float64) -> float:
    """Total variation distance of the mean shares of values ``[T, C]``."""
    return float(total_variation(x.mean(axis=0), y.mean(axis=0)))


def amount(x: Float64, y: Float64) -> float:
    """Absolute difference of two means over the first.

    Examples
    --------
    >>> amount(np.array([4.0]), np.array([3.0]))
    0.25
    """
    base = float(x.mean())
    return float(ratio(abs(float(y.mean()) - base), base))


def duration(x: Float64, y: Float64) -> float:
    """Absolute difference of two medians over the first."""
    return amount(np.median(x, keepdims=True), np.median(y, keepdims=True))


def mean(x: Float64, y: Float64) -> float:
    """Absolute difference of the means of finite values."""
    return abs(float(means_of_known(x)) - float(means_of_known(y)))


def wasserstein(x: Float64, y: Float64) -> float:
    """Wasserstein-1 distance of the finite values of two samples; NaN without any.

    Examples
    --------
    >>> wasserstein(np.array([0.0, 1.0]), np.array([1.0, 2.0]))
    1.0
    """
    from scipy.stats import wasserstein_distance

    p, q = (values[np.isfinite(values)] for values in (x, y))
    return float(wasserstein_distance(p, q)) if len(p) and len(q) else nan


DISTANCES = {"share": share, "amount": amount, "duration": duration}
"""Distances by what is compared; those of measures are :func:`wasserstein`."""


def noise(
    x: Float64, y: Float64, distance: Callable[[Float64, Float64], float]
) -> float:
    """Compute the 95% quantile of a distance between halves of the blocks of one run.

    NaN if a run has fewer than LEAST observations.
    """
    if min(len(x), len(y)) < LEAST:
        return nan
    apart = []
    for values in (x, y):
        blocks = np.array_split(values, BLOCKS)
        if distance in (share, amount, mean):
            blocks = [block.mean(axis=0, keepdims=True) for block in blocks]
        for half in combinations(range(1, BLOCKS), BLOCKS // 2):
            rest = [number for number in range(BLOCKS) if number not in half]
            one, other = (
                np.concatenate([blocks[number] for number in numbers])
                for numbers in (half, rest)
            )
            apart.append(distance(one, other))
    return float(np.nanquantile(apart, LEVEL))


def distance_rows(
    place: Mapping[str, int], x: Rows, y: Rows
) -> Iterator[dict[str, Any]]:
    """Compute the distances of shares, amounts and measures of an exchange."""
    for names, what in ((SHARES, "share"), (AMOUNTS, "amount")):
        for subject, name in names.items():
            one, other = getattr(x, name), getattr(y, name)
            if one is None or other is None:
                continue
            if what == "amount":
                one, other = (
                    values.sum(axis=1, keepdims=True) for values in (one, other)
                )
            if one.shape[1] == other.shape[1]:
                yield distance_row(place, subject, what, one, other)
    for subject in ("demand", "wire"):
        one, other = getattr(x, subject), getattr(y, subject)
        for measure in MEASURES:
            if measure in one and measure in other:
                values = one[measure], other[measure]
                yield distance_row(place, subject, measure, *values)


def distance_row(
    place: Mapping[str, int],
    subject: str,
    measure: str,
    x: npt.ArrayLike,
    y: npt.ArrayLike,
) -> dict[str, Any]:
    """Compute a distance of values ``[T]``, or of shares or amounts ``[T, C]``."""
    distance = DISTANCES.get(measure, wasserstein)
    summary = np.median if measure == "duration" else np.mean
    one, other = (np.asarray(values, np.float64) for values in (x, y))
    whole = measure == "share"  # no single number
    return {
        **place,
        "subject": subject,
        "measure": measure,
        "first": nan if whole else float(summary(one)),
        "second": nan if whole else float(summary(other)),
        "distance": distance(one, other),
        "noise": noise(one, other, distance),
        "observations": min(len(one), len(other)),
    }
