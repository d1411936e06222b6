"""Experts of the sampled tokens of an exchange: their hosts, and pairs of experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import comb

import numpy as np
from scipy.special import stdtrit

from moetraffic.arrays import Bool, Int64, Integer
from moetraffic.errors import TraceError
from moetraffic.trace import Trace
from moetraffic.trace.choices import expert_mask

from .claim import Claim
from .co_activation import CoActivation, PairCounts, co_activation_claim
from .exchange import WINDOW_BYTES, Source

BLOCKS = 16
"""Blocks of iterations, at least: within one, loads are of about one size."""


@dataclass(frozen=True, kw_only=True)
class HostsPerToken:
    """Distinct hosts that a token is sent to, of the sampled tokens."""

    hosts: int  # H that hold experts
    mean: float
    low: float  # 95% interval of the mean over the run, from its iterations
    high: float
    balanced: float  # mean of a balanced router; NaN if unknown
    shares: tuple[float, ...]  # share of the tokens on 1, 2 ... H hosts, up to the most


@dataclass(frozen=True, kw_only=True)
class TokenChoices:
    """Statistics of the experts that single tokens choose together."""

    tokens: int  # sampled, with at least one expert
    iterations: int
    co_activation: CoActivation | None  # None where no token has two experts
    hosts: HostsPerToken | None  # under the run's placement and nodes; None: unknown
    contiguous: tuple[HostsPerToken, ...]  # experts placed contiguously on H hosts
    claims: tuple[Claim, ...]


def token_choices(trace: Trace, source: Source) -> TokenChoices | None:
    """Compute statistics of the sampled tokens of an exchange.

    ``source``: Exchange to read; its iterations are used that have sampled tokens.

    None where the trace has no sample of this exchange.
    """
    numbers = host_numbers(source.experts, len(source.ranks))
    pairs = PairCounts(source.experts)
    own = _HostCounts()
    contiguous = {hosts: _HostCounts() for hosts in numbers}
    tokens = iterations = 0
    for when, masks in _blocks(trace, source):
        pairs.add(masks)
        for iteration, mask in zip(when.tolist(), masks, strict=True):
            iterations += 1
            tokens += len(mask)
            place = _host_of_expert(trace, source, iteration)
            if place is not None:
                own.add(distinct_hosts(mask, place))
            for hosts, counts in contiguous.items():
                place = np.arange(source.experts) * hosts // source.experts
                counts.add(distinct_hosts(mask, place))
    if not tokens:
        return None
    about = (
        f"tokens of layer {source.layer}, ranks {source.ranks[0]} to {source.ranks[-1]}"
    )

    def concluded(counts: _HostCounts, hosts: int) -> HostsPerToken:
        balanced = balanced_hosts(source.experts, hosts, trace.meta.k)
        return counts.conclude(hosts, balanced)

    found = pairs.conclude()
    placed = own.iterations == iterations
    return TokenChoices(
        tokens=tokens,
        iterations=iterations,
        co_activation=found,
        hosts=concluded(own, len(set(source.nodes))) if placed else None,
        contiguous=tuple(concluded(c, hosts) for hosts, c in contiguous.items()),
        claims=() if found is None else (co_activation_claim(found, about=about),),
    )


def host_numbers(experts: int, ranks: int) -> list[int]:
    """List numbers of hosts that E experts are spread over evenly and contiguously.

    They are those of 1, 2, 4 ... experts per host, and of a host for every 1, 2, 3 ...
    ranks; not 1.
    """
    held = {1 << i for i in range(experts.bit_length())}
    numbers = {experts // n for n in held if experts % n == 0}
    numbers |= {ranks // n for n in range(1, ranks + 1) if ranks % n == 0}
    return sorted(n for n in numbers if n > 1 and experts % n == 0)


def balanced_hosts(experts: int, hosts: int, k: int) -> float:
    r"""Compute the mean number of hosts to which a balanced router sends a token.

    It is :math:`H (1 - C(E - E/H, k) / C(E, k))`.

    ``experts``, ``hosts``, ``k``: E, H hosts with E/H experts each, and distinct
    experts per token.

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
    """Count the distinct hosts of the experts of each token.

    Parameters
    ----------
    chosen
        ``[T, E]`` whether a token has an expert.
    host
        ``[E]`` number of the host that holds each expert.

    Returns
    -------
    ndarray
        ``[T]`` int64, between 1 and the smaller of experts and hosts for a token with
        experts.

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


class _HostCounts:
    """Counts of tokens by number of distinct hosts, iteration by iteration."""

    def __init__(self) -> None:
        self.iterations = 0
        self._sums: list[tuple[int, int]] = []  # hosts and tokens of an iteration
        self._histogram = np.zeros(1, np.int64)

    def add(self, hosts: Int64) -> None:
        """Add the distinct hosts ``[T]`` of an iteration's tokens."""
        self.iterations += 1
        self._sums.append((int(hosts.sum()), len(hosts)))
        counts = np.bincount(hosts, minlength=len(self._histogram))
        counts[: len(self._histogram)] += self._histogram
        self._histogram = counts

    def conclude(self, hosts: int, balanced: float) -> HostsPerToken:
        """Compute the mean, its interval from the iterations, and the shares."""
        reached, tokens = np.array(self._sums, np.float64).T
        mean = reached.sum() / tokens.sum()
        half, count = float("nan"), len(tokens)
        if count > 1:
            rest = reached - mean * tokens
            error = np.sqrt(count / (count - 1) * (rest**2).sum()) / tokens.sum()
            half = float(stdtrit(count - 1, 0.975) * error)
        shares = self._histogram[1:] / self._histogram.sum()
        return HostsPerToken(
            hosts=hosts,
            mean=float(mean),
            low=float(mean) - half,
            high=float(mean) + half,
            balanced=balanced,
            shares=tuple(shares.tolist()),
        )


def _blocks(trace: Trace, source: Source) -> Iterator[tuple[Int64, list[Bool]]]:
    """Read the sampled tokens of an exchange in blocks of iterations.

    Yields
    ------
    tuple
        Iterations ``[n]``, and for each a mask ``[tokens, E]`` of the experts of the
        tokens of all ranks and micro-batches; without iterations that have none.
    """
    site_of = trace.occurrences.site[source.routed]
    sites = [s for s in np.unique(site_of).tolist() if trace.sites[s].token_sample]
    if not sites:
        return
    width = len(source.ranks) * source.experts
    size = sum(trace.sites[s].token_sample for s in sites) * width
    total = len(source.iterations)
    length = max(1, min(-(-total // BLOCKS), WINDOW_BYTES // size))
    every = trace.occurrences.iteration
    for first in range(0, total, length):
        when = source.iterations[first : first + length]
        parts: list[list[Bool]] = [[] for _ in when]
        for site in sites:
            mine = source.routed[site_of == site]
            mine = mine[np.isin(every[mine], when)]
            if not len(mine):
                continue
            for at, ids in zip(
                np.searchsorted(when, every[mine]).tolist(),
                trace.chosen(mine),
                strict=True,
            ):
                chosen = ids[(ids >= 0).any(axis=2)]
                parts[at].append(expert_mask(chosen, source.experts))
        kept = [at for at, each in enumerate(parts) if any(map(len, each))]
        yield when[kept], [np.concatenate(parts[at]) for at in kept]


def _host_of_expert(trace: Trace, source: Source, iteration: int) -> Int64 | None:
    """Return the number of the host of each expert, ``[E]``; None if unknown."""
    if not all(source.nodes):
        return None
    try:
        holder = trace.holder(source.layer, source.group, iteration)
    except TraceError:
        return None  # the placement is unknown, or experts have replicas
    _, number = np.unique(source.nodes, return_inverse=True)
    return np.asarray(number[holder], np.int64)
