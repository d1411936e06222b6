r"""Experts that single tokens choose together, and the hosts that hold them.

Both need a sample of the experts of tokens; counts alone do not show them.

The *lift* of a pair of experts is the number of tokens that have both, over the number
expected if tokens chose independently with the loads of their iteration: of N tokens
with k experts, :math:`n_i` of which have expert i and :math:`o_{ij}` both i and j,

.. math:: E_{ij} = \varphi_{ij} \frac{n_i n_j - o_{ij}}{N - 1}, \qquad
    \varphi_{ij} = \frac{P_{ij}}{\pi_i \pi_j}

where :math:`\varphi`, which is below 1 as experts are distinct, is computed from the
loads of a block of iterations (:func:`pair_probabilities`).  Tokens of another k are
treated separately.  Intervals are from the scatter between iterations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit, stdtrit

from moetraffic.analysis.measures import ratio
from moetraffic.arrays import Bool, Complex128, Float64, Floating, Int64, Integer
from moetraffic.errors import TraceError
from moetraffic.trace.choices import expert_mask

if TYPE_CHECKING:
    from moetraffic.analysis.exchange import Exchange
    from moetraffic.trace import Trace

BLOCKS = 16
"""Blocks of iterations, at least: within one, loads are of about one size."""

BLOCK_BYTES = 16 << 20
"""Bytes of masks of tokens in memory; a block has at least one iteration."""

LEAST_SHARE = 0.1
"""Smallest expected count of a pair, over the mean of all pairs: of pairs of rare
experts, the distribution of a router's noise determines the expected count."""

MOST_PAIRS = 10
"""Maximum number of pairs listed."""

LEVEL = 0.05
"""Probability that an interval does not hold the true value."""

NEAR = 0.1
"""Logits nearer than this to those that are asked for are moved by Newton's steps."""

MOST_STEPS, CLOSE = 500, 1e-8
"""Maximum number of steps, and error of the loads at which a fit ends."""


def token_tables(trace: Trace, exchange: Exchange) -> dict[str, list[dict[str, Any]]]:
    """List the tables ``hosts`` and ``coactivation`` of the sampled tokens.

    Hosts are those of the run, and of experts placed contiguously on numbers of hosts
    that divide them.  Without a sample, only what a balanced router has is given, and
    the mean where all experts of a token are on one host.
    """
    experts, k = exchange.experts, trace.meta.k
    own = len(set(exchange.nodes)) if all(exchange.nodes) else 0
    numbers = host_numbers(experts, len(exchange.ranks)) if experts else []
    places = {n: np.arange(experts) * n // experts for n in numbers}
    sums, tokens = np.zeros((5, experts, experts)), []
    reached: dict[int, list[int]] = defaultdict(list)  # 0: as placed in the run
    for iterations, masks in sampled_tokens(trace, exchange):
        sums += lift_sums(masks)
        for iteration, mask in zip(iterations.tolist(), masks, strict=True):
            tokens.append(len(mask))
            placed = _host_of_expert(trace, exchange, iteration)
            if placed is not None:
                reached[0].append(int(distinct_hosts(mask, placed).sum()))
            for number, place in places.items():
                reached[number].append(int(distinct_hosts(mask, place).sum()))
    table = []
    for number in [0] * (experts > 0 and own > 0) + numbers * bool(tokens):
        mean = low = high = np.nan
        if tokens and len(reached[number]) == len(tokens):
            mean, low, high = mean_interval(reached[number], tokens)
        elif number == 0 and (own == 1 or k == 1):
            mean = 1.0
        table.append(
            {
                **exchange.key,
                "placement": "contiguous" if number else "captured",
                "hosts": number or own,
                "hosts_per_token": mean,
                "hosts_per_token_low": low,
                "hosts_per_token_high": high,
                "balanced": balanced_hosts(experts, number or own, k),
                "sampled_tokens": sum(tokens),
            }
        )
    pairs = [{**exchange.key, **row} for row in lift_rows(sums, len(tokens))]
    return {"hosts": table, "coactivation": pairs}


def sampled_tokens(
    trace: Trace, exchange: Exchange
) -> Iterator[tuple[Int64, list[Bool]]]:
    """Read the sampled tokens of an exchange in blocks of iterations.

    Yields iterations ``[n]``, and for each a mask ``[tokens, E]`` of the experts of the
    tokens of all ranks and micro-batches; without iterations that have none.
    """
    site = trace.occurrences.site[exchange.routed]
    sites = [s for s in np.unique(site).tolist() if trace.sites[s].token_sample]
    if not sites:
        return
    width = len(exchange.ranks) * exchange.experts
    size = sum(trace.sites[s].token_sample for s in sites) * width
    total, number = len(exchange.iterations), trace.occurrences.iteration
    length = max(1, min(-(-total // BLOCKS), BLOCK_BYTES // size))
    for first in range(0, total, length):
        iterations = exchange.iterations[first : first + length]
        masks: list[list[Bool]] = [[] for _ in iterations]
        for sampled in sites:
            calls = exchange.routed[site == sampled]
            calls = calls[np.isin(number[calls], iterations)]
            if not len(calls):
                continue
            index = np.searchsorted(iterations, number[calls]).tolist()
            for place, ids in zip(index, trace.chosen(calls), strict=True):
                chosen = ids[(ids >= 0).any(axis=2)]
                masks[place].append(expert_mask(chosen, exchange.experts))
        filled = [place for place, parts in enumerate(masks) if any(map(len, parts))]
        yield iterations[filled], [np.concatenate(masks[place]) for place in filled]


# ---- hosts ---------------------------------------------------------------------------


def host_numbers(experts: int, ranks: int) -> list[int]:
    """List numbers of hosts that E experts are spread over evenly and contiguously.

    They are those of 1, 2, 4 ... experts per host, and of a host for every 1, 2, 3 ...
    ranks; not 1.
    """
    held = (1 << power for power in range(experts.bit_length()))
    numbers = {experts // n for n in held if experts % n == 0}
    numbers |= {ranks // n for n in range(1, ranks + 1) if ranks % n == 0}
    return sorted(n for n in numbers if n > 1 and experts % n == 0)


def balanced_hosts(experts: int, hosts: int, k: int) -> float:
    r"""Compute the mean number of hosts to which a balanced router sends a token.

    It is :math:`H (1 - C(E - E/H, k) / C(E, k))`, with E/H experts on each of H hosts;
    NaN where H does not divide E, or k is not among 1 ... E.

    Examples
    --------
    >>> balanced_hosts(8, 2, 2) == 11 / 7
    True
    """
    if hosts < 1 or experts % hosts or not 1 <= k <= experts:
        return float("nan")
    without = comb(experts - experts // hosts, k)
    return hosts * (comb(experts, k) - without) / comb(experts, k)


def distinct_hosts(chosen: Bool, host: Integer) -> Int64:
    """Count the distinct hosts of the experts of each token, ``[T]``.

    ``chosen``: ``[T, E]`` whether a token has an expert; ``host``: ``[E]`` its number.

    Examples
    --------
    >>> mask = np.array([[True, True, False, False], [True, False, False, True]])
    >>> distinct_hosts(mask, np.array([0, 0, 1, 1])).tolist()
    [1, 2]
    """
    order = np.argsort(host, kind="stable")
    starts = np.flatnonzero(np.diff(host[order], prepend=-1))
    reached = np.logical_or.reduceat(chosen[:, order], starts, axis=1)
    return np.asarray(reached.sum(axis=1), np.int64)


def mean_interval(
    amounts: Sequence[int], tokens: Sequence[int]
) -> tuple[float, float, float]:
    """Compute the mean per token and its 95% interval from sums of iterations."""
    amount, number = np.array([amounts, tokens], np.float64)
    mean, count = float(amount.sum() / number.sum()), len(number)
    if count < 2:
        return mean, np.nan, np.nan
    squares = ((amount - mean * number) ** 2).sum()
    error = np.sqrt(count / (count - 1) * squares) / number.sum()
    half = float(stdtrit(count - 1, 1 - LEVEL / 2) * error)
    return mean, mean - half, mean + half


def _host_of_expert(trace: Trace, exchange: Exchange, iteration: int) -> Int64 | None:
    """Return the number of the host of each expert, ``[E]``; None if unknown."""
    if not all(exchange.nodes):
        return None
    try:
        holder = trace.holder(exchange.layer, exchange.group, iteration)
    except TraceError:
        return None  # the placement is unknown, or experts have replicas
    _, number = np.unique(exchange.nodes, return_inverse=True)
    return np.asarray(number[holder], np.int64)


# ---- pairs of experts ----------------------------------------------------------------


def pair_counts(chosen: Bool) -> Int64:
    """Count the tokens that have both experts of each pair: the co-activation matrix.

    ``chosen``: ``[..., E]`` whether a token has an expert, as from
    :meth:`moetraffic.Trace.choices`.

    ``[E, E]`` int64, symmetric; the diagonal is the load.  Where each token has k
    experts, a row adds up to k times the load.

    Examples
    --------
    >>> pair_counts(np.array([[True, True, False], [True, False, True]])).tolist()
    [[2, 1, 1], [1, 1, 0], [1, 0, 1]]
    """
    rows = chosen.reshape(-1, chosen.shape[-1])
    # exact: float32 has all integers up to 2^24
    exact: type[np.floating] = np.float32 if len(rows) < 1 << 24 else np.float64
    floats: Floating = rows.astype(exact)
    return np.asarray(floats.T @ floats, np.int64)


def lift_sums(masks: Sequence[Bool]) -> Float64:
    """Sum observed and expected counts of pairs over a block of iterations.

    ``masks``: Of each iteration the experts of its tokens, ``[tokens, E]``.

    ``[5, E, E]``: sums over the iterations of observed counts o, expected counts e, and
    of o o, o e and e e.
    """
    sizes = [mask.sum(axis=1) for mask in masks]
    counts = np.bincount(np.concatenate([np.zeros(0, np.int64), *sizes]))
    factors = {}
    for k in [k for k in range(2, len(counts)) if counts[k] > 1]:
        load = sum(m[n == k].sum(axis=0) for m, n in zip(masks, sizes, strict=True))
        share = np.asarray(load) / counts[k]
        factors[k] = np.nan_to_num(
            ratio(pair_probabilities(share, k), np.outer(share, share))
        )
    sums: Float64 = np.zeros(())
    for mask, size in zip(masks, sizes, strict=True):
        observed, expected = np.zeros((2, mask.shape[1], mask.shape[1]))
        for k, factor in factors.items():
            chosen = mask[size == k]
            if len(chosen) < 2:
                continue
            both = pair_counts(chosen).astype(np.float64)
            load = np.diag(both).copy()
            np.fill_diagonal(both, 0)
            observed += both
            expected += factor * (np.outer(load, load) - both) / (len(chosen) - 1)
        products = (observed**2, observed * expected, expected**2)
        sums = sums + np.stack([observed, expected, *products])
    return sums


def lift_rows(sums: Float64, iterations: int) -> list[dict[str, Any]]:
    """List the pairs of experts with the most evidence for their lift.

    These have the largest lower ends of 95% intervals, which hold for all pairs at
    once.  ``sums`` are of :func:`lift_sums`, of all iterations.
    """
    upper = np.triu_indices(sums.shape[1], 1)
    o, e, oo, oe, ee = (total[upper] for total in sums)
    if not e.any():
        return []
    used = np.flatnonzero((e > 0) & (e >= LEAST_SHARE * e.mean()))
    o, e, oo, oe, ee = (total[used] for total in (o, e, oo, oe, ee))
    lift = o / e
    half = np.full(len(used), np.nan)
    if iterations > 1:
        # of the sum of observed - lift x expected counts, which is 0
        squares = np.maximum(oo - 2 * lift * oe + lift**2 * ee, 0)
        error = np.sqrt(iterations / (iterations - 1) * squares) / e
        half = stdtrit(iterations - 1, 1 - LEVEL / 2 / len(used)) * error
    order = np.lexsort((-lift, half - lift))[:MOST_PAIRS]
    return [
        {
            "expert": int(upper[0][used[pair]]),
            "other_expert": int(upper[1][used[pair]]),
            "common_tokens": int(o[pair]),
            "expected_tokens": float(e[pair]),
            "lift": float(lift[pair]),
            "lift_low": float(np.maximum(lift[pair] - half[pair], 0)),
            "lift_high": float(lift[pair] + half[pair]),
        }
        for pair in order.tolist()
    ]


def pair_probabilities(loads: npt.ArrayLike, k: int) -> Float64:
    r"""Compute the probability of each pair of experts under independent choices.

    A token has the set S of k experts with probability proportional to
    :math:`\prod_{e \in S} w_e`: of all distributions with these loads the one of
    maximum entropy.  On a circle of complex numbers z, with :math:`a_e = w_e z/(1 + w_e
    z)` and :math:`g = z^{-k} \prod_e (1 + w_e z)`, the means of :math:`g`, :math:`g
    a_i` and :math:`g a_i a_j` are the normalization and the probabilities of one and of
    two experts, exactly from E + 1 points on.

    ``loads``: ``[E]`` probability that a token has each expert; the sum is k.

    ``[E, E]``, symmetric, zero diagonal; row e adds up to k - 1 times the load of e.

    References
    ----------
    S. X. Chen, A. P. Dempster, J. S. Liu, Biometrika 81 (1994) 457.

    Examples
    --------
    >>> pair_probabilities([0.5, 0.5, 0.5, 0.5], 2)[0].round(6).tolist()
    [0.0, 0.166667, 0.166667, 0.166667]
    """
    given = np.asarray(loads, np.float64)
    pairs: Float64 = np.zeros((len(given), len(given)))
    always = given >= 1 - CLOSE
    # an expert that all tokens have is independent of the others
    pairs[always] = given
    pairs[:, always] = pairs[always].T
    free = np.flatnonzero(~always & (given > 0))
    left = k - int(always.sum())
    if left == len(free):
        pairs[np.ix_(free, free)] = 1.0
    elif left >= 2:
        logits = np.asarray(logit(given[free]), np.float64)
        for _ in range(MOST_STEPS):
            g, a = _circle(logits, left)
            load = np.clip((g @ a).real, 1e-300, 1 - 1e-16)
            if np.abs(load - given[free]).max() < CLOSE:
                break
            step = logit(given[free]) - logit(load)
            if np.abs(step).max() < NEAR:  # Newton's step, by the choices' covariance
                both = ((a * g[:, None]).T @ a).real
                np.fill_diagonal(both, load)
                covariance = both - np.outer(load, load)
                away = given[free] - load
                step = np.asarray(np.linalg.lstsq(covariance, away, rcond=None)[0])
            logits += step
        pairs[np.ix_(free, free)] = np.maximum(((a * g[:, None]).T @ a).real, 0.0)
    np.fill_diagonal(pairs, 0)
    return pairs


def _circle(logits: Float64, k: int) -> tuple[Complex128, Complex128]:
    """Compute g ``[M]``, normalized, and a ``[M, E]`` on a circle.

    With its radius, about k experts are expected: there cancellation is least.
    """
    p = expit(logits)
    for _ in range(2):
        logits = logits - (p.sum() - k) / (p * (1 - p)).sum()
        p = expit(logits)
    angle = 2j * np.pi * np.arange(len(logits) + 1) / (len(logits) + 1)
    z = np.exp(angle)
    below = 1 - p + p * z[:, None]
    g = np.exp(np.log(below).sum(axis=1) - k * angle)
    return g / g.sum(), p * z[:, None] / below
