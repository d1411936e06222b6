"""Summarize an analysis in at most eight topics, of claims and of marked figures."""

from __future__ import annotations

from moetraffic.analysis import Analysis
from moetraffic.analysis.claim import LEVEL

from .claim_words import TOPICS, known_experts, of_ranks
from .layer_lists import layers_of, range_of
from .line import STEP, Line
from .measured_words import about_data, drops_of, inside_collectives, known_figures
from .next_commands import next_line
from .stated_claims import stated_lines
from .unstated_claims import unstated_lines


def answer(
    analysis: Analysis, *, file: str = "run.h5", options: str = ""
) -> tuple[Line, ...]:
    """Summarize what an analysis found, and what to do next.

    What is stated stands in a line a topic, with the layers of which it is stated; what
    is not, in one line for missing evidence and one for missing data, likewise.
    Figures that would make a line longer than :data:`.line.LONG` are left to the table
    of claims.  A line whose data the analysis lacks is left out, but for the share of
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
        *(line for topic in TOPICS for line in stated_lines(analysis, topic)),
        *_communication(analysis),
        *unstated_lines(analysis),
        next_line(analysis, file, options),
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
        steps = [str(next_line(analysis, file, options))]
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
    figures = known_figures(every)
    notes = "".join(f"; {note}" for note in about_data(analysis))
    text = (
        f"{lacks}{layers_of([e.layer for e in every])}"
        + (f" on {groups} groups" if groups > 1 else "")
        + f"; {range_of(number, ',.0f')} iteration{'s' * (number != [1])}"
        + (f", {left:,} left out as incomplete" if left else "")
        + (f"; {analysis.gaps}" if analysis.gaps else "")
        + (
            ""
            if known_experts(analysis)
            else f"; loads of experts unknown: {of_ranks(every)}"
        )
        + (f"; {drops_of(figures)}" if figures else "")
        + f"; each statement is tested against chance (p < {LEVEL:g}) unless measured"
        + "; CVs are corrected for sampling noise" * corrected
        + notes
    )
    return Line(topic="Data", text=text, basis="data")


def _communication(analysis: Analysis) -> list[Line]:
    """State the share of a step inside collectives, and the rhythm of its bursts."""
    items = [
        f"{claim.about}, the only rank tested, {claim.statement.removeprefix('they ')}"
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
