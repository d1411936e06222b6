"""Moving-block bootstrap of autocorrelated series.

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

    @property
    def determined(self) -> bool:
        """Whether the ends differ by at most a factor of WIDEST, or are unknown."""
        return not self.high > WIDEST * self.low


UNKNOWN = Interval(value=float("nan"), low=float("nan"), high=float("nan"))


def block_length(total: int) -> int:
    """Compute the bootstrap block length in iterations: ``2 T^(1/3)``, at most T."""
    return min(total, 2 * int(np.ceil(total ** (1 / 3))))


def block_means(
    x: Float64, wanted: int, rng: np.random.Generator, *, long: int | None = None
) -> list[Float64]:
    """Compute the means of moving-block resamples of ``wanted`` iterations.

    Parameters
    ----------
    x
        ``[T, C]``, time first.
    wanted
        Iterations per resample, rounded up to whole blocks.
    long
        Iterations of a block; None: :func:`block_length`.

    Returns
    -------
    list of ndarray
        DRAWS of ``[C]`` float64.
    """
    total = len(x)
    long = min(long or block_length(total), wanted)
    passed = np.concatenate((np.zeros_like(x[:1]), np.cumsum(x, axis=0)))
    each = -(-wanted // long)
    means = []
    for _ in range(DRAWS):
        first = rng.integers(0, total, each)
        last = first + long
        beyond = np.maximum(last - total, 0)  # a block wraps around
        sums = passed[np.minimum(last, total)] - passed[first] + passed[beyond]
        means.append(sums.sum(axis=0) / (each * long))
    return means


def block_values(x: Float64, wanted: int, rng: np.random.Generator) -> list[Float64]:
    """Draw DRAWS moving-block resamples ``[wanted]`` of the values ``[T]``."""
    total = len(x)
    long = min(block_length(total), wanted)
    first = rng.integers(0, total, (DRAWS, -(-wanted // long)))
    index = (first[:, :, None] + np.arange(long)).reshape(DRAWS, -1)[:, :wanted] % total
    return list(x[index])


def divisions(
    x: Float64, y: Float64, rng: np.random.Generator, *, means: bool
) -> list[tuple[Float64, Float64]]:
    """Divide the blocks of two runs at random into two runs, DRAWS times.

    Blocks are of the shorter run's :func:`block_length`, at most a quarter of it: what
    differs between the two parts is chance if both runs are of one stationary process
    whose autocorrelation ends within a block.

    ``x``, ``y``: ``[T, C]`` and ``[U, C]``; ``means``: return the means ``[C]`` of the
    two parts instead of their values ``[about T, C]`` and ``[about U, C]``.
    """
    shorter = min(len(x), len(y))
    long = max(1, min(block_length(shorter), shorter // 4))
    first = len(x) // long
    parts = [*np.array_split(x, first), *np.array_split(y, len(y) // long)]
    orders = [rng.permutation(len(parts)) for _ in range(DRAWS)]
    halves = [(order[:first], order[first:]) for order in orders]
    if not means:
        return [
            (
                np.concatenate([parts[i] for i in p]),
                np.concatenate([parts[i] for i in q]),
            )
            for p, q in halves
        ]
    sums = np.array([part.sum(axis=0) for part in parts])
    lengths = np.array([len(part) for part in parts])
    return [
        (sums[p].sum(axis=0) / lengths[p].sum(), sums[q].sum(axis=0) / lengths[q].sum())
        for p, q in halves
    ]


def ratio(below: npt.ArrayLike, above: npt.ArrayLike, *, seed: int = 0) -> Interval:
    """Compute the ratio of two sums over the same iterations with a bootstrap interval.

    Both series are resampled jointly, so that common variation cancels.

    ``below``, ``above``: ``[T]`` amounts per iteration.

    Returns
    -------
    Interval
        Percentile bootstrap interval; NaN with fewer than three iterations.

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
    rng, total_steps = np.random.default_rng(seed), len(pairs)
    # at least four blocks: a single block would be the run itself
    long = max(1, min(block_length(total_steps), total_steps // 4))
    means = np.array(block_means(pairs, total_steps, rng, long=long))
    drawn = means[:, 1][means[:, 0] > 0] / means[:, 0][means[:, 0] > 0]
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return Interval(value=value, low=low, high=high)
