"""Lines of a summary on claims without evidence, undecided or not tested."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moetraffic.analysis import Analysis
from moetraffic.analysis.claim import SAME, Claim, Outcome
from moetraffic.analysis.convergence.mean_load import MOTION
from moetraffic.analysis.forecast.usefulness import WORSE

from .claim_words import PAST_MEAN, TOPICS, figure_of, subject_of
from .forecast_horizons import named_ahead, other_horizons
from .layer_lists import counted, detailed, joined, range_of, rounded_up, some_layers
from .line import LONG, WIDTH, Line, fitted

BELOW = f"an MSE below that of {PAST_MEAN}, which may itself be at sampling noise"
"""What "predictable" means, where it is not stated."""

ALWAYS = "matrix predictable"
"""Claim whose figure stands there even if it is not stated: schedulers act on it."""

NOT_SHOWN = "No evidence of"
"""Topic of claims that layers do not support although their tests had enough data."""

UNDECIDED = "Undecided"
"""Topic of claims whose tests lack data, or do not apply."""


def unstated_lines(analysis: Analysis) -> list[Line]:
    """Name claims with the layers without evidence, and those that lack data."""
    every = analysis.exchanges
    no_evidence, others = list[tuple[str, str]](), list[tuple[str, str]]()
    untested = list[tuple[str, str]]()
    few = list[tuple[str, str, list[Claim], str]]()
    for name in (name for names in TOPICS.values() for name in names):
        # that nothing varies is stated as measured
        named = [(e, c) for e in every for c in e.claims if c.name == name]
        claims = [(e, c) for e, c in named if SAME not in c.flags]
        stated = any(c.stated for _, c in claims)
        asked = sorted({c.horizon for _, c in claims})
        late = [(e, c) for e, c in claims if c.horizon == asked[-1]]
        claims = [(e, c) for e, c in claims if c.horizon == asked[0]]
        for why in dict.fromkeys(c.untested for _, c in claims if c.untested):
            some = [e for e, c in claims if c.untested == why]
            inside = joined(why, some_layers(some, every))
            untested.append((detailed(name, inside), counted(name, some, every)))
        short = [(e, c) for e, c in claims if c.outcome is Outcome.NOT_ENOUGH_DATA]
        tested = [e for e, c in claims if _without_evidence(c)]
        if tested:
            known = name == ALWAYS and not stated
            size = figure_of([c for _, c in claims]) if known else ""
            size = size.replace("MSE", "MSE of its cells")
            size = size or BELOW * (name == "predictable" and not stated)
            inside = joined(size, some_layers(tested, every))
            both = claims if stated else claims + late
            what = named_ahead(name, both, Outcome.NO_EVIDENCE, asked)
            more = "" if stated else other_horizons(name, every)
            absent = others if name == ALWAYS else no_evidence
            absent.append((detailed(what, inside) + more, counted(what, tested, every)))
        short = short or [
            (e, c) for e, c in late if c.outcome is Outcome.NOT_ENOUGH_DATA
        ]
        if short:
            where = some_layers([e for e, _ in short], every)
            if any(MOTION in c.flags for _, c in short):
                where = joined(MOTION, where)
            swings = [c.figure for _, c in short if np.isfinite(c.figure)]
            if name == "periodic" and swings:
                swing = f"an oscillation of about {range_of(swings, '.3g')} iterations"
                where = joined(swing, where)
            what = named_ahead(name, claims + late, Outcome.NOT_ENOUGH_DATA, asked)
            # co-activated needs tokens, not iterations
            needed = [c for _, c in short if name != "co-activated"]
            brief = counted(what, [e for e, _ in short], every)
            few.append((what, where, needed, brief))
    for claim in analysis.beats.claims:
        name = f"{claim.name} of {claim.about}"
        if claim.outcome is Outcome.NOT_ENOUGH_DATA:
            few.append((name, f"about {rounded_up(claim.needs):,}", [], name))
        elif not claim.stated:
            others.append((name, name))
    undecided, other = "", ""
    if untested:
        other = "not tested: "
        other += fitted(f"{UNDECIDED}: not tested", untested, ", ", WIDTH)
    if few:
        every_one = [claim for *_, claims, _ in few for claim in claims]
        needs = _needs(every_one)
        reason = f"needs about {needs} iterations" if needs else "needs more iterations"
        if has := [claim.used + claim.left_out for claim in every_one]:
            reason += f", has {range_of(has, ',d')}"
        items = [
            (detailed(what, joined(_needs(claims, but=needs), where)), brief)
            for what, where, claims, brief in few
        ]
        rest = "; " + other if other else ""
        before = f"{UNDECIDED}: {reason}: {rest}"
        undecided = f"{reason}: {fitted(before, items, ', ', width=LONG)}{rest}"
    of = subject_of(analysis) if no_evidence else ""
    least = len(of) + sum(len(brief) + 2 for _, brief in no_evidence)
    rest = fitted(NOT_SHOWN, others, ", ", width=LONG - least)
    room = LONG - len(rest) - 2
    of += fitted(f"{NOT_SHOWN}: {of}", no_evidence, ", ", width=room)
    found = {NOT_SHOWN: joined(of, rest), UNDECIDED: undecided or other}
    return [Line(topic=t, text=x, basis="claims") for t, x in found.items() if x]


def _without_evidence(claim: Claim) -> bool:
    """Whether a claim was tested, and neither it nor its opposite is stated."""
    opposite = any(flag.startswith(WORSE) for flag in claim.flags)
    tested = claim.outcome is Outcome.NO_EVIDENCE and not claim.untested
    return tested and not opposite


def _needs(claims: Sequence[Claim], *, but: str = "") -> str:
    """Format the range of iterations that claims need; "" if it equals ``but``."""
    needs = sorted(rounded_up(claim.needs) for claim in claims)
    text = range_of(needs, ",.0f") if needs else ""
    return "" if text == but else text
