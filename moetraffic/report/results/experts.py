"""Tabulate statistics of experts: load tails, imbalance by EP degree, correlations."""

from __future__ import annotations

from collections.abc import Sequence

from moetraffic.analysis import ExchangeAnalysis
from moetraffic.analysis.skew.capacity import QUANTILE, RULES
from moetraffic.analysis.skew.collapse import STARVED
from moetraffic.tables import Table
from moetraffic.units import byte_size, rank_span


def expert_tables(exchanges: Sequence[ExchangeAnalysis]) -> list[Table]:
    """Tabulate the expert statistics of exchanges; tables without rows are possible."""
    return [
        _whole_run(exchanges),
        _tails(exchanges),
        _ep_degrees(exchanges),
        _tokens(exchanges),
        *(_co_activation(exchanges), _hosts(exchanges)),
    ]


def _whole_run(exchanges: Sequence[ExchangeAnalysis]) -> Table:
    factors = {f"dropless capacity factor {of}": ".2f" for of in RULES.values()}
    return Table(
        title="Expert load of the whole run, and capacity",
        columns={
            **{"layer": "<", "ranks": "", "max/mean": ".2f"},
            **{"ids of starved experts": ""},
            **{"dropped copies": ".1%", "capacity factor of drops": ".3g"},
            **factors,
        },
        rows=[
            (
                *(e.layer, rank_span(e.ranks), of.max_over_mean),
                rank_span(of.starved_experts) or "none",
                *(of.dropped, of.factor, *(of.needed[rule] for rule in RULES)),
            )
            for e in exchanges
            if (of := e.figures) is not None
        ],
        notes=[
            f"starved: less than {STARVED:.0%} of the mean load; dropless: holds all "
            f"copies in {QUANTILE:.0%} of iterations"
        ],
    )


def _tails(exchanges: Sequence[ExchangeAnalysis]) -> Table:
    rows = []
    for exchange in exchanges:
        found = exchange.experts
        if found is None:
            continue
        for name, tail, text in (
            ("expert load / mean", found.load, "{:.2f}".format),
            ("bottleneck bytes", found.bottleneck_bytes, byte_size),
        ):
            if tail is not None and tail.values:
                rows.append(
                    (
                        *(exchange.layer, rank_span(exchange.ranks), name),
                        *(text(value) for value in (tail.p50, tail.p90, tail.p99)),
                        *(tail.index, (tail.index_low, tail.index_high)),
                    )
                )
    return Table(
        title="Quantiles and tail of loads and bottleneck bytes",
        columns={
            **{"layer": "<", "ranks": "", "quantity": "<"},
            **dict.fromkeys(("p50", "p90", "p99"), ">"),
            **{"tail index": ".1f", "95% interval": ".1f"},
        },
        rows=rows,
        notes=["tail index: Hill's estimate from the largest 5%; small: heavy tail"],
    )


def _ep_degrees(exchanges: Sequence[ExchangeAnalysis]) -> Table:
    """One row per exchange, one column per EP degree that any of them has."""
    known = [(e, e.experts) for e in exchanges if e.experts and e.experts.ep_degrees]
    degrees = sorted({each.ep for _, found in known for each in found.ep_degrees})
    rows: list[tuple[object, ...]] = []
    for exchange, found in known:
        where = (exchange.layer, rank_span(exchange.ranks))
        for name in ("max_over_mean", "p99", "noise_floor"):
            of = {each.ep: getattr(each, name) for each in found.ep_degrees}
            label = {"max_over_mean": "mean", "noise_floor": "noise floor"}
            rows.append((*where, label.get(name, name), *map(of.get, degrees)))
    return Table(
        title="Imbalance of ranks by EP degree: max/mean of their load (1 = balanced)",
        columns={
            **{"layer": "<", "ranks": "", "over iterations": "<"},
            **{f"EP {degree}": ".3f" for degree in degrees},
        },
        rows=rows,
        notes=["computed from the demand, experts placed contiguously"],
    )


def _tokens(exchanges: Sequence[ExchangeAnalysis]) -> Table:
    rows = []
    notes: dict[str, None] = {}
    for exchange in exchanges:
        found = exchange.experts
        if found is None or (
            found.correlated is None
            and found.hosts_per_token_balanced != found.hosts_per_token_balanced
        ):
            continue
        pair = "{}, {}".format(*found.correlated) if found.correlated else None
        rows.append(
            (
                *(exchange.layer, rank_span(exchange.ranks), pair),
                *(found.correlation, found.correlation_mean),
                found.hosts_per_token,
                (found.hosts_per_token_low, found.hosts_per_token_high),
                found.hosts_per_token_balanced,
            )
        )
        notes |= dict.fromkeys(found.unavailable)
    return Table(
        title="Correlated experts, and hosts per token",
        columns={
            **{"layer": "<", "ranks": "", "most correlated experts": ">"},
            **{"load correlation": "+.2f", "mean of all pairs": "+.3f"},
            **{"hosts per token": ".3f", "95% interval": ".3f"},
            **{"of a balanced router": ".3f"},
        },
        rows=rows,
        notes=[
            "load correlation: of the load shares over iterations, not co-activation",
            *notes,
        ],
    )


def _co_activation(exchanges: Sequence[ExchangeAnalysis]) -> Table:
    """One row per exchange: the pair with the most evidence."""
    rows = []
    for exchange in exchanges:
        found = exchange.experts.co_activation if exchange.experts else None
        if found is None or not found.pairs:
            continue
        first = found.pairs[0]
        rows.append(
            (
                *(exchange.layer, rank_span(exchange.ranks), found.tokens),
                "{}, {}".format(*first.experts),
                *(first.lift, (first.low, first.high), first.p, found.coupled),
                found.tested,
            )
        )
    return Table(
        title="Co-activation: experts that tokens choose together",
        columns={
            **{"layer": "<", "ranks": "", "sampled tokens": ",", "experts": ">"},
            **{"lift": ".2f", "95% interval": ".2f", "p": ".2g"},
            **{"pairs above 1.1": ",", "pairs tested": ","},
        },
        rows=rows,
        notes=[
            "lift: tokens that have both, over those expected of independent choices "
            "with the same loads; p of a lift of at most 1.1, and the interval, for "
            "all pairs at once"
        ],
    )


def _hosts(exchanges: Sequence[ExchangeAnalysis]) -> Table:
    """One row per exchange and figure, one column per number of hosts."""
    known = [
        (e, e.experts.contiguous)
        for e in exchanges
        if e.experts and e.experts.contiguous
    ]
    numbers = sorted({each.hosts for _, found in known for each in found})
    rows: list[tuple[object, ...]] = []
    for exchange, found in known:
        where = (exchange.layer, rank_span(exchange.ranks))
        values: dict[str, dict[int, object]] = {
            "measured": {each.hosts: each.mean for each in found},
            "95% interval": {each.hosts: (each.low, each.high) for each in found},
            "balanced router": {each.hosts: each.balanced for each in found},
        }
        rows += [(*where, name, *map(of.get, numbers)) for name, of in values.items()]
    return Table(
        title="Distinct hosts per token by number of hosts",
        columns={
            **{"layer": "<", "ranks": "", "hosts per token": "<"},
            **{f"{number} hosts": ".3f" for number in numbers},
        },
        rows=rows,
        notes=["of the sampled tokens, experts placed contiguously"],
    )
