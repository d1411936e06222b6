r"""Load of experts: capacity, starved and collapsed experts, tails, ranks, hot experts.

A *capacity* is a number of copies that an expert takes; over the mean load it is the
capacity factor.  Most routers apply it to the tokens of a rank and micro-batch, others
to those of all ranks, whose load is more even.  Drops show which of the two a run has:
an expert that drops copies has kept exactly the capacity.

An expert is *starved* if its load is below a tenth of the mean load.  A layer is
*collapsed* if at least half of its experts are starved.  These are observations.  They
are stated where a balanced router would hardly look like this: its loads are
Binomial(N, k/E) for N tokens, so the probability is at most ``2 P(load < 0.1 N k/E)``,
by Markov's inequality.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr

from moetraffic.analysis.measures import max_mean, means_of_known, quantiles
from moetraffic.analysis.noise import rank_max_mean
from moetraffic.arrays import Bool, Float64, Int64, Integer
from moetraffic.errors import AnalysisError
from moetraffic.units import rank_span

if TYPE_CHECKING:
    from moetraffic.analysis.exchange import Exchange
    from moetraffic.analysis.rows import Rows
    from moetraffic.trace import Trace

QUANTILE = 0.99
"""Share of the iterations in which a capacity factor holds all copies."""

FEWEST_FULL = 3
"""Experts at their capacity that a rule needs: fewer may agree by chance."""

RULES = {"by_rank": "per rank", "of_all": "over all ranks"}
"""Tokens of a micro-batch that a capacity may apply to, and their names."""

STARVED = 0.1
"""Share of the mean load below which an expert is starved."""

COLLAPSED = 0.5
"""Share of starved experts from which on a layer is collapsed."""

MOST_FALSE = 1e-3
"""Largest probability under a balanced router with which a collapse is stated."""

WINDOW = 10
"""Iterations whose load together tells whether a layer is collapsed."""

LONGEST_LAG = 256
"""Largest lag of the retention of hot experts, iterations."""


def capacity_rows(
    routed: Integer, dropped: Integer | None, index: Int64, iterations: int
) -> dict[str, npt.NDArray[Any]]:
    """Compute what capacities need, by iteration.

    Parameters
    ----------
    routed, dropped
        ``[O, W, E]`` token copies of each occurrence, routed (dropped ones included)
        and dropped; None: unknown.
    index
        ``[O]`` index of the iteration of each occurrence.
    iterations
        Number n of iterations.

    Returns
    -------
    dict
        ``dropped`` ``[n]`` copies, -1 if unknown; and of each of :data:`RULES`
        ``needed_<rule>`` ``[n]``, the largest load over the mean, and ``full_<rule>``
        ``[n, 5]``: smallest and largest load kept by an expert that drops copies, and
        by any beside it, over the mean load; smallest and largest size of one copy on
        this scale; and the number of such experts.
    """
    lost = np.full(iterations, -1, np.int64)
    if dropped is not None:
        lost[:] = 0
        np.add.at(lost, index, dropped.sum(axis=(1, 2)))
    rows: dict[str, npt.NDArray[Any]] = {"dropped": lost}
    for rule in RULES:
        by_rank = rule == "by_rank"
        load = routed if by_rank else routed.sum(axis=1, keepdims=True)
        copy = load.shape[2] / np.maximum(load.sum(axis=2), 1)  # over the mean load
        needed = np.zeros(iterations)
        np.maximum.at(needed, index, (load.max(axis=2) * copy).max(axis=1))
        full = np.tile([np.inf, -np.inf, np.inf, -np.inf, 0.0], (iterations, 1))
        if dropped is not None and dropped.any():
            gone = dropped if by_rank else dropped.sum(axis=1, keepdims=True)
            kept = (load - gone) * copy[:, :, None]
            drops = (gone > 0).any(axis=2)
            columns = (
                (np.minimum, np.where(gone > 0, kept, np.inf).min(axis=2)),
                (np.maximum, np.where(drops, kept.max(axis=2), -np.inf)),
                (np.minimum, np.where(drops, copy, np.inf)),
                (np.maximum, np.where(drops, copy, -np.inf)),
                (np.add, (gone > 0).sum(axis=2)),
            )
            for column, (join, values) in enumerate(columns):
                join.at(full[:, column], index, join.reduce(values, axis=1))
        rows |= {f"needed_{rule}": needed, f"full_{rule}": full}
    return rows


def capacity_of_drops(capacity: Mapping[str, npt.NDArray[Any]]) -> tuple[float, str]:
    """Return the capacity factor that all drops obey and its rule; NaN and "": none."""
    for rule in RULES:
        full = capacity[f"full_{rule}"]
        low, high = full[:, 0].min(), full[:, 1].max()
        finest, coarsest = full[:, 2].min(), full[:, 3].max()
        # a capacity is a whole number of copies: of different tokens it is rounded
        slack = 1e-9 if finest == coarsest else coarsest
        if full[:, 4].sum() >= FEWEST_FULL and high - low <= slack:
            return float(high), rule
    return float("nan"), ""


def starved(load: npt.ArrayLike) -> Bool:
    """Mark the experts with less than a tenth of the mean load, ``[..., E]``."""
    copies = np.asarray(load)
    return np.asarray(copies < STARVED * copies.mean(axis=-1, keepdims=True))


def collapsed(load: npt.ArrayLike, *, k: int = 1) -> bool | None:
    """Return whether at least half of the experts of a layer are starved.

    None: there are too few tokens to distinguish it from sampling noise.
    ``load``: ``[E]`` token copies; ``k``: distinct experts of a token; 0, unknown,
    counts as 1, whose sampling noise is the largest.

    Examples
    --------
    >>> collapsed([9000, 1000, 10, 0, 0, 30, 20, 10])
    True
    >>> collapsed([3, 0, 0, 0]) is None
    True
    """
    copies = np.asarray(load, np.int64)
    experts, k = len(copies), max(1, k)
    tokens = round(int(copies.sum()) / k)
    if experts < 2 or tokens < 1 or k >= experts:
        return None
    below = bdtr(np.ceil(STARVED * copies.mean()) - 1, tokens, k / experts)
    if below / COLLAPSED > MOST_FALSE:
        return None
    return bool(starved(copies).mean() >= COLLAPSED)


def collapse_index(load: Int64, *, k: int = 1) -> int:
    """Return the index of the iteration since which a layer is collapsed, or -1.

    From there to the end of the run, half of the experts are starved in the load
    ``[T, E]`` of any ten consecutive iterations.
    """
    total = np.cumsum(np.pad(load, ((1, 0), (0, 0))), axis=0)
    length = min(WINDOW, len(load))
    loads = total[length:] - total[: len(total) - length]
    if not collapsed(loads[-1], k=k):
        return -1
    even = np.flatnonzero(starved(loads).mean(axis=1) < COLLAPSED)
    return int(even[-1]) + 1 if len(even) else 0


def hot_members(load: Float64 | Int64, k: int) -> Bool:
    """Mark the k largest values along the last axis, lower indices first in ties."""
    members = np.zeros(load.shape, dtype=bool)
    order = np.argsort(-load, axis=-1, kind="stable")[..., :k]
    np.put_along_axis(members, order, True, axis=-1)
    return members


def retention(members: Bool, measured: Bool, lags: Int64) -> Float64:
    """Compute the mean share of hot experts that are hot some steps later, ``[L]``.

    ``members``: ``[T, C]``, k of them True in each ``measured`` step ``[T]``; ``lags``:
    ``[L]`` steps, from 1 on.
    """
    k = members[measured].sum() / max(1, measured.sum())
    shares: Float64 = np.full(len(lags), np.nan)
    for number, lag in enumerate(lags.tolist()):
        both = measured[lag:] & measured[:-lag]
        if both.any():
            common = (members[lag:] & members[:-lag]).sum(axis=1)[both]
            shares[number] = common.mean() / k
    return shares


def expert_tables(
    trace: Trace, exchange: Exchange, rows: Rows
) -> dict[str, list[dict[str, Any]]]:
    """List the tables ``experts`` and ``ep_degrees``; empty of unknown routing.

    Hot experts are the eighth with the largest load of an iteration; their retention is
    the mean over lags of up to half of the run.  EP degrees are powers of two that
    divide the experts, and their number, with experts placed contiguously.
    """
    load, k = rows.load, trace.meta.k
    if load is None or not len(load):
        return {"experts": [], "ep_degrees": []}
    total, number = load.sum(axis=0), load.shape[1]
    few, lost = starved(total), rows.capacity["dropped"]
    counted = bool((lost >= 0).all() and total.any())
    factor, rule = capacity_of_drops(rows.capacity)
    since = collapse_index(load, k=k)
    hot, measured = max(1, number // 8), np.asarray(load.any(axis=1))
    lags = np.arange(1, min(len(load) // 2, LONGEST_LAG) + 1)
    kept = retention(hot_members(load, hot) & measured[:, None], measured, lags)
    relative = load / np.maximum(load.mean(axis=1, keepdims=True), 1e-300)
    tails = quantiles(relative[relative > 0], (0.5, 0.9, 0.99))
    row = {
        **exchange.key,
        "experts": number,
        "max_mean": float(max_mean(total)),
        **dict(zip(("load_p50", "load_p90", "load_p99"), tails, strict=True)),
        "starved": int(few.sum()),
        "starved_experts": rank_span(np.flatnonzero(few).tolist()),
        "starved_at_end": int(starved(load[-WINDOW:].sum(axis=0)).sum()),
        "collapsed_at": int(exchange.iterations[since]) if since >= 0 else -1,
        "dropped": float(lost.sum() / total.sum()) if counted else np.nan,
        "capacity_factor": factor,
        "capacity_rule": rule,
    }
    for rule in RULES:
        needed = rows.capacity[f"needed_{rule}"]
        row[f"dropless_factor_{rule}"] = float(np.quantile(needed, QUANTILE))
    row |= {
        "hot": hot,
        "hot_retained": float(means_of_known(kept)),
        "hot_retained_next": float(kept[0]) if len(kept) else np.nan,
        "hot_retained_by_chance": hot / number,
    }
    tokens = 0
    if rows.tokens is not None:
        # the balanced value hardly depends on small changes of the number of tokens
        tokens = round(float(np.median(rows.tokens))) * len(exchange.ranks)
    degrees = []
    powers = (1 << power for power in range(1, number.bit_length()))
    for ep in sorted({n for n in (*powers, number) if n > 1 and number % n == 0}):
        busiest = max_mean(load.reshape(len(load), ep, -1).sum(axis=2))
        degrees.append(
            {
                **exchange.key,
                "ep": ep,
                "max_mean": float(means_of_known(busiest)),
                "max_mean_p99": quantiles(busiest[np.isfinite(busiest)], (0.99,))[0],
                "balanced": rank_max_mean(tokens, experts=number, k=k, ranks=ep),
            }
        )
    return {"experts": [row], "ep_degrees": degrees}


def rank_shares(trace: Trace, ep: int) -> Float64:
    """Compute the shares of expert-parallel ranks in an exchange, by layer.

    Rank i of ``ep``, a divisor of the experts, holds the i-th of as many equal parts of
    them.  The ranks of a layer are ordered by their copies in the whole run.  The i-th
    busiest has the share that the i-th busiest rank of an exchange has in the mean of
    all layers, micro-batches and iterations, so that each layer's busiest rank is as
    busy as that of a mean exchange, whichever rank that is.

    ``[layers, ep]`` float64; each row sums to 1.

    Raises
    ------
    TraceError
        If the trace has no routing.
    AnalysisError
        If ``ep`` does not divide the experts of a layer, or no copy was routed.
    """
    from moetraffic.trace.what_if.relocate import routed_layers

    layers: list[Int64] = []
    for layer in routed_layers(trace):
        experts = layer.demand.shape[2]
        if ep < 1 or experts % ep:
            raise AnalysisError(
                f"ep divides the experts, but layer {layer.layer} of {trace.name} has "
                f"{experts} for ep {ep}: change --ep, or generate a trace with more "
                "experts"
            )
        counts = layer.demand.read(0, layer.demand.shape[0])
        load = counts.sum(axis=1, dtype=np.int64)
        layers.append(load.reshape(len(load), ep, -1).sum(axis=2))
    ordered = np.sort(np.concatenate(layers), axis=1)
    total = ordered.sum(axis=1, keepdims=True)
    if not total.any():
        raise AnalysisError(
            "shares of ranks are those of routed token copies, but the routers of "
            f"{trace.name} routed none: give another trace"
        )
    shares = (ordered / np.maximum(total, 1))[total[:, 0] > 0].mean(axis=0)
    places = [np.argsort(np.argsort(load.sum(axis=0))) for load in layers]
    return np.asarray(shares[np.array(places)])
