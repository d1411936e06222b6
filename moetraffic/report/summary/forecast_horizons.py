"""Horizons at which claims about forecasts hold, in the words of a summary."""

from __future__ import annotations

from collections.abc import Sequence

from moetraffic.analysis import ExchangeAnalysis
from moetraffic.analysis.claim import Claim, Outcome, claim_of
from moetraffic.analysis.forecast.forecasting import HORIZONS
from moetraffic.analysis.forecast.origins import steps_needed
from moetraffic.analysis.forecast.usefulness import WORSE

from .layer_lists import detailed, range_of, some_layers
from .level_words import since


def reach_of(
    name: str,
    made: Sequence[tuple[ExchangeAnalysis, Claim]],
    exchanges: Sequence[ExchangeAnalysis],
) -> tuple[str, str]:
    """Name the first horizon at which a claim holds, and the longest of each layer."""
    of: dict[int, list[ExchangeAnalysis]] = {
        c.horizon: [] for e in exchanges for c in e.claims if c.name == name
    }
    for exchange, claim in made:
        of[claim.horizon].append(exchange)
    first, *later = (h for h in sorted(of) if of[h])
    if first < 0:
        return "", ""
    longest = {(e.layer, e.group): (c.horizon, e) for e, c in made}
    limits = list[str]()
    for ahead in reversed([first, *later]):
        if some := [e for furthest, e in longest.values() if furthest == ahead]:
            where = f" ({some_layers(some, exchanges) or 'all layers'})"
            limits.append(f"{ahead}" + where * (some != of[first] or limits != []))
    rest = f", up to {', '.join(limits)}" if later else ""
    failed = [
        c.horizon
        for e in exchanges
        for c in e.claims
        if c.name == name and c.outcome is Outcome.NO_EVIDENCE and c.horizon > first
    ]
    if failed and not later:
        rest = f", not {min(failed)}"
    if not rest or name == "matrix predictable":
        rest = other_horizons(name, exchanges)
    return f" {first} iteration{'s' * (first > 1)} ahead", rest


def other_horizons(name: str, exchanges: Sequence[ExchangeAnalysis]) -> str:
    """State which horizons are not tested, to save time or as the run is too short."""
    every = [c for e in exchanges for c in e.claims]
    asked = [c for c in every if c.name == name]
    most = max(c.horizon for c in asked)
    if name == "matrix predictable" and most < max(c.horizon for c in every):
        return ", the only horizon tested"
    iterations = max(c.used + c.left_out for c in asked)
    later = next((h for h in HORIZONS if h > most), most)
    if name == "predictable" and (needed := steps_needed(later)) > iterations:
        return f", {later} ahead needs {needed} iterations"
    return ""


def unchanging_matrices(
    exchanges: Sequence[ExchangeAnalysis],
) -> list[tuple[str, str]]:
    """State the matrices that are equal in all iterations, long and short."""
    items = []
    for name in ("demand", "wire"):
        if some := [e for e in exchanges if name in e.unchanging]:
            what = f"{name} matrix" + f" of {some[0].phase}" * (name == "wire")
            where = some_layers(some, exchanges)
            inside = "measured" + f"; {where}" * bool(where)
            items.append((detailed(f"{what} the same in every iteration", inside),) * 2)
    return items


def worse_than_persistence(
    exchanges: Sequence[ExchangeAnalysis], *, named: bool
) -> list[tuple[str, str]]:
    """State the forecasts with an MSE above that of persistence, long and short.

    At all horizons, those with the same layers together; persistence may be ``named``
    before them.
    """
    found: dict[int, list[tuple[ExchangeAnalysis, Claim]]] = {}
    for exchange in exchanges:
        for claim in exchange.claims:
            if any(flag.startswith(WORSE) for flag in claim.flags):
                found.setdefault(claim.horizon, []).append((exchange, claim))
    of: dict[str, list[int]] = {}
    for ahead in sorted(found):
        where = some_layers([e for e, _ in found[ahead]], exchanges)
        of.setdefault(where, []).append(ahead)
    made = list[tuple[str, str]]()
    for where, every in of.items():
        figures = [-c.figure for ahead in every for _, c in found[ahead]]
        what = "worse" if made or named else WORSE
        if every[0] > 0:
            what += f" {', '.join(map(str, every))} ahead"
        what += f" in {where}" * bool(where)
        full = detailed(what, f"{range_of(figures, '.0%')} higher")
        made.append((full, what if len(of) > 1 else full))
    return made


def plan_from_past_mean(
    exchanges: Sequence[ExchangeAnalysis],
) -> list[tuple[str, str]]:
    """State where loads are skewed and no forecast is stated, long and short."""
    made = list[tuple[ExchangeAnalysis, Claim]]()
    for exchange in exchanges:
        skew = claim_of(exchange.claims, "skewed")
        ahead = [c for c in exchange.claims if "predictable" in c.name]
        tested = any(c.outcome is Outcome.NO_EVIDENCE for c in ahead)
        if skew and skew.stated and tested and not any(c.stated for c in ahead):
            made.append((exchange, skew))
    if not made:
        return []
    where = some_layers([e for e, _ in made], exchanges)
    what = f"plan from the past mean{since(made, exchanges)}"
    what += f" in {where}" * bool(where)
    why = "skewed, and no tested forecast is shown to have a lower MSE"
    return [(f"{what} ({why})", what)]


def above_or_below(reductions: Sequence[float]) -> str:
    """State by how much the MSE of forecasts is below that of a baseline, or above.

    Examples
    --------
    >>> above_or_below([0.46, 0.74]), above_or_below([-0.07, 0.16])
    ('46 to 74% below', '7% above to 16% below')
    >>> above_or_below([-0.004]), above_or_below([-0.2, -0.1])
    ('0% below', '10 to 20% above')
    """
    zero = 0.005  # to which a percentage is rounded
    if min(reductions) > -zero:
        return f"{range_of([max(r, 0.0) for r in reductions], '.0%')} below"
    above = range_of([-min(reductions)], ".0%")
    if max(reductions) < zero:
        return f"{range_of([max(-r, 0.0) for r in reductions], '.0%')} above"
    return f"{above} above to {range_of([max(reductions)], '.0%')} below"


def named_ahead(
    name: str,
    claims: Sequence[tuple[ExchangeAnalysis, Claim]],
    outcome: Outcome,
    asked: Sequence[int],
) -> str:
    """Name a claim with the horizons of an outcome."""
    ahead = sorted({c.horizon for _, c in claims if c.outcome is outcome})
    if list(asked) == [-1]:
        return name + " load" * (name == "periodic")  # not the bursts in a step
    return f"{name} {range_of(ahead, 'd')} ahead"
