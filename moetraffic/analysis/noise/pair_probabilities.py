r"""Probability that a token has two experts, if its choices are independent.

Independent choices of k distinct experts with given loads: a token has the set S with
probability proportional to :math:`\prod_{e \in S} w_e` (conditional Bernoulli
distribution, of all with these loads the one of maximum entropy).  On a circle of
complex numbers z, with :math:`a_e = w_e z/(1 + w_e z)` and
:math:`g = z^{-k} \prod_e (1 + w_e z)`, the means of :math:`g`, :math:`g a_i` and
:math:`g a_i a_j` are the normalization and the probabilities of one and of two experts,
exactly from E + 1 points on.

References
----------
S. X. Chen, A. P. Dempster, J. S. Liu, Biometrika 81 (1994) 457.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit

from moetraffic.arrays import Complex128, Float64

MOST_STEPS = 60
CLOSE = 1e-8
"""Maximum number of steps, and error of the loads at which the fit ends."""

RADIUS_STEPS = 2
"""Newton steps for the radius, which is exact at the first weights of a fit."""


def pair_probabilities(loads: npt.ArrayLike, k: int) -> Float64:
    """Compute the probability of each pair of experts under independent choices.

    Parameters
    ----------
    loads
        ``[E]`` probability that a token has each expert; the sum is k.
    k
        Distinct experts per token, 1 to E.

    Returns
    -------
    ndarray
        ``[E, E]``, symmetric, with a zero diagonal; row e adds up to k - 1 times the
        load of e.

    Examples
    --------
    >>> pair_probabilities([0.5, 0.5, 0.5, 0.5], 2)[0].round(6).tolist()
    [0.0, 0.166667, 0.166667, 0.166667]
    """
    given = np.asarray(loads, np.float64)
    found = np.zeros((len(given), len(given)))
    always = given >= 1 - CLOSE
    # an expert that every token has is independent of the others
    found[always] = given
    found[:, always] = found[always].T
    free = np.flatnonzero(~always & (given > 0))
    left = k - int(always.sum())
    if 2 <= left < len(free):
        found[np.ix_(free, free)] = _fitted(given[free], left)
    elif left == len(free):
        found[np.ix_(free, free)] = 1.0
    np.fill_diagonal(found, 0)
    return found


def _fitted(loads: Float64, k: int) -> Float64:
    """Fit weights to loads between 0 and 1, and compute the probabilities of pairs."""
    logits = np.asarray(logit(loads), np.float64)
    for _ in range(MOST_STEPS):
        g, a = _circle(logits, k)
        pairs = np.maximum(((a * g[:, None]).T @ a).real, 0.0)
        np.fill_diagonal(pairs, 0)
        got = pairs.sum(axis=1) / (k - 1)
        if np.abs(got - loads).max() < CLOSE:
            break
        # the derivative of loads by logits is the covariance of a token's experts,
        # which is singular: a common shift of all logits changes nothing
        covariance = pairs - np.outer(got, got)
        np.fill_diagonal(covariance, got * (1 - got))
        step = np.linalg.solve(covariance + covariance.trace() / len(got), loads - got)
        logits = logits + np.clip(step, -3, 3)
    return pairs


def _circle(logits: Float64, k: int) -> tuple[Complex128, Complex128]:
    """Compute g ``[M]``, normalized, and a ``[M, E]`` on a circle.

    With its radius, about k experts are expected: there cancellation is least.
    """
    p = expit(logits)
    for _ in range(RADIUS_STEPS):
        logits = logits - (p.sum() - k) / (p * (1 - p)).sum()
        p = expit(logits)
    angle = 2j * np.pi * np.arange(len(logits) + 1) / (len(logits) + 1)
    z = np.exp(angle)
    below = 1 - p + p * z[:, None]
    g = np.exp(np.log(below).sum(axis=1) - k * angle)
    return g / g.sum(), p * z[:, None] / below
