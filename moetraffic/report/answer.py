"""Summarize an analysis in at most eight lines, of claims and of marked figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moetraffic.analysis import Analysis, ExchangeAnalysis
from moetraffic.analysis.claim import LEVEL, Claim, Outcome
from moetraffic.analysis.exchange import BEYOND
from moetraffic.units import rank_span

REDUCED = "MSE reduced by"
"""Name of a figure that is negative where the MSE is increased."""

PERSISTENCE = "better than persistence"
"""Claim whose baseline is persistence; that of other forecasts is the past mean."""

TOPICS = {
    "Skew": {"skewed": ("CV of the mean load", ".2f")}
    | {"hot set retained": ("share", ".0%")}
    | {"collapsed": ("share", ".0%"), "co-activated": ("lift", ".2f")},
    "Movement": {"moves": ("", ".3g"), "converged": ("level since iteration", ",.0f")}
    | {"level change": ("at iteration", ",.0f"), "trend": ("by", ".1%")}
    | {"periodic": ("period", ".4g"), "mean-reverting": ("half-life", ".3g")},
    "Predictability": {"predictable": (REDUCED, ".0%")}
    | {PERSISTENCE: (REDUCED, ".0%")}
    | {"matrix predictable": (REDUCED, ".0%")},
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
        return f"{self.topic}: {self.text}."


def answer(analysis: Analysis, *, file: str = "run.h5") -> tuple[Line, ...]:
    """Summarize what an analysis found, and what to do next.

    What is stated stands in a line a topic, with the layers of which it is stated;
    what is not, in one line.  A line whose data the analysis lacks is left out, but for
    the share of communication, whose absence has a reason.

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
    if not analysis.claims:
        return ()
    every = analysis.exchanges
    claims = (
        Line(topic=topic, text="; ".join(found), basis="claims")
        for topic, names in TOPICS.items()
        if (found := list(filter(None, (_stated(every, name) for name in names))))
    )
    return (
        _data(analysis),
        *claims,
        *_communication(analysis),
        *_meaning(analysis),
        *_not_shown(analysis),
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
        + f"; {_range(number, ',.0f')} iterations"
        + (f", {left:,} left out as incomplete" if left else "")
        + ("" if _known_experts(analysis) else "; experts unknown, load: bytes by rank")
        + f"; a claim is stated if p < {LEVEL:g}, a figure is not tested"
        + "".join(f"; {note}" for note in analysis.notes if BEYOND in note)
    )
    return Line(topic="Data", text=text, basis="data")


def _known_experts(analysis: Analysis) -> bool:
    """Whether routing was recorded, so that loads are of experts."""
    subjects = (s for e in analysis.exchanges for s in e.subjects)
    names = {subject.name for subject in subjects}
    return not names or "expert_load" in names


def _stated(exchanges: Sequence[ExchangeAnalysis], name: str) -> str:
    """State a claim, with its figure and layers; "" if no layer has it.

    Of claims about forecasts these are of the nearest horizon, and the longest one is
    named.
    """
    made = [(e, c) for e in exchanges for c in e.claims if c.name == name and c.stated]
    if not made:
        return ""
    ahead = sorted({_horizon(claim) for _, claim in made})
    near = [(e, c) for e, c in made if _horizon(c) == ahead[0]]
    when = f" {ahead[0]} iteration{'s' * (ahead[0] > 1)} ahead" if ahead[0] else ""
    details = (
        figure_of([c for _, c in near]),
        _some_layers([e for e, _ in near], exchanges),
    )
    inside = "; ".join(filter(None, details))
    far = [e for e, claim in made if _horizon(claim) == ahead[-1]]
    most = f" and at most {ahead[-1]}{_within(far, exchanges)}" if ahead[1:] else ""
    return _with(f"{name}{when}", inside) + most


def _horizon(claim: Claim) -> int:
    """Return the horizon of a claim about forecasts, which ends its subject, or 0."""
    end = claim.about.rpartition(", ")[2]
    return int(end.split()[0]) if end.endswith(" ahead") else 0


def _not_shown(analysis: Analysis) -> list[Line]:
    """Name the claims that are stated of no layer, and why."""
    every = analysis.exchanges
    no_evidence, untested = list[str](), dict[str, list[str]]()
    lacking = dict[int, list[str]]()
    for name in (name for names in TOPICS.values() for name in names):
        claims = [(e, c) for e in every for c in e.claims if c.name == name]
        near = min((_horizon(c) for _, c in claims), default=0)
        claims = [(e, c) for e, c in claims if _horizon(c) == near]
        if any(c.stated for e in every for c in e.claims if c.name == name):
            continue
        if claims and all(claim.untested for _, claim in claims):
            untested.setdefault(claims[0][1].untested, []).append(f'"{name}"')
            continue
        few = [(e, c) for e, c in claims if c.outcome is Outcome.NOT_ENOUGH_DATA]
        tested = [e for e, c in claims if c.outcome is Outcome.NO_EVIDENCE]
        if tested:
            size = figure_of([c for _, c in claims]) if name == ALWAYS else ""
            inside = "; ".join(filter(None, [size, _some_layers(tested, every)]))
            no_evidence.append(_with(f'"{name}"', inside))
        if few:
            where = _some_layers([e for e, _ in few], every)
            needs = max(claim.needs for _, claim in few)
            lacking.setdefault(needs, []).append(_with(f'"{name}"', where))
    for claim in analysis.beats.claims:
        name = f'"{claim.name}" of {claim.about}'
        if claim.outcome is Outcome.NOT_ENOUGH_DATA:
            lacking.setdefault(claim.needs, []).append(name)
        elif not claim.stated:
            no_evidence.append(name)
    parts = [f"no evidence of {', '.join(no_evidence)}"] if no_evidence else []
    parts += [
        f"not enough data{f' (needs {n:,})' if n else ''} for {', '.join(names)}"
        for n, names in sorted(lacking.items())
    ]
    parts += [f"not tested, as {why}: {', '.join(n)}" for why, n in untested.items()]
    text = "; ".join(parts)
    return [Line(topic="Not shown", text=text, basis="claims")] if parts else []


def _within(
    some: Sequence[ExchangeAnalysis], exchanges: Sequence[ExchangeAnalysis]
) -> str:
    where = _some_layers(some, exchanges)
    return f" in {where}" if where else ""


def _with(what: str, inside: str) -> str:
    return f"{what} ({inside})" if inside else what


def _some_layers(
    some: Sequence[ExchangeAnalysis], exchanges: Sequence[ExchangeAnalysis]
) -> str:
    """Name some layers, or count them where there are many; "" for all."""
    chosen = {(e.layer, e.group) for e in some}
    if len(chosen) == len(exchanges):
        return ""
    where = _where([e for e in exchanges if (e.layer, e.group) in chosen], exchanges)
    if len(where) <= SHORT:
        return where
    every = {e.layer for e in exchanges}
    what = "layers" if len(every) == len(exchanges) else "layers and groups"
    return f"{len(chosen)} of {len(exchanges)} {what}"


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
    if figure == REDUCED:
        persistence = claims[0].name == PERSISTENCE
        baseline = "persistence" if persistence else "the mean of the past"
        return f"MSE {_range(known, form)} below {baseline}"
    return " ".join(filter(None, (figure, _range(known, form), unit)))


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
    return ", ".join([*([_layers(whole)] if whole else []), *parts])


def _layers(layers: Sequence[int]) -> str:
    numbers = sorted(set(layers))
    return f"layer{'s' * (len(numbers) > 1)} {rank_span(numbers)}"


def _communication(analysis: Analysis) -> list[Line]:
    """State the share of communication in a step, and the rhythm of its bursts."""
    parts = [
        f"{claim.about} {claim.statement.removeprefix('they ')}"
        for claim in analysis.beats.claims
        if claim.stated
    ]
    basis = "claims" if parts else "figure"
    spent = analysis.occupation
    if spent is not None and spent.known.any():
        shares, alone = spent.communication_fraction, spent.shares[:, 1]
        known = np.isfinite(shares)
        parts.insert(
            0,
            f"{_range(shares[known].tolist(), '.1%')} of a rank's step (figure), "
            + (
                "none of it"
                if np.array_equal(shares[known], alone[known])
                else _range(alone[known].tolist(), ".1%") + " not"
            )
            + " overlapped with compute (inferred from gaps between collectives)",
        )
    elif why := [note for note in analysis.notes if "occupation" in note]:
        parts.append(f"unavailable: {why[0].partition(': ')[2]}")
    text = "; ".join(parts)
    return [Line(topic="Communication", text=text, basis=basis)] if parts else []


def _meaning(analysis: Analysis) -> list[Line]:
    """Derive what the claims mean for circuits, placement and capacity factor."""
    every = analysis.exchanges
    parts = []
    for name, what in CONSEQUENCES.items():
        if "experts" in what and not _known_experts(analysis):
            continue
        made = [e for e in every for c in e.claims if c.name == name and c.stated]
        if made:
            parts.append(_with(what, _some_layers(made, every)))
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
    few = any(c.outcome is Outcome.NOT_ENOUGH_DATA for c in analysis.claims)
    known = _known_experts(analysis)
    register = "register your router to record experts (docs/own-run.md)"
    steps = [*[register] * (not known), *["take a longer run"] * few]
    pays = any(
        c.stated and "circuits" in CONSEQUENCES.get(c.name, "") for c in analysis.claims
    )
    steps += [f"moetraffic evaluate {file} for what circuits gain"] * pays
    steps.append(f"moetraffic analyze {file} --tables for all figures")
    steps.append(f"moetraffic report {file} for charts")
    return Line(topic="Next", text="; ".join(steps), basis=STEP)
