"""Tabulate statistics of experts: load tails, imbalance by EP degree, correlations."""

from __future__ import annotations

from collections.abc import Sequence

from moetraffic.analysis import ExchangeAnalysis
from moetraffic.tables import Table
from moetraffic.units import byte_size, rank_span


def expert_tables(exchanges: Sequence[ExchangeAnalysis]) -> list[Table]:
    """Tabulate the expert statistics of exchanges; tables without rows are possible."""
    return [_tails(exchanges), _ep_degrees(exchanges), _tokens(exchanges)]


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
        notes=["tail index: Hill's estimate from the largest 5%; small: heavy tail"]
        if rows
        else [],
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
        notes=["computed from the demand, experts placed contiguously"] if rows else [],
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
                *(found.hosts_per_token, found.hosts_per_token_balanced),
            )
        )
        notes |= dict.fromkeys(found.unavailable)
    return Table(
        title="Correlated experts, and hosts per token",
        columns={
            **{"layer": "<", "ranks": "", "most correlated experts": ">"},
            **{"load correlation": "+.2f", "mean of all pairs": "+.3f"},
            **{"hosts per token": ".3f", "of a balanced router": ".3f"},
        },
        rows=rows,
        notes=[
            "load correlation: of the load shares over iterations, not co-activation",
            *notes,
        ]
        if rows
        else [],
    )
