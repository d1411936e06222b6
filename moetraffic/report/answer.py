"""Summarize an analysis in at most eight lines, of claims and of marked figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from shlex import quote

import numpy as np

from moetraffic.analysis import Analysis, ExchangeAnalysis
from moetraffic.analysis.claim import LEVEL, Claim, Outcome
from moetraffic.analysis.forecast.usefulness import WORSE
from moetraffic.analysis.noise.skew_claims import NO_TOKENS
from moetraffic.analysis.omissions import UNCOUNTED

from .forecast_horizons import (
    above_or_below,
    named_ahead,
    other_horizons,
    plan_from_past_mean,
    reach_of,
    unchanging_matrices,
    worse_than_persistence,
)
from .layer_lists import (
    counted,
    detailed,
    joined,
    layers_of,
    range_of,
    rounded_up,
    some_layers,
)
from .level_words import constant, level_of, since
from .measured_words import (
    about_data,
    capacity_of,
    drops_of,
    inside_collectives,
    known_figures,
    load_of,
)

REDUCED = "MSE reduced by"
"""Name of a figure that is negative where the MSE is above the baseline's."""

PERSISTENCE = "better than persistence"
"""Claim whose baseline is persistence; that of other forecasts is the past mean."""

PAST_MEAN = "the past mean"
"""Baseline of forecasts: the mean of all iterations before."""

BELOW = f"an MSE below that of {PAST_MEAN}, which may itself be at sampling noise"
"""What "predictable" means, where it is not stated."""

THROUGHOUT = "one level throughout"
"""In place of the figure of "converged" where the level begins with the run."""

TOPICS = {
    "Skew": {"imbalanced": ("CV {} in an iteration", ".2f")}
    | {"skewed": ("CV of the mean load {}", ".2f")}
    | {"hot set retained": ("two tenths of the run share {} of ", ".0%")}
    | {"collapsed": ("k experts take {}", ".0%"), "co-activated": ("lift {}", ".2f")},
    "Movement": {"moves": ("{} times the variance of sampling noise", ".3g")}
    | {
        "converged": ("one level by iteration {}", ",.0f"),
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

ALWAYS = "matrix predictable"
"""Claim whose figure stands there even if it is not stated: schedulers act on it."""

NOT_SHOWN = "No evidence of"
"""Topic of claims that layers do not support although their tests had enough data."""

UNDECIDED = "Undecided"
"""Topic of claims whose tests lack data, or do not apply."""

WIDTH = 160
"""Characters of a line, two of a terminal of 80 columns; details yield to it."""

LONG = 320
"""Characters of a line of claims; a line of claim names alone may be longer."""

SKEW = 230
"""Characters of the line on skew, three of a terminal of 80 columns."""

VARIED = 2.0
"""Variance of shares over that of sampling noise, above which it is always named."""

STEP = "recommendation"
"""Basis of a line that names commands, not conclusions."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """Line of a summary."""

    topic: str
    text: str
    basis: str  # "claims", "figure", "data" or "recommendation"

    def __str__(self) -> str:
        # commands can be copied to the end of the line
        return f"{self.topic}: {self.text}" + "." * (self.basis != STEP)


def answer(
    analysis: Analysis, *, file: str = "run.h5", options: str = ""
) -> tuple[Line, ...]:
    """Summarize what an analysis found, and what to do next.

    What is stated stands in a line a topic, with the layers of which it is stated; what
    is not, in one line for missing evidence and one for missing data, likewise.
    Figures that would make a line longer than :data:`LONG` are left to the table of
    claims.  A line whose data the analysis lacks is left out, but for the share of
    communication, whose absence has a reason.

    Parameters
    ----------
    analysis
        With the parts :data:`moetraffic.analysis.engine.SUMMARY_PARTS` or more.
    file
        Name of the trace in the commands that are recommended.
    options
        Options of the selection, which these commands repeat: "--iterations 9:99".

    Returns
    -------
    tuple of Line
        At most eight.
    """
    if not analysis.claims:
        return ()
    return (
        _data(analysis),
        *(line for topic in TOPICS for line in _topic(analysis, topic)),
        *_communication(analysis),
        *_not_shown(analysis),
        _next(analysis, file, options),
    )


def sentences(
    analysis: Analysis, *, file: str = "run.h5", options: str = ""
) -> list[str]:
    """Format the lines of :func:`answer`, or why there are none.

    The reasons are the notes of the analysis.
    """
    lines = answer(analysis, file=file, options=options)
    steps = [str(one) for one in lines if one.basis == STEP]
    if analysis.unnamed and not steps:
        steps = [str(_next(analysis, file, options))]
    return conclusions(analysis) + steps


def conclusions(analysis: Analysis) -> list[str]:
    """Format the lines of :func:`answer` without the commands that come next."""
    if not analysis.claims:
        data = str(_data(analysis))
        if analysis.unnamed:
            return [data]
        why = "; ".join(note for note in analysis.notes if note not in data) or (
            "claims need iterations with complete records of an expert exchange, or "
            "bursts of a rank with known times"
        )
        return [data, f"Claims: none. {why[:1].upper()}{why[1:]}."]
    return [str(line) for line in answer(analysis) if line.basis != STEP]


def _data(analysis: Analysis) -> Line:
    every = analysis.exchanges
    lacks = f"incomplete: {analysis.omitted}; " if analysis.omitted else ""
    if not every:
        unrouted = (note for note in analysis.notes if "no demand" in note)
        text = next(unrouted, "no expert exchange")
        if analysis.unnamed:
            text = (
                f"expert exchanges are not named: layer and phase of "
                f"{analysis.unnamed:,} all-to-alls, some of unequal parts, are unknown "
                "(reason: moetraffic info)"
            )
        return Line(topic="Data", text=lacks + text, basis="data")
    number = sorted({len(e.iterations) for e in every})
    left = max(e.left_out for e in every)
    groups = len({e.group for e in every})
    of_cv = ("imbalanced", "skewed")
    noisy = [e for e in every if "demand" not in e.unchanging]
    corrected = any(c.stated and c.name in of_cv for e in noisy for c in e.claims)
    text = (
        f"{lacks}{layers_of([e.layer for e in every])}"
        + (f" on {groups} groups" if groups > 1 else "")
        + f"; {range_of(number, ',.0f')} iteration{'s' * (number != [1])}"
        + (f", {left:,} left out as incomplete" if left else "")
        + (
            ""
            if _known_experts(analysis)
            else f"; loads of experts unknown: {_of_ranks(every)}"
        )
        + (f"; {drops_of(figures)}" if (figures := known_figures(every)) else "")
        + f"; each statement is tested against chance (p < {LEVEL:g}) unless measured"
        + "; CVs are corrected for sampling noise" * corrected
        + "".join(f"; {note}" for note in about_data(analysis.notes))
    )
    return Line(topic="Data", text=text, basis="data")


def _known_experts(analysis: Analysis) -> bool:
    """Whether routing was recorded, so that loads are of experts."""
    subjects = (s for e in analysis.exchanges for s in e.subjects)
    names = {subject.name for subject in subjects}
    return not names or "expert_load" in names


def _of_ranks(exchanges: Sequence[ExchangeAnalysis]) -> str:
    """Name the load of ranks whose experts are unknown."""
    number = sorted({len(e.ranks) for e in exchanges})
    return f"bytes received by {range_of(number, ',.0f')} ranks"


def _subject(analysis: Analysis) -> str:
    """Name what claims are about, before a list of them."""
    known = _known_experts(analysis)
    return "expert load: " if known else f"{_of_ranks(analysis.exchanges)}: "


def _topic(analysis: Analysis, topic: str) -> list[Line]:
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
    varied = _varied(every) if topic == "Movement" else []
    at = int("moves" in made)  # beside it, or in its place
    items[at:at] = varied
    if not items + measured:
        return []
    named = topic == "Skew" or not _known_experts(analysis)
    of = _subject(analysis) if items and named else ""
    width = SKEW if topic == "Skew" else LONG
    text = of + _fitted(f"{topic}: {of}", items + measured, width=width)
    return [Line(topic=topic, text=text, basis=basis)]


def _measured(analysis: Analysis) -> list[tuple[str, str]]:
    """State the largest load of the run, and the capacity factor that it needs."""
    figures = known_figures(analysis.exchanges) if _known_experts(analysis) else []
    sent = any(UNCOUNTED in note for note in analysis.notes)
    return [load_of(figures), capacity_of(figures, sent=sent)] if figures else []


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


def _fitted(
    topic: str,
    items: Sequence[tuple[str, str]],
    between: str = "; ",
    width: int = WIDTH,
) -> str:
    """Join items, each long or, from the last one on, short, to fit into a line."""
    texts = [long for long, _ in items]
    for at in reversed(range(len(items))):
        if len(f"{topic}: {between.join(texts)}.") <= width:
            break
        texts[at] = items[at][1]
    return between.join(texts)


def _stated(
    name: str,
    made: Mapping[str, Sequence[tuple[ExchangeAnalysis, Claim]]],
    exchanges: Sequence[ExchangeAnalysis],
) -> tuple[str, str]:
    """State a claim with its figure and layers, and without its figure.

    Of forecasts these are of the nearest horizon.  Their horizon is never left out.
    """
    first, ahead = next(iter(made)), min(c.horizon for _, c in made[name])
    near = [(e, c) for e, c in made[name] if c.horizon == ahead]
    where = some_layers([e for e, _ in near], exchanges)
    reach, rest = reach_of(name, made[name], exchanges)
    if name != first:
        reach = reach.replace(" iterations", "").replace(" iteration", "")
    full = name + since(near, exchanges) + reach + rest
    left = [c for e, c in near if name != "converged" or not constant(e, c)]
    figure = figure_of(left) if left else ""
    if name == "converged":
        figure = level_of(figure, near, made.get("periodic", ()), exchanges)
    if name != first == "predictable":
        figure = figure.removeprefix("MSE ").replace(PAST_MEAN, "it")
    details = joined(figure, where)
    kept = details if name == PERSISTENCE else where
    return detailed(full, details), detailed(full, kept)


def _not_shown(analysis: Analysis) -> list[Line]:
    """Name claims with the layers without evidence, and those that lack data."""
    every = analysis.exchanges
    no_evidence, others = list[tuple[str, str]](), list[tuple[str, str]]()
    untested = list[tuple[str, str]]()
    few = list[tuple[str, str, list[Claim], str]]()
    for name in (name for names in TOPICS.values() for name in names):
        # a demand that is the same in every iteration needs no forecast
        some = [e for e in every if name != ALWAYS or "demand" not in e.unchanging]
        claims = [(e, c) for e in some for c in e.claims if c.name == name]
        stated = any(c.stated for _, c in claims)
        asked = sorted({c.horizon for _, c in claims})
        late = [(e, c) for e, c in claims if c.horizon == asked[-1]]
        claims = [(e, c) for e, c in claims if c.horizon == asked[0]]
        if skipped := [(e, c.untested) for e, c in claims if c.untested]:
            where = some_layers([e for e, _ in skipped], every)
            brief = counted(name, [e for e, _ in skipped], every)
            untested.append((detailed(name, joined(skipped[0][1], where)), brief))
        short = [(e, c) for e, c in claims if c.outcome is Outcome.NOT_ENOUGH_DATA]
        tested = [e for e, c in claims if _without_evidence(c)]
        if tested:
            known = name == ALWAYS and not stated
            size = figure_of([c for _, c in claims]) if known else ""
            size = size and f"cells, not port sums: {size}"
            size = size or BELOW * (name == "predictable" and not stated)
            inside = joined(size, some_layers(tested, every))
            both = claims if stated else claims + late
            what = named_ahead(name, both, Outcome.NO_EVIDENCE, asked)
            what += " load" * (name == "periodic")  # not the bursts in a step
            more = "" if stated else other_horizons(name, every)
            absent = others if name == ALWAYS else no_evidence
            absent.append((detailed(what + more, inside), counted(what, tested, every)))
        short = short or [
            (e, c) for e, c in late if c.outcome is Outcome.NOT_ENOUGH_DATA
        ]
        if short:
            where = some_layers([e for e, _ in short], every)
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
        other, width = "not tested: ", WIDTH // (2 if few else 1)
        other += _fitted(f"{UNDECIDED}: not tested", untested, ", ", width)
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
        undecided = f"{reason}: {_fitted(before, items, ', ', width=LONG)}{rest}"
    of = _subject(analysis) if no_evidence else ""
    least = len(of) + sum(len(brief) + 2 for _, brief in no_evidence)
    rest = _fitted(NOT_SHOWN, others, ", ", width=LONG - least)
    room = LONG - len(rest) - 2
    of += _fitted(f"{NOT_SHOWN}: {of}", no_evidence, ", ", width=room)
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
    text = figure.format(range_of(known, form))
    if claims[0].name == "hot set retained":
        text += claims[0].unit.removeprefix("share of ")
    if claims[0].unit == "iteration" and min(known) < max(known):
        text += ", depending on the layer"
    chance = [claim.chance for claim in claims if np.isfinite(claim.chance)]
    return f"{text}, {range_of(chance, form)} by chance" if chance else text


def _communication(analysis: Analysis) -> list[Line]:
    """State the share of a step inside collectives, and the rhythm of its bursts."""
    items = [
        f"{claim.about} {claim.statement.removeprefix('they ')}"
        for claim in analysis.beats.claims
        if claim.stated
    ]
    basis = "claims" if items else "figure"
    spent = analysis.occupation
    if spent is not None and spent.known.any():
        items.insert(0, inside_collectives(spent))
    elif why := [note for note in analysis.notes if "time-breakdown" in note]:
        items.append(f"unavailable: {why[0].partition(': ')[2]}")
    line = Line(topic="Communication", text="; ".join(items), basis=basis)
    return [line] if items else []


def _remedy(analysis: Analysis) -> str:
    """State what makes layers, experts or tokens known; "" where nothing does."""
    untested = [[c.untested for c in e.claims] for e in analysis.exchanges]
    if _known_experts(analysis) and not analysis.unnamed:
        lacks_k = untested and all(NO_TOKENS in each for each in untested)
        where = "Recorder(k=K), moetraffic run --k K"
        if analysis.origin == "imported":
            where = "Trace.from_arrays(k=K), import --k K"
        return f"give k, experts per token ({where})" if lacks_k else ""
    if analysis.origin == "replayed":
        return ""  # a replay has no router
    if analysis.origin == "imported":
        how = (
            "again with --experts E --k K" if analysis.unnamed else "a table of tokens"
        )
        return f"import {how} (moetraffic import --help)"
    return "register your router (python -m pydoc moetraffic.capture.router)"


def _next(analysis: Analysis, file: str, options: str) -> Line:
    """Recommend the next commands; a long path is named once."""
    first = f"{remedy}; " if (remedy := _remedy(analysis)) else ""
    verbs = {"analyze": "each layer"} if analysis.exchanges else {}
    if any(len(e.ranks) > 1 for e in analysis.exchanges):
        verbs["evaluate"] = "circuits"
    verbs["report"] = "charts"
    texts, asked = list[str](), f" {options}" * bool(options)
    width = LONG if options else WIDTH
    path = quote(file)
    names = (path, ""), ('"$T"', f"T={path}; ")
    for described, (name, where) in product((True, False), names):
        commands = (
            f"moetraffic {verb} {name}{asked}"
            + " --tables" * (verb == "analyze")
            + f" ({what})" * described
            for verb, what in verbs.items()
        )
        texts.append(first + where + "; ".join(commands))
    fits = (text for text in texts if len(f"Next: {text}") <= width)
    return Line(topic="Next", text=next(fits, min(texts, key=len)), basis=STEP)
