"""Confidence intervals by block bootstrap of autocorrelated series.

A block of consecutive iterations starts anywhere and wraps around at the end, so that
every iteration is drawn with equal probability.

References
----------
H. R. Kuensch, "The jackknife and the bootstrap for general stationary observations",
Annals of Statistics 17 (1989) 1217: moving blocks.
D. N. Politis, J. P. Romano, "A circular block-resampling procedure for stationary
data" (1992): wrap-around.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64

DRAWS = 400
"""Number of resamples per interval."""

LEVEL = 0.95

WIDEST = 3.0
"""Ratio of an interval's ends above which its value is not determined."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value and its confidence interval of LEVEL; NaN where unknown."""

    value: float
    low: float
    high: float


UNKNOWN = Interval(value=float("nan"), low=float("nan"), high=float("nan"))


def block_length(total: int) -> int:
    """Compute the iterations of a block: ``2 T^(1/3)``, at most a quarter of T."""
    return max(1, min(2 * int(np.ceil(total ** (1 / 3))), total // 4))


def block_means(x: Float64, rng: np.random.Generator) -> Float64:
    """Compute the means of moving-block resamples of a run.

    ``x``: ``[T, C]``, time first.  A resample has T iterations, rounded up to whole
    blocks of :func:`block_length`.

    Returns
    -------
    ndarray
        ``[DRAWS, C]`` float64.
    """
    total, length = len(x), block_length(len(x))
    around = np.concatenate((np.zeros_like(x[:1]), x, x[: length - 1]))
    passed = np.cumsum(around, axis=0)
    of_block = (passed[length:] - passed[:-length]) / length  # by its first iteration
    first = rng.integers(0, total, (DRAWS, -(-total // length)))
    return np.asarray(of_block[first].mean(axis=1), np.float64)


def percentiles(value: float, drawn: Float64) -> Interval:
    """Return a value with the percentile interval of its resamples ``[DRAWS]``."""
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return Interval(value=value, low=low, high=high)


def ratio(below: npt.ArrayLike, above: npt.ArrayLike, *, seed: int = 0) -> Interval:
    """Compute the ratio of two sums over the same iterations with its interval.

    Both series are resampled together, so that common variation cancels.

    ``below``, ``above``: ``[T]`` amounts per iteration.

    Returns
    -------
    Interval
        Without ends of fewer than three iterations; unknown if ``below`` is zero.

    Examples
    --------
    >>> ratio([1.0, 3.0, 2.0, 2.0], [2.0, 6.0, 4.0, 4.0])
    Interval(value=2.0, low=2.0, high=2.0)
    """
    pairs = np.stack([np.asarray(below, np.float64), np.asarray(above, np.float64)], 1)
    total = pairs.sum(axis=0)
    if not (len(pairs) and total[0] > 0):
        return UNKNOWN
    value = float(total[1] / total[0])
    if len(pairs) < 3:
        return Interval(value=value, low=float("nan"), high=float("nan"))
    means = block_means(pairs, np.random.default_rng(seed))
    means = means[means[:, 0] > 0]
    return percentiles(value, means[:, 1] / means[:, 0])


def difference(first: Float64, second: Float64, *, seed: int = 0) -> Interval:
    """Compute the difference of two means, second minus first, with its interval.

    ``first``, ``second``: ``[T]`` and ``[U]`` values, resampled independently.

    Examples
    --------
    >>> difference(np.ones(12), np.full(12, 3.0))
    Interval(value=2.0, low=2.0, high=2.0)
    """
    if not (len(first) and len(second)):
        return UNKNOWN
    rng = np.random.default_rng(seed)
    one, other = (block_means(values[:, None], rng)[:, 0] for values in (first, second))
    return percentiles(float(second.mean() - first.mean()), other - one)
