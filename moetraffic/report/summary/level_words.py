"""Levels of the expert load, and the iterations they are of, in words of a summary."""

from __future__ import annotations

from collections.abc import Sequence

from moetraffic.analysis import ExchangeAnalysis
from moetraffic.analysis.claim import NO_TRANSIENT, Claim, Outcome, claim_of

from .layer_lists import range_of, some_layers

Made = Sequence[tuple[ExchangeAnalysis, Claim]]


def level_of(
    figure: str, made: Made, periodic: Made, exchanges: Sequence[ExchangeAnalysis]
) -> str:
    """State the level of a claim "converged", which a periodic load swings about.

    ``figure`` is of the layers whose level is not constant; "" if there are none.
    """
    if not figure:
        return "constant but for sampling noise"
    of = [(e.layer, e.group) for e, _ in periodic]
    swing = [e for e, _ in made if (e.layer, e.group) in of]
    if len(swing) == len(made):
        return f"swings {figure}"
    where = some_layers(swing, exchanges)
    figure += f", with swings about it in {where}" if swing else ""
    still = [e for e, c in made if constant(e, c)]
    return f"{figure}, constant in {some_layers(still, exchanges)}" if still else figure


def constant(exchange: ExchangeAnalysis, level: Claim) -> bool:
    """Whether no motion is seen before and at the level of a claim "converged"."""
    moves = claim_of(exchange.claims, "moves")
    periodic = claim_of(exchange.claims, "periodic")
    return (
        NO_TRANSIENT in level.flags
        and moves is not None
        and moves.outcome is Outcome.NO_EVIDENCE
        and not (periodic and periodic.stated)
    )


def since(made: Made, exchanges: Sequence[ExchangeAnalysis]) -> str:
    """Name the iterations from which on claims hold, where not of the whole run.

    Forecasts are left out: they are tested at the end of the run in any case.
    """
    late = [(e, c.since) for e, c in made if c.since is not None and c.horizon < 0]
    if not late:
        return ""
    first = range_of([at for _, at in late], ",d")
    text = f" from iteration {first} on" + ", depending on the layer" * (" " in first)
    if len(late) == len(made):
        return text
    return f", in {some_layers([e for e, _ in late], exchanges)}{text}"
