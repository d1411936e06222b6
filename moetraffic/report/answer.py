"""Summarize an analysis in at most eight lines, of claims and of marked figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moetraffic.analysis import Analysis, ExchangeAnalysis
from moetraffic.analysis.claim import LEVEL, Claim, Outcome, claim_of
from moetraffic.analysis.exchange import BEYOND
from moetraffic.units import rank_span

REDUCED = "MSE reduced by"
"""Name of a figure that is negative where the MSE is increased."""

TOPICS = {
    "Skew": {"skewed": ("CV of the mean load", ".2f")}
    | {"hot set retained": ("share", ".0%")}
    | {"collapsed": ("share", ".0%"), "co-activated": ("lift", ".2f")},
    "Movement": {"moves": ("", ".3g"), "converged": ("level since iteration", ",.0f")}
    | {"level change": ("at iteration", ",.0f"), "trend": ("by", ".1%")}
    | {"mean-reverting": ("half-life", ".3g")},
    "Predictability": {"predictable": (REDUCED, ".0%")}
    | {"better than persistence": (REDUCED, ".0%")}
    | {"matrix predictable": (REDUCED, ".0%")},
    "Regularity": {"periodic": ("period", ".4g")},
}
"""Claims about the load by line, with name and format of the figure of each."""

CONSEQUENCES = {
    "converged": "circuits for the mean load",
    "matrix predictable": "circuits from forecasts",
    "hot set retained": "placement of hot experts by past load",
}
"""What is possible if claims about the load are stated."""

ALWAYS = "matrix predictable"
"""Claim whose figure stands there even if it is not stated: schedulers act on it."""

LONGEST = 200
"""Characters of a line of claims, above which it is shortened."""

SHORT = 24
"""Characters of a list of layers, above which they are counted."""

STEP = "recommendation"
"""Basis of a line that names commands, not conclusions."""

QUANTILE = 0.99
"""Share of the iterations in which a capacity factor leaves no token out."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """Line of a summary."""

    topic: str
    text: str
    basis: str  # "claims", "figure", "data" or "recommendation"

    def __str__(self) -> str:
        mark = " (figure, not a claim)" if self.basis == "figure" else ""
        return f"{self.topic}{mark}: {self.text}."


def answer(analysis: Analysis, *, file: str = "run.h5") -> tuple[Line, ...]:
    """Summarize what an analysis found, and what to do next.

    Every layer is covered: layers with the same outcome stand together.  A line whose
    data the analysis lacks is left out, but for the share of communication, whose
    absence has a reason.

    Parameters
    ----------
    analysis
        With the parts :data:`moetraffic.analysis.engine.SUMMARY_PARTS` or more.
    file
        Name of the trace in the commands that are recommended.

    Returns
    -------
    tuple of Line
        At most eight.
    """
    lines = [_data(analysis)]
    for topic, names in TOPICS.items():
        if topic == "Regularity":
            clauses = _regularity(analysis)
        else:
            every = (_clause(analysis.exchanges, name) for name in names)
            clauses = list(filter(None, every))
        if clauses:
            text = "; ".join(clauses)
            if len(text) > LONGEST and topic != "Regularity":
                text = _shortened(analysis.exchanges, list(names))
            if topic == "Predictability":
                of = "expert load" if _known_experts(analysis) else "bytes received"
                text = f"{of}, baseline the mean of the past: {text}"
            lines.append(Line(topic=topic, text=text, basis="claims"))
    if not analysis.claims:
        return ()
    return (
        *lines,
        *_communication(analysis),
        *_meaning(analysis),
        _next(analysis, file),
    )


def sentences(analysis: Analysis, *, file: str = "run.h5") -> list[str]:
    """Format the lines of :func:`answer`, or why there are none.

    The reasons are the notes of the analysis.
    """
    steps = [str(one) for one in answer(analysis, file=file) if one.basis == STEP]
    return conclusions(analysis) + steps


def conclusions(analysis: Analysis) -> list[str]:
    """Format the lines of :func:`answer` without the commands that come next."""
    if not analysis.claims:
        why = "; ".join(analysis.notes) or (
            "claims need iterations with complete records of an expert exchange, or "
            "bursts of a rank with known times"
        )
        return [str(_data(analysis)), f"Claims: none. {why[:1].upper()}{why[1:]}."]
    return [str(line) for line in answer(analysis) if line.basis != STEP]


def _data(analysis: Analysis) -> Line:
    every = analysis.exchanges
    if not every:
        return Line(topic="Data", text="no expert exchange", basis="data")
    number = sorted({len(e.iterations) for e in every})
    left = max(e.left_out for e in every)
    groups = len({e.group for e in every})
    text = (
        f"{_layers([e.layer for e in every])}"
        + (f" on {groups} groups" if groups > 1 else "")
        + f", {_range(number, ',.0f')} iterations"
        + (f", {left:,} left out as incomplete" if left else "")
        + ("" if _known_experts(analysis) else "; experts unknown, load: bytes by rank")
        + f"; a claim is stated if p < {LEVEL:g}"
        + "".join(f"; {note}" for note in analysis.notes if BEYOND in note)
    )
    return Line(topic="Data", text=text, basis="data")


def _known_experts(analysis: Analysis) -> bool:
    """Whether routing was recorded, so that loads are of experts."""
    subjects = (s for e in analysis.exchanges for s in e.subjects)
    names = {subject.name for subject in subjects}
    return not names or "expert_load" in names


def _clause(exchanges: Sequence[ExchangeAnalysis], name: str) -> str:
    """State the outcomes of a claim about all exchanges; "" if it was not tested.

    Exchanges with the same outcomes stand together.  A claim about forecasts is tested
    once for each horizon.
    """
    alike: dict[tuple[Outcome, ...], list[tuple[ExchangeAnalysis, list[Claim]]]] = {}
    for exchange in exchanges:
        claims = [claim for claim in exchange.claims if claim.name == name]
        if claims:
            key = tuple(claim.outcome for claim in claims)
            alike.setdefault(key, []).append((exchange, claims))
    parts = []
    for outcomes, found in alike.items():
        where = ""
        if len(found) < len(exchanges):
            where = _where([e for e, _ in found], exchanges)
        for outcome in dict.fromkeys(outcomes):
            at = [i for i, each in enumerate(outcomes) if each is outcome]
            chosen = [[claims[i] for i in at] for _, claims in found]
            text = _outcome([c for claims in chosen for c in claims])
            ahead = _ahead(chosen[0]) if len(outcomes) > 1 else ""
            parts.append(f"{where}{text}{ahead}")
    return "; ".join(parts)


def _shortened(exchanges: Sequence[ExchangeAnalysis], names: Sequence[str]) -> str:
    """State which of some claims are stated, of which layers, and which are not.

    p-values and the figures of each layer are in the table of the claims.
    """
    stated, not_shown, lacking, untested = [], [], [], []
    for name in names:
        claims = [(e, c) for e in exchanges for c in e.claims if c.name == name]
        by_outcome: dict[Outcome, list[ExchangeAnalysis]] = {}
        for exchange, claim in claims:
            by_outcome.setdefault(claim.outcome, []).append(exchange)
        if Outcome.STATED in by_outcome:
            made = [(e, c) for e, c in claims if c.stated]
            where = _horizons(made, exchanges) or _some_layers(
                [exchange for exchange, _ in made], exchanges
            )
            details = [figure_of([claim for _, claim in made]), where]
            inside = "; ".join(filter(None, details))
            stated.append(f"{name} ({inside})" if inside else name)
            continue
        if claims and all(claim.untested for _, claim in claims):
            untested.append(f'"{name}"')
            continue
        if found := by_outcome.get(Outcome.NO_EVIDENCE):
            size = figure_of([c for _, c in claims]) if name == ALWAYS else ""
            inside = ", ".join(filter(None, [size, _some_layers(found, exchanges)]))
            not_shown.append(f'"{name}"{f" ({inside})" if inside else ""}')
        if found := by_outcome.get(Outcome.NOT_ENOUGH_DATA):
            where = _some_layers(found, exchanges)
            lacking.append(f'"{name}"{f" ({where})" if where else ""}')
    parts = (
        ", ".join(stated),
        f"no evidence of {', '.join(not_shown)}" if not_shown else "",
        f"not enough data for {', '.join(lacking)}" if lacking else "",
        f"not tested: {', '.join(untested)}" if untested else "",
    )
    return "; ".join(filter(None, parts))


def _horizons(
    made: Sequence[tuple[ExchangeAnalysis, Claim]],
    exchanges: Sequence[ExchangeAnalysis],
) -> str:
    """Name the horizons of claims about forecasts, with the layers of each.

    "" of other claims.  Horizons of the same layers stand together.
    """
    by_horizon: dict[int, list[ExchangeAnalysis]] = {}
    for exchange, claim in made:
        end = claim.about.rpartition(", ")[2]
        if end.endswith(" ahead"):
            by_horizon.setdefault(int(end.split()[0]), []).append(exchange)
    same: dict[str, list[int]] = {}
    for horizon in sorted(by_horizon):
        where = _some_layers(by_horizon[horizon], exchanges)
        same.setdefault(where, []).append(horizon)
    parts: list[str] = []
    for where, ahead in same.items():
        unit = f" iteration{'s' * (ahead != [1])}" * (not parts)
        text = f"{', '.join(map(str, ahead))}{unit} ahead"
        parts.append(f"{text} in {where}" if where else text)
    return "; ".join(parts)


def _some_layers(
    some: Sequence[ExchangeAnalysis], exchanges: Sequence[ExchangeAnalysis]
) -> str:
    """Name some layers, or count them where there are many; "" for all."""
    chosen = {(e.layer, e.group) for e in some}
    if len(chosen) == len(exchanges):
        return ""
    where = _where([e for e in exchanges if (e.layer, e.group) in chosen], exchanges)
    if len(where) <= SHORT:
        return where[:-2]
    every = {e.layer for e in exchanges}
    what = "layers" if len(every) == len(exchanges) else "layers and groups"
    return f"{len(chosen)} of {len(exchanges)} {what}"


def _ahead(claims: Sequence[Claim]) -> str:
    """Name the horizons of claims, which end their subjects."""
    ends = [claim.about.rpartition(", ")[2] for claim in claims]
    numbers = ", ".join(end.partition(" ")[0] for end in ends)
    return f" {numbers} {ends[-1].partition(' ')[2]}"


def _outcome(claims: list[Claim]) -> str:
    """State the common outcome of claims of one name."""
    first = claims[0]
    if len(claims) == 1:
        return _alone(first)
    if first.outcome is Outcome.NOT_ENOUGH_DATA:
        needs = max(claim.needs for claim in claims)
        return f'not enough data for "{first.name}" (needs {needs:,})'
    bound = _p_value(claims)
    flags = list(dict.fromkeys(flag for claim in claims for flag in claim.flags))
    if first.untested:
        return f'"{first.name}" not tested ({first.untested})'
    if not first.stated:
        size = figure_of(claims) if first.name == ALWAYS else ""
        inside = ", ".join(filter(None, [size, bound, *flags]))
        return f'no evidence of "{first.name}"{f" ({inside})" if inside else ""}'
    size = figure_of(claims)
    inside = ", ".join(filter(None, [size, bound, *flags]))
    return f"{first.name}{f' ({inside})' if inside else ''}"


def figure_of(claims: Sequence[Claim]) -> str:
    """Format the range of the figures of claims of one name; "" if none is known."""
    known = [claim.figure for claim in claims if np.isfinite(claim.figure)]
    if not known:
        return ""
    named = {name: of for topic in TOPICS.values() for name, of in topic.items()}
    figure, form = named.get(claims[0].name, ("", ".3g"))
    unit = "" if "iteration" in figure else claims[0].unit
    if figure == REDUCED and min(known) < 0:
        return f"MSE changed by {_range([-value for value in known], '+.0%')}"
    return " ".join(filter(None, (figure, _range(known, form), unit)))


def _alone(claim: Claim) -> str:
    """State one claim, without its subject and its null hypothesis."""
    if claim.outcome is Outcome.NOT_ENOUGH_DATA:
        has = f"needs {claim.needs:,}, has {claim.used:,}"
        return f'not enough data for "{claim.name}" ({has})'
    if claim.untested:
        return f'"{claim.name}" not tested ({claim.untested})'
    size = figure_of([claim]) if claim.name == ALWAYS and not claim.stated else ""
    inside = ", ".join(filter(None, [size, _p_value([claim]), *claim.flags]))
    what = claim.statement if claim.stated else f'no evidence of "{claim.name}"'
    return f"{what}{f' ({inside})' if inside else ''}"


def _regularity(analysis: Analysis) -> list[str]:
    """State the claims "periodic" of load and bursts, with their null hypotheses."""
    by_outcome: dict[Outcome, list[tuple[ExchangeAnalysis, Claim]]] = {}
    for exchange in analysis.exchanges:
        if claim := claim_of(exchange.claims, "periodic"):
            by_outcome.setdefault(claim.outcome, []).append((exchange, claim))
    parts = []
    for found in by_outcome.values():
        exchanges, claims = zip(*found, strict=True)
        every = len(by_outcome) == 1
        where = "load: " if every else _where(exchanges, analysis.exchanges)
        parts.append(where + _periodic(claims))
    return parts + [f"{c.about}: {_periodic([c])}" for c in analysis.beats.claims]


def _periodic(claims: Sequence[Claim]) -> str:
    """State the common outcome of claims "periodic"."""
    first = claims[0]
    if first.outcome is Outcome.NOT_ENOUGH_DATA:
        needs = max(claim.needs for claim in claims)
        return f'not enough data for "{first.name}" (needs {needs:,})'
    if not first.stated:
        return f'no evidence of "{first.name}"'
    text = f"{first.name} ({figure_of(claims)}"
    if len(claims) == 1:
        text = f"{first.name} ({re.sub('^(it|they) repeats? ', '', first.statement)}"
    return f"{text}, {_p_value(claims)}; null: {first.null})"


def _p_value(claims: Sequence[Claim]) -> str:
    """Format the range of p-values; "" if none is known.

    A claim that is not stated although its null hypothesis is rejected fails another
    condition, which its flags name: its p-value would read as evidence.
    """
    known = [c.p for c in claims if np.isfinite(c.p) and (c.stated or c.p >= LEVEL)]
    if not known:
        return ""
    if max(known) < 0.001:
        return "p < 0.001"
    return f"p = {_range(known, '.2g')}"


def _range(values: Sequence[float], form: str) -> str:
    """Format the smallest and the largest of some values."""
    ends = dict.fromkeys(format(v, form) for v in (min(values), max(values)))
    return " to ".join(ends)


def _where(
    some: Sequence[ExchangeAnalysis], exchanges: Sequence[ExchangeAnalysis]
) -> str:
    """Name the layers of some exchanges, with ranks where groups of a layer differ."""
    chosen = {(e.layer, e.group) for e in some}
    whole, parts = [], []
    for layer in dict.fromkeys(e.layer for e in some):
        of_layer = [e for e in exchanges if e.layer == layer]
        if all((layer, e.group) in chosen for e in of_layer):
            whole.append(layer)
        else:
            ranks = (rank_span(e.ranks) for e in some if e.layer == layer)
            parts.append(f"layer {layer} on ranks {', '.join(ranks)}")
    return ", ".join([*([_layers(whole)] if whole else []), *parts]) + ": "


def _layers(layers: Sequence[int]) -> str:
    numbers = sorted(set(layers))
    return f"layer{'s' * (len(numbers) > 1)} {rank_span(numbers)}"


def _communication(analysis: Analysis) -> list[Line]:
    topic = "Communication"
    spent = analysis.occupation
    if spent is None or not spent.known.any():
        why = [n for n in analysis.notes if "occupation" in n]
        if not why:
            return []
        reason = why[0].partition(": ")[2]
        return [Line(topic=topic, text=f"unavailable: {reason}", basis="figure")]
    shares = spent.communication_fraction
    alone = spent.shares[:, 1]
    known = np.isfinite(shares)
    text = (
        f"{_range(shares[known].tolist(), '.1%')} of a rank's step, "
        + (
            "none of it"
            if np.array_equal(shares[known], alone[known])
            else _range(alone[known].tolist(), ".1%") + " not"
        )
        + " overlapped with compute, compute inferred from gaps between collectives"
    )
    return [Line(topic=topic, text=text, basis="figure")]


def _meaning(analysis: Analysis) -> list[Line]:
    """Derive what the claims mean for circuits, placement and capacity factor."""
    every = analysis.exchanges
    possible, lacking = [], dict[str, list[str]]()
    for name, what in CONSEQUENCES.items():
        if "experts" in what and not _known_experts(analysis):
            continue
        claims = [(e, c) for e in every for c in e.claims if c.name == name]
        outcomes = {claim.outcome for _, claim in claims}
        if Outcome.STATED in outcomes:
            some = _some_layers([e for e, c in claims if c.stated], every)
            possible.append(f"{what}{f' ({some})' if some else ''}")
        elif outcomes:
            few = outcomes == {Outcome.NOT_ENOUGH_DATA}
            why = "not enough data for: " if few else "no evidence for: "
            lacking.setdefault(why, []).append(what)
    parts = possible + [why + ", ".join(what) for why, what in lacking.items()]
    peaks = [
        e.peaks for e in every if e.peaks is not None and np.isfinite(e.peaks).any()
    ]
    if peaks and any(s.name == "expert_load" for e in every for s in e.subjects):
        most = [float(np.nanquantile(each, QUANTILE)) for each in peaks]
        parts.append(
            f"capacity factor {_range(most, '.2f')} ({QUANTILE:.0%} of iterations, "
            "figure)"
        )
    if not parts:
        return []
    return [Line(topic="Consequences", text="; ".join(parts), basis="claims")]


def _next(analysis: Analysis, file: str) -> Line:
    """Recommend the next commands."""
    lacking = [c for c in analysis.claims if c.outcome is Outcome.NOT_ENOUGH_DATA]
    steps = []
    if not _known_experts(analysis):
        steps.append("register your router to record experts (docs/own-run.md)")
    if lacking:
        names = ", ".join(dict.fromkeys(f'"{c.name}"' for c in lacking))
        steps.append(f"capture a longer run for {names}")
    steps.append(f"moetraffic analyze {file} --tables for all figures")
    steps.append(f"moetraffic report {file} for charts")
    return Line(topic="Next", text="; ".join(steps), basis=STEP)
