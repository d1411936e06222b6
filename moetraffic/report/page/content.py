"""A run as sections of a page: one reading of the trace, all its figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from moetraffic.analysis import Analysis, Comparison, analyze, compare
from moetraffic.analysis.engine import Tick, in_threads
from moetraffic.analysis.exchange import OF, sources
from moetraffic.errors import AnalysisError
from moetraffic.fabric.named import Network
from moetraffic.trace import Trace

from . import (
    convergence,
    fabric,
    forecasts,
    highlights,
    packets,
    rhythm,
    side_by_side,
    skew,
)
from .chart import Chart, Listed, Missing, Section
from .matrices import MOST_BYTES, Kept, matrices


@dataclass(frozen=True, kw_only=True)
class Content:
    """What stands on a page."""

    title: str
    tiles: tuple[highlights.Tile, ...]
    lines: tuple[str, ...]  # the summary in words
    notes: tuple[str, ...]  # what could not be computed, and why
    sections: tuple[Section, ...]


def content(
    trace: Trace,
    network: Network,
    *,
    replay: Trace | None = None,
    other: Trace | None = None,
    title: str = "",
    layers: Sequence[int] | None = None,
    phase: str = "dispatch",
    iterations: range | None = None,
    threads: int = 2,
    most_bytes: int = MOST_BYTES,
    tick: Tick | None = None,
) -> Content:
    """Compute everything that a page shows of a run.

    Parameters
    ----------
    trace
        Any.
    network
        Whose links the traffic is put on.
    replay
        The trace of a replay of the same run; None: none was made.
    other
        A run to compare with; None: none.
    title
        Headline; "": the file's name.
    layers, phase, iterations, threads
        As :func:`moetraffic.analysis.analyze` has them.
    most_bytes
        Of all matrices that the page holds: more, and iterations are left out.
    tick
        Told of every window that was read.

    Returns
    -------
    Content

    Raises
    ------
    AnalysisError, TraceError
        As :func:`moetraffic.analysis.analyze` raises them.
    """
    asked: dict[str, Any] = {"layers": layers, "phase": phase, "iterations": iterations}
    kept = Kept(sources(trace, [], of=OF, **asked), most_bytes=most_bytes)
    found = analyze(
        trace,
        **asked,
        threads=threads,
        mapper=in_threads(trace, threads, watch=kept),
        tick=tick,
    )
    sections = [
        _summary(trace, found),
        *_traffic(trace, found, kept, phase),
        _time(trace, found),
        _future(found),
        _network(trace, found, kept, network),
        _replay(trace, replay),
        _comparison(trace, other),
        Section(
            key="about",
            title="About",
            about="",
            parts=(highlights.about(trace, {}),),
        ),
    ]
    return Content(
        title=title or trace.name.rsplit("/", 1)[-1],
        tiles=tuple(highlights.tiles(trace, found)),
        lines=tuple(highlights.run_in_words(trace, found)),
        notes=found.notes,
        sections=tuple(sections),
    )


def _summary(trace: Trace, found: Analysis) -> Section:
    parts: tuple[Listed, ...] = (highlights.by_layer(found),) if found.exchanges else ()
    return Section(key="summary", title="Summary", about="", parts=parts)


def _traffic(
    trace: Trace, found: Analysis, kept: Kept, phase: str
) -> tuple[Section, ...]:
    shown = matrices(trace, kept, phase=phase)
    why = "the trace shows no routing and no expert exchange whose bytes are known"
    return (
        Section(
            key="traffic",
            title="Matrices",
            about="Move the slider through the run; choose the layer, demand or wire, "
            "and the phase.",
            parts=(shown or Missing(title="Who sends whom how much", reason=why),),
        ),
        Section(
            key="skew",
            title="Evenness",
            about="What stands out of the gray band is more than chance makes of a "
            "perfectly balanced gate.",
            parts=(skew.curves(found), skew.loads(found, kept)),
        ),
    )


def _time(trace: Trace, found: Analysis) -> Section:
    return Section(
        key="rhythm",
        title="Rhythm",
        about="When the network is used, and how regularly.",
        parts=(
            rhythm.timeline(trace, found),
            rhythm.spectrum(trace, found),
            rhythm.beats(found),
            rhythm.occupation(found),
        ),
    )


def _future(found: Analysis) -> Section:
    return Section(
        key="forecast",
        title="Predictability and convergence",
        about="How far ahead a scheduler can count on the traffic, and whether the run "
        "has come to rest.",
        parts=(
            forecasts.horizons(found),
            forecasts.within(found),
            convergence.convergence(found),
        ),
    )


def _network(trace: Trace, found: Analysis, kept: Kept, network: Network) -> Section:
    return Section(
        key="network",
        title="On a network",
        about="How complex the traffic is to a network, what it does to the links of "
        "one, and how few circuits would serve it.",
        parts=(
            packets.complexity(found),
            *fabric.links(trace, network),
            fabric.circuits(found, kept, network),
        ),
    )


def _replay(trace: Trace, replay: Trace | None) -> Section:
    return _beside(
        trace,
        replay,
        key="replay",
        title="Replay fidelity",
        name="replay",
        about="The same calls, put on a network again: how long they take, and whether "
        "the same bytes go the same ways.",
        absent="no replayed trace was given: make one with moetraffic replay, and give "
        "it with --replay",
        order=(side_by_side.ratios, side_by_side.quantiles, side_by_side.distances),
    )


def _comparison(trace: Trace, other: Trace | None) -> Section:
    return _beside(
        trace,
        other,
        key="comparison",
        title="Comparison",
        name="second run",
        about="How far another run is from this one, and whether that is more than "
        "this run's distance to itself.",
        absent="no second trace was given: name one after the first",
        order=(side_by_side.distances, side_by_side.ratios, side_by_side.quantiles),
    )


Drawer = Callable[[Comparison, str, str, str], Chart | Missing]


def _beside(
    trace: Trace,
    other: Trace | None,
    *,
    key: str,
    title: str,
    name: str,
    about: str,
    absent: str,
    order: tuple[Drawer, ...],
) -> Section:
    if other is None:
        return Section(
            key=key, title=title, about="", parts=(Missing(title=title, reason=absent),)
        )
    try:
        found = compare(trace, other)
    except AnalysisError as error:
        lacking = Missing(title=title, reason=str(error))
        return Section(key=key, title=title, about=about, parts=(lacking,))
    parts = (
        side_by_side.who([("this run", trace), (name, other)]),
        *(draw(found, key, "this run", name) for draw in order),
        side_by_side.figures(found, key),
    )
    return Section(key=key, title=title, about=about, parts=parts)
