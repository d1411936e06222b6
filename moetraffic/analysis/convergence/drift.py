r"""Expected drift of traffic shares due to sampling noise.

Drift is a total variation distance, :math:`\frac12 \sum_c |p_c - q_c|`: the share of
the traffic to redirect to make two sets of shares equal, 0 to 1.  Shares of N tokens
differ from their mean by sampling noise alone; these are the noise floors.

Values are token copies ``[T, C]``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, ive

from moetraffic.analysis.skew.measures import shares
from moetraffic.arrays import Float64

_NUMBERS = 2048
_REACH = 4  # steps to either side over which shares are averaged


def distance_floor(
    copies: npt.ArrayLike, reference: npt.ArrayLike, *, experts_per_token: int = 1
) -> Float64:
    r"""Compute the expected distance of sampled shares from their probabilities.

    A column's copies are Binomial(N, kp) of N tokens with k experts each; the mean
    absolute deviation of a binomial count is, exactly, :math:`2 m \binom{N}{m} p^m
    (1-p)^{N-m+1}` with :math:`m = \lfloor Np \rfloor + 1` (De Moivre).  Half the sum
    over the columns is the mean of the total variation, whatever the dependence of the
    columns.

    Parameters
    ----------
    copies
        ``[T]`` token copies of each step; fractions are rounded to tokens.
    reference
        ``[C]`` probabilities, any scale.
    experts_per_token
        k >= 1, distinct experts of a token.

    Returns
    -------
    float64 array ``[T]``
        NaN without copies.

    References
    ----------
    P. Diaconis and S. Zabell, Statist. Sci. 6 (1991) 284: De Moivre's formula.

    Examples
    --------
    >>> distance_floor([2], [1, 1]).round(6).tolist()  # 1/4 at two ends, 0 between
    [0.25]
    """
    k = experts_per_token
    p = shares(reference)
    tokens = np.rint(np.asarray(copies, dtype=np.float64) / k)
    found: Float64 = np.full(tokens.shape, np.nan)
    usable = np.isfinite(tokens) & (tokens >= 1) & bool(np.isfinite(p).all())
    values, where = np.unique(tokens[usable], return_inverse=True)
    if len(values) > _NUMBERS:  # the floor is smooth in the copies: interpolate
        values = np.unique(np.rint(np.geomspace(values[0], values[-1], _NUMBERS)))
        where = np.searchsorted(values, tokens[usable]).clip(0, len(values) - 1)
    each = np.array([_mean_deviation(n, np.minimum(k * p, 1.0)) for n in values])
    found[usable] = (each / (values * k) / 2)[where] if len(values) else 0.0
    return found


def _mean_deviation(n: float, p: Float64) -> float:
    """Compute the sum over p of the mean deviation E|X - np| of binomial counts."""
    inside = p[(p > 0) & (p < 1)]
    m = np.minimum(np.floor(n * inside) + 1, n)
    logs = gammaln(n + 1) - gammaln(m + 1) - gammaln(n - m + 1)
    logs = logs + m * np.log(inside) + (n - m + 1) * np.log1p(-inside)
    return float((2 * m * np.exp(logs)).sum())


def step_change_floor(values: npt.ArrayLike, *, experts_per_token: int = 1) -> Float64:
    r"""Compute the expected step-to-step change due to sampling noise alone.

    Two counts of variance v each differ by :math:`2 v e^{-2v} (I_0(2v) + I_1(2v))` in
    the mean if they are Poisson; here v is :math:`N k p (1 - k p)`, so that it holds
    for few copies and, as :math:`\sqrt{4 v / \pi}`, for many.  p is the mean share of
    the nine steps about each step, within which the router is taken to stay.

    Parameters
    ----------
    values
        ``[T, C]`` token copies, step first.
    experts_per_token
        k >= 1, distinct experts of a token.

    Returns
    -------
    float64 array ``[T]``
        NaN where this or the previous step has no copies.

    Examples
    --------
    >>> drawn = np.random.default_rng(0).multinomial(900, [0.5, 0.3, 0.2], 2000)
    >>> from moetraffic.analysis.distances import total_variation
    >>> seen = total_variation(drawn[1:], drawn[:-1]).mean()
    >>> bool(abs(seen / step_change_floor(drawn)[1:].mean() - 1) < 0.05)
    True
    """
    k = experts_per_token
    x = np.asarray(values, dtype=np.float64)
    copies = x.sum(axis=1)
    # Step 1: the mean shares of the known steps about each step.
    share = shares(x)
    known = np.isfinite(share.sum(axis=1))
    passed = np.zeros((len(x) + 1, x.shape[1]))
    np.cumsum(np.where(known[:, None], share, 0.0), axis=0, out=passed[1:])
    count = np.concatenate(([0], np.cumsum(known)))
    steps = np.arange(1, len(x))
    low = np.maximum(steps - 1 - _REACH, 0)
    high = np.minimum(steps + _REACH, len(x) - 1) + 1
    held = np.maximum(count[high] - count[low], 1)
    p = np.clip((passed[high] - passed[low]) / held[:, None], 0.0, 1 / k)
    # Step 2: the mean difference of the counts of a step and the one before.
    now, before = copies[1:], copies[:-1]
    usable = np.isfinite(now) & np.isfinite(before) & (np.minimum(now, before) > 0)
    # the harmonic mean of unequal numbers gives the variance of the difference
    both = 2 / (1 / now[usable] + 1 / before[usable])
    moved = _mean_difference(both[:, None] * p[usable] * (1 - k * p[usable]))
    found: Float64 = np.full(len(x), np.nan)
    found[steps[usable]] = moved.sum(axis=1) / both / 2
    return found


def _mean_difference(v: Float64) -> Float64:
    """Approximate E|X - Y| of two Poisson counts of mean v to 5 digits."""
    root = np.linspace(0.0, 10.0, 4096)
    z = 2 * root**2
    exact = z * (ive(0, z) + ive(1, z))
    few: Float64 = np.interp(np.sqrt(v), root, exact)
    with_many = np.sqrt(4 * v / np.pi) * (1 - 1 / (16 * np.maximum(v, 1.0)))
    return np.where(v < 100, few, with_many)
