r"""Shares of experts from log-weights, and whole token counts of given shares.

For k = 1 shares are the softmax of the log-weights x.  For k > 1 the probability that a
token selects expert e is :math:`\pi_e = \sigma(x_e + \mu)`, with :math:`\mu` such that
:math:`\sum_e \pi_e = k`: each probability stays below 1, as k distinct experts demand.

Counts are rounded systematically: with :math:`C_e` the cumulative sum of N shares and
u uniform in [0, 1), :math:`n_e = \lfloor C_e + u \rfloor - \lfloor C_{e-1} + u
\rfloor`.  The mean of :math:`n_e` is N times the share, a row sums to k N, and no cell
exceeds N, so k distinct experts for each of N tokens exist (Gale and Ryser).  The noise
of counting is not drawn here: the dispersion of the rows includes it, because layers
route the same tokens and share this noise.

References
----------
W. G. Madow, Ann. Math. Stat. 20 (1949) 333: systematic sampling.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

from moetraffic.arrays import Float64, Floating, Int32

LEAST_SHARE = 1e-9
"""Share of an expert, below which its variance does not matter."""

MOST_SHARE = 1 - 1e-5
"""Largest probability that a token selects an expert."""

MOST_STEPS, CLOSE = 60, 0.05
"""Newton steps for the sum of probabilities, of which three are usual; and the step
below which the last one is linear in the probabilities."""


def probabilities(x: Floating, k: int) -> Floating:
    """Probability that a token selects each expert, ``[..., E]``; rows sum to k.

    Of log-weights ``[..., E]``, known up to a constant a row, and of their type.
    """
    experts = x.shape[-1]
    if k >= experts:
        return np.ones_like(x)
    if k == 1:
        out: Floating = np.exp(x - x.max(axis=-1, keepdims=True))
        out /= out.sum(axis=-1, keepdims=True)
        return out
    at = x - np.float32(np.log(experts / k - 1))
    at -= at.mean(axis=-1, keepdims=True)
    for _ in range(MOST_STEPS):
        out = np.exp(-np.clip(at, -40, 40))
        out += 1
        np.divide(x.dtype.type(MOST_SHARE), out, out=out)
        slope = (out * (1 - out)).sum(axis=-1, keepdims=True)
        lacking = k - out.sum(axis=-1, keepdims=True)
        step = lacking / np.maximum(slope, 1e-6)
        if np.abs(step).max() < CLOSE:
            break
        at += np.clip(step, -2, 2)
    out += np.clip(step, -1, 1) * out * (1 - out)
    return np.asarray(out)


def bounded(shares: Floating, k: int) -> Floating:
    """Scale positive rows ``[..., E]`` to the sum k, none above 1, in place."""
    shares *= k / shares.sum(axis=-1, keepdims=True)
    if k == 1:
        return shares
    over = np.flatnonzero(shares.max(axis=-1) > 1)
    while len(over):
        rows = shares[over]
        full = rows >= 1
        left = np.where(full, 0, rows)
        lacking = k - full.sum(axis=-1, keepdims=True)
        left *= lacking / np.maximum(left.sum(axis=-1, keepdims=True), 1e-30)
        rows = np.where(full, 1, left)
        shares[over] = rows
        over = over[rows.max(axis=-1) > 1]
    return shares


def log_weights(shares: Float64, k: int, least: Float64 | float) -> Float64:
    """Log-weights ``[..., E]`` of shares ``[..., E]``, with the mean 0 in each row.

    ``least`` is added to each share: half a token copy keeps the logarithm finite.
    """
    near = shares + least
    near = near * (k / near.sum(axis=-1, keepdims=True))
    if k == 1:
        x = np.log(near)
    else:
        near = np.clip(near, least / 2, 1 - least / 2)
        x = np.log(near / (1 - near))
    return np.asarray(x - x.mean(axis=-1, keepdims=True), np.float64)


def rounded(shares: Floating, copies: int, offset: Floating) -> Int32:
    """Whole counts ``[..., E]`` whose means are given shares, in any unit.

    A row sums to ``copies``; ``offset [...]`` is uniform from 0 to below 1.
    """
    total = np.cumsum(shares, axis=-1, dtype=np.float64)
    total *= copies / total[..., -1:]
    total[..., -1] = copies
    total += np.asarray(offset)[..., None]
    whole = total.astype(np.int32)  # truncates, which is the floor from 0 on
    whole[..., 1:] -= whole[..., :-1].copy()
    return whole


def squared_normal(mean: Float64, variance: Float64) -> tuple[Float64, Float64]:
    """Find the square of a censored normal variable that has given moments.

    Captured rows have more empty cells than lognormal ones of the same moments, and
    fewer than censored normal ones.  Center and scale ``[...]`` of shares of these
    moments, ``[...]`` each, which are ``scale * max(0, center + z)**2``, z standard
    normal.
    """
    near = np.maximum(mean, LEAST_SHARE)
    ratio = np.log(np.maximum(variance, LEAST_SHARE**2) / near**2)
    center = np.interp(ratio, *_CENTERS)
    return center, near / _mean_square(center)


def _mean_square(center: Float64) -> Float64:
    density = np.exp(-(center**2) / 2) / np.sqrt(2 * np.pi)
    return np.asarray((center**2 + 1) * ndtr(center) + center * density)


def _centers() -> tuple[Float64, Float64]:
    """Logarithm of variance over squared mean, ascending, and centers."""
    at = np.r_[np.arange(-5, 8, 0.02), np.geomspace(8, 1e5, 400)]
    density = np.exp(-(at**2) / 2) / np.sqrt(2 * np.pi)
    fourth = (at**4 + 6 * at**2 + 3) * ndtr(at) + (at**3 + 5 * at) * density
    ratio = np.log(fourth / _mean_square(at) ** 2 - 1)
    return ratio[::-1].copy(), at[::-1].copy()


_CENTERS = _centers()
