"""Measured figures of a run, which no test decides, in the words of a summary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moetraffic.analysis import Analysis, ExchangeAnalysis
from moetraffic.analysis.exchange import BEYOND
from moetraffic.analysis.skew.capacity import QUANTILE, RULES, LoadFigures
from moetraffic.analysis.times.time_breakdown import TimeBreakdown
from moetraffic.arrays import Float64
from moetraffic.trace.model import REPEATED
from moetraffic.units import rank_span

from .layer_lists import dropped_copies, range_of, some_layers

SHORT = 40
"""Characters of a list of starved experts, above which they are counted."""


def about_data(analysis: Analysis) -> list[str]:
    """List what qualifies all conclusions; possible causes are in the tables."""
    differing, _, _ = analysis.contradiction.partition(": possible causes")
    return [differing] * bool(differing) + [
        note for note in analysis.notes if BEYOND in note or REPEATED in note
    ]


def known_figures(exchanges: Sequence[ExchangeAnalysis]) -> list[LoadFigures]:
    """Return the figures of the layers whose expert load is known."""
    return [e.figures for e in exchanges if e.figures is not None]


def drops_of(figures: Sequence[LoadFigures]) -> str:
    """State the share of dropped copies, and the capacity factor that drops obey."""
    text = dropped_copies([each.dropped for each in figures])
    factors = [each.factor for each in figures if each.rule]
    rules = {each.rule for each in figures if each.dropped > 0}
    if len(rules) != 1 or not all(rules):
        return text
    return (
        f"{text}: capacity factor {range_of(factors, '.3g')} {RULES[rules.pop()]} "
        "(inferred)"
    )


def load_of(exchanges: Sequence[ExchangeAnalysis]) -> str:
    """State the largest load of the whole run, and the starved experts.

    They are counted where a list of them would be long.
    """
    figures = known_figures(exchanges)
    most = range_of([each.max_over_mean for each in figures], ".2f")
    text = f"measured: max/mean of the run {most}"
    of: dict[tuple[int, ...], list[ExchangeAnalysis]] = {}
    for each in exchanges:
        if each.figures and each.figures.starved:
            of.setdefault(each.figures.starved_experts, []).append(each)
    if not of:
        return f"{text}, no expert starved"
    every = " in all layers" * (len(exchanges) > 1)
    named = ", ".join(
        f"expert{'s' * (len(experts) > 1)} {rank_span(experts)}"
        + (f" in {where}" if (where := some_layers(some, exchanges)) else every)
        for experts, some in of.items()
    )
    if len(named) <= SHORT:
        return f"{text}, starved: {named}"
    starved = range_of([each.starved for each in figures], "d")
    experts = range_of([each.experts for each in figures], "d")
    return f"{text}, {starved} of {experts} experts starved"


def capacity_of(figures: Sequence[LoadFigures], *, sent: bool) -> str:
    """State the capacity factor that holds all copies, by the rule that drops obey.

    Per rank where no rule is known; both are in the tables.
    ``sent``: whether copies that were dropped before are unknown.
    """
    obeyed = {each.rule for each in figures} - {""}
    rule = next((each for each in RULES if each in obeyed), next(iter(RULES)))
    needed = range_of([each.needed[rule] for each in figures], ".2f")
    return (
        f"dropless capacity factor{' of the tokens sent' * sent} {needed} {RULES[rule]}"
        f" ({QUANTILE:.0%} of iterations)"
    )


def inside_collectives(spent: TimeBreakdown) -> str:
    """State the shares of step time inside collectives, with their ranges by rank."""
    known = np.isfinite(spent.collective_fraction)

    def span(shares: Float64) -> str:
        return range_of(shares[known].tolist(), ".0%")

    hidden = span(spent.hidden_fraction) if spent.overlapped.any() else "none"
    ranks = ", by rank" if known.sum() > 1 else ""
    return (
        f"{span(spent.collective_fraction)} of step time in all collectives (measured"
        f"{ranks}): transfer {span(spent.transfer_fraction)}, {hidden} of it behind "
        f"compute (inferred), waiting for late ranks {span(spent.shares[:, 3])}"
    )
