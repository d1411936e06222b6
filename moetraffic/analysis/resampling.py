"""Moving-block bootstrap of autocorrelated series.

A block of consecutive iterations begins anywhere and goes on at the beginning, so that
every iteration is drawn equally often.

References
----------
H. R. Kuensch, "The jackknife and the bootstrap for general stationary observations",
Annals of Statistics 17 (1989) 1217: moving blocks.
D. N. Politis, J. P. Romano, "A circular block-resampling procedure for stationary
data" (1992): going on at the beginning.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

DRAWS = 400
"""Resamples behind an interval."""

LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A figure and its interval of LEVEL; NaN where it is not known."""

    value: float
    low: float
    high: float


UNTOLD = Interval(value=float("nan"), low=float("nan"), high=float("nan"))


def block_length(total: int) -> int:
    """Consecutive iterations that are drawn together: ``2 T^(1/3)``, at most T."""
    return min(total, 2 * int(np.ceil(total ** (1 / 3))))


def block_means(
    x: Float64, wanted: int, rng: np.random.Generator, *, long: int | None = None
) -> list[Float64]:
    """Means over resamples of ``wanted`` iterations.

    Parameters
    ----------
    x
        ``[T, C]``, time first.
    wanted
        Iterations of a resample, rounded up to whole blocks.
    rng
        Draws the blocks.
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
        beyond = np.maximum(last - total, 0)  # a block goes on at the beginning
        sums = passed[np.minimum(last, total)] - passed[first] + passed[beyond]
        means.append(sums.sum(axis=0) / (each * long))
    return means


def block_values(x: Float64, wanted: int, rng: np.random.Generator) -> list[Float64]:
    """Resamples of ``wanted`` of the values ``[T]``, DRAWS of ``[wanted]``."""
    total = len(x)
    long = min(block_length(total), wanted)
    first = rng.integers(0, total, (DRAWS, -(-wanted // long)))
    index = (first[:, :, None] + np.arange(long)).reshape(DRAWS, -1)[:, :wanted] % total
    return list(x[index])


def ratio(below: npt.ArrayLike, above: npt.ArrayLike, *, seed: int = 0) -> Interval:
    """Ratio of two sums over the same iterations, with a bootstrap interval.

    The two are drawn together, so that what both share cancels.

    Parameters
    ----------
    below, above
        ``[T]`` amounts, an iteration each.
    seed
        Of the resamples.

    Returns
    -------
    Interval
        Ends are the percentile bootstrap's; NaN with fewer than three iterations, whose
        scatter tells nothing.

    Examples
    --------
    >>> ratio([1.0, 3.0, 2.0, 2.0], [2.0, 6.0, 4.0, 4.0])
    Interval(value=2.0, low=2.0, high=2.0)
    """
    pairs = np.stack([np.asarray(below, np.float64), np.asarray(above, np.float64)], 1)
    total = pairs.sum(axis=0)
    if not (len(pairs) and total[0] > 0):
        return UNTOLD
    value = float(total[1] / total[0])
    if len(pairs) < 3:
        return Interval(value=value, low=float("nan"), high=float("nan"))
    rng, total_steps = np.random.default_rng(seed), len(pairs)
    # of few iterations at least four blocks: one block is the run itself
    long = max(1, min(block_length(total_steps), total_steps // 4))
    means = np.array(block_means(pairs, total_steps, rng, long=long))
    drawn = means[:, 1][means[:, 0] > 0] / means[:, 0][means[:, 0] > 0]
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return Interval(value=value, low=low, high=high)
