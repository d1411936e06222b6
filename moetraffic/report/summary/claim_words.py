"""Figures of claims, and whose load they are of, in the words of a summary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moetraffic.analysis import Analysis, ExchangeAnalysis
from moetraffic.analysis.claim import Claim

from .forecast_horizons import above_or_below
from .layer_lists import range_of

REDUCED = "MSE reduced by"
"""Name of a figure that is negative where the MSE is above the baseline's."""

PERSISTENCE = "better than persistence"
"""Claim whose baseline is persistence; that of other forecasts is the past mean."""

PAST_MEAN = "the past mean"
"""Baseline of forecasts: the mean of all iterations before."""

THROUGHOUT = "about one level throughout"
"""In place of the figure of "converged" where the level begins with the run."""

TOPICS = {
    "Skew": {"imbalanced": ("RMS CV {} over iterations", ".2f")}
    | {"skewed": ("CV of the mean load {}", ".2f")}
    | {"hot set retained": ("{} of {hot} stay hot in another tenth of the run", ".0%")}
    | {"collapsed": ("k experts take {}", ".0%"), "co-activated": ("lift {}", ".2f")},
    "Movement": {"moves": ("{} times the variance of sampling noise", ".3g")}
    | {
        "converged": ("about one level from iteration {} on", ",.0f"),
        "level change": ("at iteration {}", ",.0f"),
    }
    | {"trend": ("by {} of the traffic", ".1%")}
    | {"periodic": ("every {} iterations", ".4g")}
    | {"mean-reverting": ("half-life {} iterations", ".3g")},
    "Forecasts": {"predictable": (REDUCED, ".0%")}
    | {"matrix predictable": (REDUCED, ".0%")}
    | {PERSISTENCE: (REDUCED, ".0%")},
}
"""Claims about the load by line, with text and format of the figure of each."""


def figure_of(claims: Sequence[Claim]) -> str:
    """Format the range of the figures of claims of one name; "" if none is known."""
    known = [claim.figure for claim in claims if np.isfinite(claim.figure)]
    if not known:
        return THROUGHOUT if claims[0].name == "converged" else ""
    named = {name: of for topic in TOPICS.values() for name, of in topic.items()}
    figure, form = named.get(claims[0].name, ("{}", ".3g"))
    if figure == REDUCED and claims[0].name == PERSISTENCE:
        return f"MSE {range_of(known, form)} lower"
    if figure == REDUCED:
        return f"MSE {above_or_below(known)} {PAST_MEAN}"
    hot = dict.fromkeys(claim.measure.removeprefix("share of ") for claim in claims)
    text = figure.format(range_of(known, form), hot=" or ".join(hot))
    if claims[0].name in ("converged", "level change") and min(known) < max(known):
        text += ", depending on the layer"
    chance = [claim.chance for claim in claims if np.isfinite(claim.chance)]
    return f"{text}, {range_of(chance, form)} by chance" if chance else text


def known_experts(analysis: Analysis) -> bool:
    """Whether routing was recorded, so that loads are of experts."""
    subjects = (s for e in analysis.exchanges for s in e.subjects)
    names = {subject.name for subject in subjects}
    return not names or "expert_load" in names


def of_ranks(exchanges: Sequence[ExchangeAnalysis]) -> str:
    """Name the load of ranks whose experts are unknown."""
    number = sorted({len(e.ranks) for e in exchanges})
    return f"bytes received by {range_of(number, ',.0f')} ranks"


def subject_of(analysis: Analysis) -> str:
    """Name what claims are about, before a list of them."""
    known = known_experts(analysis)
    return "expert load: " if known else f"{of_ranks(analysis.exchanges)}: "
