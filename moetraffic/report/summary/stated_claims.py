"""Lines of a summary on what is stated of the load, and measured beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moetraffic.analysis import Analysis, ExchangeAnalysis
from moetraffic.analysis.claim import SAME, Claim
from moetraffic.analysis.omissions import UNCOUNTED

from .claim_words import (
    PAST_MEAN,
    PERSISTENCE,
    TOPICS,
    figure_of,
    known_experts,
    subject_of,
)
from .forecast_horizons import (
    plan_from_past_mean,
    reach_of,
    unchanging_matrices,
    worse_than_persistence,
)
from .layer_lists import detailed, joined, some_layers
from .level_words import constant, level_of, since
from .line import LONG, Line, fitted
from .measured_words import capacity_of, known_figures, load_of

VARIED = 2.0
"""Variance of shares over that of sampling noise, above which it is always named."""


def stated_lines(analysis: Analysis, topic: str) -> list[Line]:
    """State the claims of a topic, and what is measured beside the skew."""
    every = analysis.exchanges
    made = {
        name: [(e, c) for e in every for c in e.claims if c.name == name and c.stated]
        for name in TOPICS[topic]
    }
    made = {name: claims for name, claims in made.items() if claims}
    items = [_stated(name, made, every) for name in made]
    if topic == "Forecasts":
        items += worse_than_persistence(every, named=PERSISTENCE in made)
        items += plan_from_past_mean(every)
        items = unchanging_matrices(every) + items
    basis = "claims" if items else "figure"
    measured = _measured(analysis) if topic == "Skew" else []
    varied = _same(every) + _varied(every) if topic == "Movement" else []
    at = int("moves" in made)  # beside it, or in its place
    items[at:at] = varied
    if not items + measured:
        return []
    named = topic == "Skew" or not known_experts(analysis)
    of = subject_of(analysis) if items and named else ""
    text = of + fitted(f"{topic}: {of}", items + measured, width=LONG)
    return [Line(topic=topic, text=text, basis=basis)]


def _measured(analysis: Analysis) -> list[tuple[str, str]]:
    """State the largest load of the run, and the capacity factor that it needs."""
    every = analysis.exchanges
    figures = known_figures(every) if known_experts(analysis) else []
    sent = any(UNCOUNTED in note for note in analysis.notes)
    text = f"{load_of(every)}; {capacity_of(figures, sent=sent)}" if figures else ""
    return [(text, text)] * bool(text)


def _same(exchanges: Sequence[ExchangeAnalysis]) -> list[tuple[str, str]]:
    """State the layers whose load is the same in all iterations, long and short."""
    some = [
        e
        for e in exchanges
        if any(c.name == "moves" and SAME in c.flags for c in e.claims)
    ]
    if not some:
        return []
    inside = joined("measured", some_layers(some, exchanges))
    return [(detailed("load the same in every iteration", inside),) * 2]


def _varied(exchanges: Sequence[ExchangeAnalysis]) -> list[tuple[str, str]]:
    """State the variance of shares that are not stated to move, long and short.

    "Moves" is about motion that lasts: loads that are drawn anew in each iteration vary
    by more than sampling noise, but do not move.
    """
    found = [
        (e, c)
        for e in exchanges
        for c in e.claims
        if c.name == "moves" and not c.stated and c.figure > VARIED
    ]
    if not found:
        return []
    where = some_layers([e for e, _ in found], exchanges)
    figure = figure_of([c for _, c in found]) + ", measured"
    what = "varies from iteration to iteration"
    end = ", no evidence of motion that lasts"
    inside = joined(figure, where)
    return [(detailed(what, inside) + end, detailed(what, where) + end)]


def _stated(
    name: str,
    made: Mapping[str, Sequence[tuple[ExchangeAnalysis, Claim]]],
    exchanges: Sequence[ExchangeAnalysis],
) -> tuple[str, str]:
    """State a claim with its figure and layers, and without its figure.

    Of forecasts these are of the nearest horizon, and stand before other horizons.
    """
    first, ahead = next(iter(made)), min(c.horizon for _, c in made[name])
    near = [(e, c) for e, c in made[name] if c.horizon == ahead]
    where = some_layers([e for e, _ in near], exchanges)
    reach, rest = reach_of(name, made[name], exchanges)
    if name != first:
        reach = reach.replace(" iterations", "").replace(" iteration", "")
    full = name + since(near, exchanges) + reach
    left = [c for e, c in near if name != "converged" or not constant(e, c)]
    figure = figure_of(left) if left else ""
    if name == "converged":
        figure = level_of(figure, near, made.get("periodic", ()), exchanges)
    if name != first == "predictable":
        figure = figure.removeprefix("MSE ").replace(PAST_MEAN, "it")
    details = joined(figure, where)
    kept = details if name == PERSISTENCE else where
    return detailed(full, details) + rest, detailed(full, kept) + rest
