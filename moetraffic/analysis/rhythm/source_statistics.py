"""On-off statistics of a trace by phase, layer, rank and link.

Events of each traffic source (times as in
:mod:`moetraffic.analysis.times.call_times`):

=========  ==========================================================================
phase      an all-to-all of the phase, from its first member's begin to its last's end
layer      likewise of the layer, whatever the phase
exchange   likewise of a layer's phase
rank       the rank's part in an all-to-all; bytes that it sends to others
link       from the source's begin to the destination's end, if bytes pass at all
=========  ==========================================================================

The trace is read in blocks, twice where the busiest are chosen.  What is kept are three
numbers an event, of at most :data:`moetraffic.analysis.rhythm.sources.EVENTS` events of
a source: of very many sources only the busiest are told, and of a very long run a
stretch in its middle; notes say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moetraffic.analysis.claim import Claim
from moetraffic.analysis.times.call_times import (
    observed_steps,
    on_the_wire,
    sized,
    step_ns,
    step_starts,
)
from moetraffic.arrays import Int64
from moetraffic.errors import AnalysisError
from moetraffic.trace import Trace
from moetraffic.trace.clock import error_ns

from .on_off import Rhythm, rhythm
from .sources import bounded, chosen_keys, collected, own_clocks

SOURCES = ("phase", "layer", "exchange", "rank", "link")

NAMELESS = {
    "phase": "the trace records no phase of its all-to-alls",
    "layer": "the trace records no layer of its all-to-alls",
    "exchange": "the trace records no layer and phase of its all-to-alls",
}

NOT_SENT = "no rank sent another anything at a known time"

LINKS = 8

MOST = 64
"""Maximum number of ranks to analyze (about 0.1 s each)."""

BINS_A_STEP = 32
"""Bins per iteration of the on-off series."""


@dataclass(frozen=True, kw_only=True)
class SourceStatistics:
    """On-off statistics of one traffic source."""

    by: str  # one of SOURCES
    name: str  # "dispatch", "layer 3", "rank 2", "2 -> 5"
    ranks: tuple[int, ...]  # that it is of; (source, destination) of a link
    events: int
    amount: int  # bytes to others, -1 where they are not known
    rhythm: Rhythm
    clock_error_ns: int  # of the begins of events; 0 where only one clock is in it


@dataclass(frozen=True, kw_only=True)
class OnOffStatistics:
    """On-off statistics of all traffic sources of a trace."""

    about: str  # description of the selected all-to-alls
    found: tuple[
        SourceStatistics, ...
    ]  # in the order of SOURCES, then by name or bytes
    notes: tuple[str, ...]  # reasons for missing statistics
    claims: tuple[Claim, ...] = ()  # about the bursts of one rank


def beats(
    trace: Trace,
    *,
    by: Sequence[str] = ("phase", "layer", "rank"),
    layers: Sequence[int] | None = None,
    iterations: range | None = None,
    links: int = LINKS,
    most: int = MOST,
) -> OnOffStatistics:
    """Compute on-off statistics of each traffic source of a trace.

    Parameters
    ----------
    trace
        With times; without, the notes say why there is none.
    by
        Some of :data:`SOURCES`.
    layers
        MoE layers; None: all.
    iterations
        Training iterations; None: all.
    links
        How many, those with the most bytes.
    most
        Of ranks, those with the most bytes.

    Raises
    ------
    AnalysisError
        If there is no such source or layer.
    """
    chosen = trace.layers if layers is None else tuple(layers)
    validate_sources(by)
    if missing := sorted(set(chosen) - set(trace.layers)):
        raise AnalysisError(
            f"rhythms are of MoE layers, not of {missing}: this trace has "
            f"{list(trace.layers)}"
        )
    if trace.meta.virtual:
        why = (
            "no rhythm: the trace is virtual, one process stood for all ranks and "
            "nothing was sent"
        )
        return OnOffStatistics(about="", found=(), notes=(why,))
    found, about = on_the_wire(trace, chosen, iterations)
    notes: list[str] = []
    readable, reason = sized(trace, found)
    if reason:
        notes.append(
            f"{len(found) - len(readable)} all-to-alls have no bytes: {reason}"
        )
    weighs = not reason
    if not weighs and "link" in by:
        found, weighs = readable, True
        notes.append("rhythms are of the all-to-alls whose bytes are known")
    found = bounded(trace, found, notes)
    keys = chosen_keys(trace, found, by, links, most, weighs, notes)
    events = collected(trace, found, keys, weighs)
    told: list[SourceStatistics] = []
    error = error_ns(trace.clocks)
    for key in keys:
        parts = events.pop(key)
        if not parts:
            continue
        first, last, size = (np.concatenate([p[at] for p in parts]) for at in range(3))
        kind, ranks, name = key
        pace = rank_rhythm(
            trace,
            ranks[0],
            first,
            last,
            iterations=iterations,
            about=f"bursts of {name if kind in name else f'{kind} {name}'}",
        )
        across = error if len(ranks) > 1 or not own_clocks(trace, found) else 0
        if pace.burst_lengths and 2 * across > pace.burst_lengths.quantiles_ns[2]:
            notes.append(
                f"{kind} {name}: half of the bursts are shorter than twice the clocks' "
                f"error of {across} ns: their lengths, and the duty, are not known well"
            )
        told.append(
            SourceStatistics(
                by=kind,
                name=name,
                ranks=ranks,
                events=len(first),
                amount=int(size.sum()) if weighs else -1,
                rhythm=pace,
                clock_error_ns=across,
            )
        )
    if told or (len(found) and not keys):
        for kind in by:
            if not any(key[0] == kind for key in keys):
                notes.append(f"no rhythm by {kind}: {NAMELESS.get(kind, NOT_SENT)}")
    else:
        notes.append("no rhythm: the trace has no all-to-all whose times are known")
    alone = [one for one in told if one.by == "rank"] or told[:1]
    busiest = max(alone, key=lambda one: one.amount, default=None)
    return OnOffStatistics(
        about=about,
        found=tuple(told),
        notes=tuple(dict.fromkeys(notes)),
        claims=busiest.rhythm.claims if busiest else (),
    )


def rank_rhythm(
    trace: Trace,
    rank: int,
    first: Int64,
    last: Int64,
    *,
    iterations: range | None = None,
    marks: Int64 | None = None,
    about: str = "the bursts",
) -> Rhythm:
    """Compute on-off statistics of events, with the steps of a rank.

    Parameters
    ----------
    first, last
        ``[n]`` int64 ns of rank 0's clock.
    marks
        ``[m]`` int64 ns, where steps begin, if the events' times are no longer the
        trace's; None: the trace's.
    """
    observed, length = None, float("nan")
    if marks is None:
        observed = observed_steps(trace, rank, iterations)
        marks, length = step_starts(trace, rank, iterations), step_ns(trace, rank)
    elif len(marks) > 2:
        length = float(np.median(np.diff(marks)))
    return rhythm(
        first,
        last,
        observed=observed,
        marks=marks if len(marks) > 2 else None,
        bin_ns=length / BINS_A_STEP if length > 0 else None,
        about=about,
    )


def validate_sources(by: Sequence[str]) -> None:
    """Check names of sources.

    Raises
    ------
    AnalysisError
        If one is not among :data:`SOURCES`.
    """
    if unknown := sorted(set(by) - set(SOURCES)):
        raise AnalysisError(
            f"on-off statistics are of each {', '.join(SOURCES)}, not of "
            f"{', '.join(map(repr, unknown))}: choose among these"
        )
