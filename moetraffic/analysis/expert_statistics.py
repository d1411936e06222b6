r"""Statistics of experts for schedulers: load tails, EP degrees, correlated experts.

Counts by rank and expert do not show which experts a token has together.  For k > 1 the
co-activation of experts and the hosts that a token is sent to are therefore known only
where experts of sampled tokens were recorded (:mod:`.token_choices`); the correlation
of expert loads over iterations, and the number of hosts of a balanced router, are
different quantities and are named as such.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.trace import Meta

from .co_activation import CoActivation
from .exchange import Rows, Source
from .noise.floors import skew_floors
from .noise.null_model import NullModel
from .skew.measures import max_over_mean, means_of_known, shares
from .skew.tails import Tail, tail
from .token_choices import HostsPerToken, TokenChoices, balanced_hosts

FLOOR_DRAWS = 2000
"""Draws of a noise floor of which only the mean is used."""


@dataclass(frozen=True, kw_only=True)
class EpDegree:
    """Load imbalance of ranks at an EP degree, experts placed contiguously."""

    ep: int  # ranks
    max_over_mean: float  # of the load of ranks, mean over the iterations
    p99: float  # over the iterations
    noise_floor: float  # mean under a balanced router; NaN if unknown


@dataclass(frozen=True, kw_only=True)
class ExpertStatistics:
    """Load tails, imbalance by EP degree, and correlated experts of one exchange."""

    load: Tail | None  # of expert loads over their mean, all experts and iterations
    bottleneck_bytes: Tail | None  # largest sent or received by a rank, by iteration
    ep_degrees: tuple[EpDegree, ...]  # 2, 4, 8 ... where they divide E, and E
    correlated: tuple[int, int] | None  # experts with the largest load correlation
    correlation: float  # of the load shares of these two over the iterations
    correlation_mean: float  # mean over all pairs; -1/(E - 1) of exchangeable experts
    hosts_per_token: float  # distinct hosts a token is sent to; NaN: unknown
    hosts_per_token_low: float  # 95% interval of the mean, from sampled tokens
    hosts_per_token_high: float
    hosts_per_token_balanced: float  # of a balanced router; NaN if unknown
    sampled_tokens: int  # tokens whose experts were recorded; 0: counts alone
    co_activation: CoActivation | None  # of the sampled tokens
    contiguous: tuple[HostsPerToken, ...]  # experts placed contiguously on H hosts
    unavailable: tuple[str, ...]  # what is not known, a sentence each


def expert_statistics(
    source: Source,
    rows: Rows,
    meta: Meta,
    *,
    tokens: Int64 | None,
    choices: TokenChoices | None = None,
) -> ExpertStatistics | None:
    """Compute statistics of experts; None without demand and wire.

    Parameters
    ----------
    tokens
        ``[T]`` tokens per rank, for noise floors; None: unknown.
    choices
        Statistics of the exchange's sampled tokens; None: none were sampled.
    """
    if "demand.load" not in rows and "wire.bottleneck" not in rows:
        return None
    load = np.asarray(rows.get("demand.load", np.zeros((0, 0))), np.int64)
    experts = load.shape[1]
    known = len(load) > 0 and experts > 0
    every = None if tokens is None else tokens * len(source.ranks)
    pair, largest, mean = _correlation(load)
    bytes_ = rows.get("wire.bottleneck")
    hosts = len(set(source.nodes)) if all(source.nodes) else 0
    unavailable = []
    measured = None if choices is None else choices.hosts
    if known and meta.k > 1 and choices is None:
        unavailable.append(
            f"co-activation of experts{', hosts per token' * (hosts > 1)}: unavailable,"
            f" as counts do not show which {meta.k} experts a token has together "
            "(capture with --token-sample)"
        )
    # all hosts are one, or a token has one expert, which is on one host
    on_one_host = known and (hosts == 1 or (hosts > 0 and meta.k == 1))
    return ExpertStatistics(
        load=tail(load / np.maximum(load.mean(axis=1, keepdims=True), 1e-300))
        if known
        else None,
        bottleneck_bytes=None if bytes_ is None else tail(bytes_),
        ep_degrees=_ep_degrees(load, every, meta.k) if known else (),
        correlated=pair,
        correlation=largest,
        correlation_mean=mean,
        hosts_per_token=1.0
        if on_one_host
        else (float("nan") if measured is None else measured.mean),
        hosts_per_token_low=float("nan") if measured is None else measured.low,
        hosts_per_token_high=float("nan") if measured is None else measured.high,
        hosts_per_token_balanced=balanced_hosts(experts, hosts, meta.k),
        sampled_tokens=0 if choices is None else choices.tokens,
        co_activation=None if choices is None else choices.co_activation,
        contiguous=() if choices is None else choices.contiguous,
        unavailable=tuple(unavailable),
    )


def _ep_degrees(load: Int64, tokens: Int64 | None, k: int) -> tuple[EpDegree, ...]:
    """Compute the imbalance of ranks by EP degree from loads ``[T, E]``."""
    experts = load.shape[1]
    found = []
    powers = [1 << i for i in range(1, experts.bit_length())]
    for ep in sorted({each for each in (*powers, experts) if experts % each == 0}):
        if ep < 2:
            continue
        peaks = max_over_mean(load.reshape(len(load), ep, -1).sum(axis=2))
        floor = float("nan")
        if tokens is not None and 1 <= k <= experts:
            # the floor hardly depends on small changes of the number of tokens
            middle = np.array([round(float(np.median(tokens)))])
            model = NullModel(experts=experts, k=k, ranks=ep)
            of = skew_floors(("max_over_mean",), middle, model, draws=FLOOR_DRAWS)
            floor = float(of["max_over_mean"].mean[0])
        p99 = np.nanquantile(peaks, 0.99) if np.isfinite(peaks).any() else np.nan
        found.append(
            EpDegree(
                ep=ep,
                max_over_mean=float(means_of_known(peaks)),
                p99=float(p99),
                noise_floor=floor,
            )
        )
    return tuple(found)


def _correlation(load: Int64) -> tuple[tuple[int, int] | None, float, float]:
    """Find the two experts whose load shares are correlated most over iterations.

    Returns the experts, their correlation, and the mean correlation of all pairs; None
    and NaN where loads do not vary.
    """
    unknown = (None, float("nan"), float("nan"))
    if load.shape[0] < 3 or load.shape[1] < 2:
        return unknown
    part = shares(load)
    part = part[np.isfinite(part).all(axis=1)]
    varying = np.flatnonzero(np.ptp(part, axis=0) > 0) if len(part) else np.zeros(0)
    if len(varying) < 2:
        return unknown
    matrix = np.asarray(np.corrcoef(part[:, varying].T), np.float64)
    first, second = np.triu_indices(len(varying), 1)
    values = matrix[first, second]
    at = int(np.argmax(values))
    pair = int(varying[first[at]]), int(varying[second[at]])
    return pair, float(values[at]), float(values.mean())
