r"""Draw the counts of a balanced router from normal variates.

A cell of a source holds one expert, or the h experts of a rank.  Of each token it
receives a number of copies with a hypergeometric distribution (h of E experts, k
drawn); the count n of N tokens is the sum of N of these, and the counts of C cells have
correlations -1/(C - 1).  Normal variates z with these correlations are mapped to counts
by :math:`n = F^{-1}(\Phi(z))`, with F the distribution of a count (a Gaussian copula).
Every count has its exact distribution; the sum of a source is k N up to rounding.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb

import numpy as np
from scipy.special import ndtr

from moetraffic.arrays import Float64, Int64, Integer

from .oracle import count_variance

BLOCK = 1 << 15
"""Cells computed at a time, which fit into the cache of a core."""

REACH, BINS = 6.0, 1 << 14
"""Largest normal variate, in standard deviations, and table entries up to there."""

TAIL = 1e-12
"""Probability of the counts left out on each side of a distribution."""

EXACT_COPIES = 1 << 18
"""Copies a cell can have up to which its distribution is computed exactly; of more it
is normal with the same skewness."""


def copies_of_token(experts: int, k: int, held: int) -> Float64:
    """Compute the probabilities that a cell has 0, 1 ... copies of a token.

    ``experts``, ``k``, ``held``: E, distinct experts per token, and experts per cell.

    Examples
    --------
    >>> copies_of_token(4, 2, 2).round(4).tolist()
    [0.1667, 0.6667, 0.1667]
    """
    ways = [
        comb(held, c) * comb(experts - held, k - c) for c in range(min(k, held) + 1)
    ]
    return np.array([way / comb(experts, k) for way in ways])


@lru_cache(maxsize=64)
def count_distribution(
    tokens: int, *, experts: int, k: int, held: int = 1
) -> tuple[Int64, Float64]:
    """Compute the distribution of a cell's count of N tokens.

    Returns
    -------
    tuple of arrays ``[counts]``
        Counts in ascending order, without tails below :data:`TAIL`, and their
        probabilities.

    Examples
    --------
    >>> count, chance = count_distribution(2, experts=2, k=1)
    >>> count.tolist(), chance.round(6).tolist()
    ([0, 1, 2], [0.25, 0.5, 0.25])
    """
    single = copies_of_token(experts, k, held)
    most = tokens * (len(single) - 1)
    if most <= EXACT_COPIES:
        # the sum of N independent copies of a distribution
        transform = np.fft.rfft(single, 2 * most + 2) ** tokens
        chance = np.maximum(np.fft.irfft(transform, 2 * most + 2)[: most + 1], 0.0)
        below = np.cumsum(chance)
        low, high = np.searchsorted(below, (TAIL, min(1 - TAIL, below[-1])))
        return np.arange(low, high + 1, dtype=np.int64), chance[low : high + 1]
    apart = np.arange(len(single)) - k * held / experts
    mean = tokens * k * held / experts
    sigma = np.sqrt(count_variance(mean, tokens, k=k, experts=experts, held=held))
    skewness = tokens * float(single @ apart**3) / sigma**3
    edges = np.linspace(-REACH, REACH, BINS + 1)
    z = (edges[1:] + edges[:-1]) / 2
    counts = mean + sigma * (z + skewness / 6 * (z**2 - 1))
    count, at = np.unique(np.rint(counts).astype(np.int64), return_inverse=True)
    return count, np.asarray(np.bincount(at, np.diff(ndtr(edges))), np.float64)


@lru_cache(maxsize=64)
def _quantiles(tokens: int, experts: int, k: int, held: int) -> Integer:
    """Tabulate the count at normal variates from -REACH to REACH, ``[BINS]``."""
    z = ((np.arange(BINS) + 0.5) / BINS * 2 - 1) * REACH
    count, chance = count_distribution(tokens, experts=experts, k=k, held=held)
    at = np.searchsorted(np.cumsum(chance), ndtr(z))
    found = count[np.minimum(at, len(count) - 1)]
    return found.astype(np.int32) if found[-1] < 2**31 else found


def normal_counts(
    shape: tuple[int, int, int],
    *,
    tokens: int,
    k: int,
    held: int = 1,
    seed: int,
) -> Integer:
    """Draw counts of a balanced router, approximately where they are small.

    Parameters
    ----------
    shape
        Draws, sources W and cells C; the router has ``C * held`` experts.
    tokens
        N, of each source.
    k, held
        Distinct experts per token, and experts per cell.

    Returns
    -------
    int32 array of ``shape``, int64 of large counts
        The sum of a source is k N up to rounding.
    """
    cells = shape[-1]
    table = _quantiles(tokens, cells * held, k, held)
    out = np.empty((shape[0] * shape[1], cells), table.dtype)
    rng = np.random.default_rng(seed)
    rows = max(1, BLOCK // cells)
    # z - mean(z) has the variance 1 - 1 / C
    scale = np.float32(np.sqrt(cells / (cells - 1)) * BINS / (2 * REACH))
    for first in range(0, len(out), rows):
        z = rng.standard_normal((min(rows, len(out) - first), cells), np.float32)
        z -= z.mean(axis=-1, keepdims=True)
        z *= scale
        z += BINS // 2
        entry = z.astype(np.int32)
        np.take(table, entry, mode="clip", out=out[first : first + rows])
    return out.reshape(shape)
