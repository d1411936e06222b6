"""Closed forms under a balanced router: entropy, Gini, CV, sparsity."""

from __future__ import annotations

from math import comb

import numpy as np
from scipy.special import gammaln

from moetraffic.arrays import Float64, Int64


def mean_entropy(tokens: int, experts: int, k: int, sources: int) -> float:
    """Compute the exact mean entropy of W x E binomial(N, k/E) counts, bits.

    ``tokens``, ``experts``, ``k``, ``sources``: N > 0 tokens per source, E, distinct
    experts per token, and W.
    """
    count = _likely(tokens, k / experts)
    share = count / (tokens * k * sources)
    probability = _binomial(count, tokens, k / experts)
    return float(-experts * sources * (probability * share * np.log2(share)).sum())


def mean_gini(tokens: int, experts: int, k: int, sources: int) -> float:
    """Compute the exact mean Gini coefficient of W x E counts.

    It is the mean absolute difference of two cells over twice the mean cell.  With each
    token, the difference of two cells of one row changes by +1 or -1 with total
    probability ``2k(E-k)/(E(E-1))``, that of cells of two rows with ``2 k/E (1 -
    k/E)``.
    """
    p = k / experts
    within = sources * experts * (experts - 1)
    between = sources * (sources - 1) * experts**2
    total = 0.0
    if within:
        step = 2 * p * (experts - k) / (experts - 1)
        total += within * _mean_distance(tokens, step)
    if between:
        total += between * _mean_distance(tokens, 2 * p * (1 - p))
    return total / (2 * (sources * experts) ** 2 * tokens * p)


def std_cv_squared(
    tokens: int, experts: int, k: int, sources: int, *, held: int = 1
) -> float:
    r"""Compute the exact standard deviation of CV^2 of W x E/h counts.

    The squares of a row add up to those of its tokens, and twice the scalar product of
    the copies of two tokens, of all pairs.  These products have the variance
    :math:`\sigma^4 C^2 / (C - 1)`, with C cells and the variance :math:`\sigma^2` of
    a token's copies in one, and those of any two pairs are uncorrelated.

    ``held``: Experts h of a cell.
    """
    cells = experts // held
    share = 1 / cells
    spread = k * share * (1 - share) * (experts - k) / max(experts - 1, 1)
    row = 2 * tokens * (tokens - 1) * (spread * cells) ** 2 / max(cells - 1, 1)
    row += tokens * _variance_of_squares(experts, k, held)
    return float(cells * np.sqrt(row / sources)) / (tokens * k) ** 2


def _variance_of_squares(experts: int, k: int, held: int) -> float:
    """Compute the variance of the sum over cells of a token's squared copies.

    It is k and twice the pairs of copies in one cell.
    """
    if k < 2 or held < 2:
        return 0.0
    others = held - 1
    one = others / (experts - 1)
    # two pairs that share a copy, and two that share none: in the same cell, or not
    three = one * (held - 2) / max(experts - 2, 1)
    same, apart = (held - 2) * (held - 3), (experts - held) * others
    four = one * (same + apart) / max((experts - 2) * (experts - 3), 1)
    pairs, touching = comb(k, 2), k * (k - 1) * (k - 2)
    variance = pairs * one + touching * three
    variance += (pairs * (pairs - 1) - touching) * four - (pairs * one) ** 2
    return 4 * max(variance, 0.0)


def _mean_distance(steps: int, moving: float) -> float:
    """Compute the mean distance from the origin of a lazy symmetric random walk.

    After 2j - 1 or 2j moves the mean distance is ``2j C(2j, j) / 4^j``; the moves are
    binomial.
    """
    moving = min(moving, 1.0)  # rounding may exceed 1
    moves = _likely(steps, moving)
    half = (moves + 1) // 2
    log_central = gammaln(2 * half + 1) - 2 * gammaln(half + 1) - half * np.log(4)
    probability = _binomial(moves, steps, moving)
    return float((probability * 2 * half * np.exp(log_central)).sum())


def _binomial(outcomes: Int64, trials: int, probability: float) -> Float64:
    """Return the probability of each binomial outcome.

    From logarithms of ratios of neighbors, whose rounding errors do not grow with the
    number of trials as those of log-gamma functions do.
    """
    if not 0 < probability < 1:
        return np.asarray(outcomes == trials * probability, np.float64)
    # the outcome 0 has no part in the sums, but in the total
    least = int(outcomes[0]) if outcomes[0] > 1 else 0
    n = np.arange(least, int(outcomes[-1]), dtype=np.float64)
    step = np.log((trials - n) / (n + 1)) + np.log(probability / (1 - probability))
    log_ratio = np.concatenate(([0.0], np.cumsum(step)))
    weight = np.exp(log_ratio - log_ratio.max())
    weight /= weight.sum()
    return np.asarray(weight[outcomes - least], np.float64)


def _likely(trials: int, probability: float) -> Int64:
    """List positive binomial outcomes, without tails of total weight below 1e-30."""
    reach = 12 * float(np.sqrt(trials * probability * (1 - probability))) + 50
    low = max(1, int(trials * probability - reach))
    high = min(trials, int(trials * probability + reach) + 1)
    return np.arange(low, high + 1)
