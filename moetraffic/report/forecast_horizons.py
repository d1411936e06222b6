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
    *,
    counted: bool = False,
) -> tuple[str, str]:
    """Name the nearest horizon at which a claim holds, and what holds at others.

    The longest horizon is named with its layers where it holds in fewer; then those
    that were tested and at which it holds nowhere.  ``counted``: with their number in
    place of the layers.
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
    text = ""
    if holds[1:]:
        fewer = len(of[holds[-1]]) < len(of[holds[0]])
        some = of[holds[-1]]
        named = len(some) if counted else some_layers(some, exchanges)
        where = f" in {named}" if fewer else ""
        text += f", up to {holds[-1]}{where}"
    tested = {
        c.horizon
        for e in exchanges
        for c in e.claims
        if c.name == name and c.outcome is Outcome.NO_EVIDENCE
    }
    without = [str(h) for h in asked if not of[h] and h in tested]
    if without:
        listed = " and ".join(filter(None, (", ".join(without[:-1]), without[-1])))
        text += f", no evidence at {listed}"
    unit = "" if counted else f" iteration{'s' * (holds[0] > 1)}"
    return f" {holds[0]}{unit} ahead", text


def nearest(made: Sequence[tuple[ExchangeAnalysis, Claim]]) -> list[Claim]:
    """Return the claims of the nearest horizon."""
    near = min(c.horizon for _, c in made)
    return [c for _, c in made if c.horizon == near]


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
