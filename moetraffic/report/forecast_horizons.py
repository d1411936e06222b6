"""Horizons at which claims about forecasts hold, in the words of a summary."""

from __future__ import annotations

from collections.abc import Sequence

from moetraffic.analysis import ExchangeAnalysis
from moetraffic.analysis.claim import Claim, Outcome
from moetraffic.analysis.forecast.usefulness import WORSE

from .layer_lists import range_of, some_layers


def reach_of(
    name: str,
    made: Sequence[tuple[ExchangeAnalysis, Claim]],
    exchanges: Sequence[ExchangeAnalysis],
) -> tuple[str, str]:
    """Name the horizons at which a claim holds, and the first at which it does not.

    The longest horizon is named with its layers where it holds in fewer; then the first
    that was tested and at which it holds nowhere.
    """
    of: dict[int, list[ExchangeAnalysis]] = {
        c.horizon: [] for e in exchanges for c in e.claims if c.name == name
    }
    for exchange, claim in made:
        of[claim.horizon].append(exchange)
    asked = sorted(of)
    holds = [h for h in asked if of[h]]
    if holds[0] < 0:
        return "", ""
    first, last, rest = holds[0], holds[0], ""
    if all(len(of[h]) == len(of[first]) for h in holds):
        last = holds[-1]
    else:
        named = some_layers(of[holds[-1]], exchanges) or "all layers"
        rest = f", up to {holds[-1]} in {named}"
    failed = {
        c.horizon
        for e in exchanges
        for c in e.claims
        if c.name == name and c.outcome is Outcome.NO_EVIDENCE and not of[c.horizon]
    }
    if failed:
        rest += f", not {min(failed)}"
    ahead = {c.horizon for e in exchanges for c in e.claims if c.horizon > 0}
    if name == "matrix predictable" and asked[-1] < max(ahead):  # to save time
        rest = ", longer untested"
    unit = f"iteration{'s' * (last > 1)}"
    return f" {range_of([first, last], 'd')} {unit} ahead", rest


def worse_than_persistence(
    exchanges: Sequence[ExchangeAnalysis],
) -> list[tuple[ExchangeAnalysis, Claim]]:
    """Find the forecasts with an MSE above that of persistence.

    At the nearest horizon at which any has.
    """
    found = [
        (e, c)
        for e in exchanges
        for c in e.claims
        if any(flag.startswith(WORSE) for flag in c.flags)
    ]
    near = min((c.horizon for _, c in found), default=0)
    return [(e, c) for e, c in found if c.horizon == near]


def named_ahead(
    name: str,
    claims: Sequence[tuple[ExchangeAnalysis, Claim]],
    outcome: Outcome,
    asked: Sequence[int],
) -> str:
    """Name a claim with the horizons of an outcome."""
    ahead = sorted({c.horizon for _, c in claims if c.outcome is outcome})
    if list(asked) == [-1]:
        return name
    return f"{name} {range_of(ahead, 'd')} ahead"
