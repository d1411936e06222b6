r"""Inclusion probabilities of k distinct experts per token, and sampled counts.

A token takes the set S of k experts with probability proportional to
:math:`\prod_{e \in S} w_e` (conditional Poisson sampling: of all ways to draw k
distinct experts with given inclusion probabilities the one of most entropy).  With
:math:`Z_j(e)` the elementary symmetric polynomial of degree j of the weights of the
experts from e on, who has j left to choose at e takes it with probability
:math:`q_{e,j} = w_e Z_{j-1}(e+1)/Z_j(e)`.  N tokens go through the experts together:
of those with j left a binomial number takes e.  So counts of N tokens cost k E
binomials, whatever N is, and are distributed exactly as N single draws.

References
----------
S. X. Chen, A. P. Dempster, J. S. Liu, Biometrika 81 (1994) 457: weights from inclusion
probabilities, and the sequential draw (procedure 2 there).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

MOST_STEPS = 60
"""Of the iteration for weights; a handful is usual."""

CLOSE = 1e-8
"""Error of inclusion probabilities at which weights are good enough."""

MARGIN = 1e-6
"""Inclusion probabilities stay so far below 1: no weight would make it."""


def tails(weights: Float64, k: int) -> Float64:
    """Elementary symmetric polynomials of the weights from each expert on.

    Parameters
    ----------
    weights
        ``[..., E]``, positive; each row adds up to one, which keeps products small.
    k
        Largest degree.

    Returns
    -------
    float64 array
        ``[E + 1, k + 1, ...]``: degree j of the experts e, e + 1 ... E - 1.
    """
    experts = weights.shape[-1]
    out = np.zeros((experts + 1, k + 1, *weights.shape[:-1]))
    out[:, 0] = 1.0
    for e in range(experts - 1, -1, -1):
        out[e, 1:] = out[e + 1, 1:] + weights[..., e] * out[e + 1, :-1]
    return out


def inclusion(weights: Float64, k: int) -> Float64:
    """Probability that a token holds each expert, ``[..., E]``; rows sum to k.

    Examples
    --------
    >>> inclusion(np.array([0.5, 0.25, 0.25]), 2).round(6).tolist()
    [0.8, 0.6, 0.6]
    """
    weights = weights / weights.sum(axis=-1, keepdims=True)
    if k == 1:
        return weights
    return np.asarray(weights * _ratio(weights, k), np.float64)


def weights_of(probabilities: Float64, k: int) -> Float64:
    """Weights under which tokens hold experts with these probabilities.

    Parameters
    ----------
    probabilities
        ``[..., E]``, each row with the sum k; they are kept between 0 and 1.
    k
        Experts of a token.

    Returns
    -------
    float64 array
        ``[..., E]``, each row with the sum 1.

    Examples
    --------
    >>> weights_of(np.array([0.8, 0.6, 0.6]), 2).round(6).tolist()
    [0.5, 0.25, 0.25]
    """
    if k == 1:
        told = np.maximum(probabilities, 1e-12)
        return np.asarray(told / told.sum(axis=-1, keepdims=True), np.float64)
    want = capped(probabilities, k)
    if k >= want.shape[-1]:
        return np.full_like(want, 1 / want.shape[-1])
    odds = want / (1 - want)
    weights = odds / odds.sum(axis=-1, keepdims=True)
    for _ in range(MOST_STEPS):
        got = weights * _ratio(weights, k)
        # Newton's step by the logarithms of the odds: near 1 a probability hardly
        # answers to its weight
        near = np.clip(got, 1e-12, 1 - 1e-12)
        left = np.log(odds) - np.log(near / (1 - near))
        share = spread(near)
        share = share / share.sum(axis=-1, keepdims=True)
        weights = weights * np.exp(np.clip(left * (1 - share), -3, 3))
        weights /= weights.sum(axis=-1, keepdims=True)
        if np.abs(got - want).max() < CLOSE:
            break
    return np.asarray(weights, np.float64)


def capped(probabilities: Float64, k: int) -> Float64:
    """The nearest inclusion probabilities below 1: what is above goes to the others.

    Parameters
    ----------
    probabilities
        ``[..., E]``, not negative; rows are scaled to the sum k.
    """
    experts = probabilities.shape[-1]
    out: Float64 = np.maximum(probabilities, 1e-12)
    out = out * (k / out.sum(axis=-1, keepdims=True))
    if k >= experts:
        return np.full_like(out, 1.0)
    top = 1 - MARGIN
    full = np.zeros(out.shape, bool)
    for _ in range(experts):
        full |= out > top
        if not full.any():
            break
        left = k - top * full.sum(axis=-1, keepdims=True)
        free = np.where(full, 0.0, out)
        total = np.maximum(free.sum(axis=-1, keepdims=True), 1e-300)
        out = np.where(full, top, free * left / total)
        if not ((out > top) & ~full).any():
            break
    return out


def counts(
    rng: np.random.Generator, weights: Float64, k: int, tokens: int | Int64
) -> Int32:
    """How many of a row's tokens hold each expert, drawn as counts.

    Parameters
    ----------
    rng
        Source of chance.
    weights
        ``[R, E]``, each row with the sum 1.
    k
        Experts of a token.
    tokens
        Of a row, one number or ``[R]``.

    Returns
    -------
    int32 array
        ``[R, E]``; rows sum to k times the tokens, no cell above the tokens.
    """
    rows, experts = weights.shape
    if k == 1:
        return rng.multinomial(tokens, weights).astype(np.int32)
    below = tails(weights, k)
    out = np.zeros((experts, rows), np.int32)
    left = np.zeros((k + 1, rows), np.int64)
    left[k] = tokens
    for e in range(experts):
        # a polynomial of more degree than experts are left is 0: all must take e
        chance = weights[:, e] * below[e + 1, :-1]
        total = below[e, 1:]
        odds = np.divide(chance, total, out=np.ones_like(chance), where=total > 0)
        took = rng.binomial(left[1:], np.minimum(odds, 1.0))
        out[e] = took.sum(axis=0)
        left[1:] -= took
        left[:-1] += took
    return np.ascontiguousarray(out.T)


def token_draws(
    rng: np.random.Generator, weights: Float64, k: int, tokens: int
) -> Int64:
    """The experts of single tokens, ``[tokens, k]`` int64 ascending: slow, and exact.

    Parameters
    ----------
    rng
        Source of chance.
    weights
        ``[E]``, with the sum 1.
    k
        Experts of a token.
    tokens
        How many.
    """
    below = tails(weights, k)
    out = np.zeros((tokens, k), np.int64)
    for token in range(tokens):
        left = k
        for e in range(len(weights)):
            if not left:
                break
            chance = weights[e] * below[e + 1, left - 1] / below[e, left]
            if rng.random() < chance:
                out[token, k - left] = e
                left -= 1
    return out


def spread(probabilities: Float64) -> Float64:
    r"""How inclusion answers to weights: d with :math:`V = D - d d^T / \sum d`.

    V is the covariance of a token's indicators, and the derivative of its inclusion
    probabilities by the logarithms of the weights.  For k = 1, d is the probability
    itself; else Hájek's approximation, whose diagonal :math:`\pi (1 - \pi)` is exact.

    Parameters
    ----------
    probabilities
        ``[..., E]`` between 0 and 1.

    References
    ----------
    J. Hájek, Ann. Math. Stat. 35 (1964) 1491, equation 8.10.
    """
    own = probabilities * (1 - probabilities)
    d = own.copy()
    for _ in range(20):
        share = d / np.maximum(d.sum(axis=-1, keepdims=True), 1e-300)
        d = own / np.maximum(1 - share, 0.5)
    return np.asarray(d, np.float64)


def _ratio(weights: Float64, k: int) -> Float64:
    """Z_{k-1} without an expert over Z_k of all, ``[..., E]``; sums of positive terms.

    The polynomial without an expert is put together of those before and behind it:
    taking the expert out by division would lose all digits where it is hot.
    """
    experts = weights.shape[-1]
    below = tails(weights, k)
    before = np.zeros((k + 1, *weights.shape[:-1]))
    before[0] = 1.0
    out = np.empty_like(weights)
    for e in range(experts):
        out[..., e] = (before[:k] * below[e + 1, k - 1 :: -1]).sum(axis=0)
        before[1:] += weights[..., e] * before[:-1]
    return np.asarray(out / below[0, k][..., None], np.float64)
