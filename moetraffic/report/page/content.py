"""Compute the content of the HTML report in one pass over the trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from moetraffic.analysis import analyze, compare
from moetraffic.analysis.engine import Tick
from moetraffic.analysis.exchange import OF, sources
from moetraffic.analysis.mapper import in_threads
from moetraffic.errors import AnalysisError, MoetrafficError
from moetraffic.fabric.named import Network
from moetraffic.policies.evaluation import evaluate
from moetraffic.report import link_charts, policy_scores
from moetraffic.report.chart import Chart, Missing
from moetraffic.report.results import (
    comparison,
    predictability,
    rhythm,
    schedule,
    skew,
)
from moetraffic.report.results.complexity import complexities, complexity_chart
from moetraffic.tables import Table
from moetraffic.trace import Trace
from moetraffic.trace.iterations import iteration_range, layer_numbers

from . import highlights, side_by_side
from .matrices import MOST_BYTES, Kept, Matrices, matrices

POLICIES = ("packets", "rotation", "max-weight")
"""Policies of the report: without circuits, oblivious, and planned."""

Part = Chart | Missing | Table | Matrices

HEADLINE = ("evenness", "forecasts", "timeline", "bottleneck")
"""Charts of the summary: load, predictability, calls over time, and network."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """Section of the HTML report with its charts and tables."""

    key: str
    title: str
    about: str = ""  # guide to its charts
    parts: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True)
class Content:
    """Complete content of the HTML report of a run."""

    title: str
    headline: tuple[Chart, ...]  # drawn first; the sections have the others
    tiles: tuple[highlights.Tile, ...]
    lines: tuple[str, ...]  # sentences of the summary
    notes: tuple[str, ...]  # unavailable statistics, with reasons
    sections: tuple[Section, ...]


def content(
    trace: Trace,
    network: Network,
    *,
    replay: Trace | None = None,
    other: Trace | None = None,
    title: str = "",
    layers: Sequence[int] | str | int | None = None,
    phase: str = "dispatch",
    iterations: range | str | None = None,
    threads: int = 2,
    most_bytes: int = MOST_BYTES,
    tick: Tick | None = None,
) -> Content:
    """Compute all charts and tables of the HTML report of a run.

    Parameters
    ----------
    trace
        Any.
    network
        Network for the link loads.
    replay
        Trace of a replay of the same run.
    other
        Trace of a run to compare with.
    title
        Headline; "": the file's name.
    layers, phase, iterations, threads
        See :func:`moetraffic.analysis.analyze`.
    most_bytes
        Limit of all matrices in the page; above it, iterations are omitted.
    tick
        Called after each window of iterations that was read.

    Raises
    ------
    AnalysisError, TraceError
        See :func:`moetraffic.analysis.analyze`.
    """
    layers, iterations = layer_numbers(layers), iteration_range(iterations)
    asked: dict[str, Any] = {"layers": layers, "phase": phase, "iterations": iterations}
    part = trace
    if iterations is not None:
        every = trace.occurrences.iteration
        chosen = (every >= iterations.start) & (every < iterations.stop)
        part = trace.select(np.flatnonzero(chosen))
    kept = Kept(sources(trace, [], of=OF, **asked), most_bytes=most_bytes)
    found = analyze(
        trace,
        **asked,
        threads=threads,
        mapper=in_threads(trace, threads, watch=kept),
        tick=tick,
    )
    notes = found.notes
    shown = matrices(trace, kept, phase=phase)
    no_bytes = "the trace has no routing and no expert exchange whose bytes are known"
    no_times = rhythm.why_no_times(found)
    runs = {"this run": trace, "replay": replay, "second run": other}
    known = {name: run for name, run in runs.items() if run is not None}
    sections = (
        Section(
            key="summary",
            title="Summary",
            parts=(highlights.by_layer(found),) if found.exchanges else (),
        ),
        Section(
            key="traffic",
            title="Traffic matrices",
            about="The slider moves through the run; choose the layer, demand or wire "
            "bytes, and the phase.",
            parts=(shown or Missing(title="Traffic matrices", reason=no_bytes),),
        ),
        Section(
            key="skew",
            title="Load balance",
            about="How the load is shared by the experts of a layer.",
            parts=(
                skew.curves(found),
                skew.loads(
                    found,
                    {key: load for key, s in kept.seen.items() if (load := s.load())},
                ),
            ),
        ),
        Section(
            key="rhythm",
            title="On-off rhythm",
            about="When the network is used, and how regularly.",
            parts=(
                rhythm.timeline(part, reason=no_times),
                rhythm.spectrum(part, found),
                *rhythm.statistics_tables(found),
                rhythm.time_chart(
                    found.occupation,
                    reason="; ".join(n for n in notes if "time-breakdown" in n),
                ),
            ),
        ),
        Section(
            key="forecast",
            title="Predictability and convergence",
            about="How far ahead the traffic can be forecast, and whether it has "
            "converged.",
            parts=(
                predictability.horizons(found),
                predictability.within(found),
                predictability.convergence(found),
            ),
        ),
        Section(
            key="network",
            title="Network",
            about="Complexity of the traffic, link loads on a network, and circuit "
            "schedules for an optical switch.",
            parts=(
                complexity_chart(
                    complexities(found),
                    reason="; ".join(n for n in notes if "complexity" in n),
                ),
                *link_charts.links(part, network),
                schedule.circuits_chart(
                    found,
                    {key: seen.wires() for key, seen in kept.seen.items()},
                    network.topology.hosts.nic_bytes_s,
                ),
            ),
        ),
        Section(
            key="policies",
            title="Scheduling policies",
            about="Circuits planned from the past of the last MoE layer, served "
            "against its true traffic; moetraffic evaluate has more policies.",
            parts=_policies(trace, phase=phase, layers=layers, iterations=iterations),
        ),
        _beside(
            trace,
            replay,
            network,
            iterations,
            key="replay",
            title="Replay fidelity",
            name="replay",
            about="Times and bytes of the replay, compared with the captured run.",
            absent="no replayed trace was given: make one with moetraffic replay, and "
            "give it with --replay",
        ),
        _beside(
            trace,
            other,
            network,
            iterations,
            key="comparison",
            title="Comparison",
            name="second run",
            about="Distance of another run from this one, and whether it exceeds the "
            "within-run noise.",
            absent="no second trace was given: name one after the first",
        ),
        Section(key="about", title="Metadata", parts=(highlights.about(known),)),
    )
    charts = {p.key: p for s in sections for p in s.parts if isinstance(p, Chart)}
    first = tuple(charts[key] for key in HEADLINE if key in charts)
    return Content(
        title=title or trace.name.rsplit("/", 1)[-1],
        headline=first,
        tiles=tuple(highlights.tiles(part, found)),
        lines=tuple(highlights.run_in_words(trace, found)),
        notes=notes,
        sections=tuple(
            # charts hold arrays, which have no single truth value when compared
            replace(
                s, parts=tuple(p for p in s.parts if all(p is not c for c in first))
            )
            for s in sections
        ),
    )


def _policies(
    trace: Trace,
    *,
    phase: str,
    layers: Sequence[int] | None,
    iterations: range | None,
) -> tuple[Part, ...]:
    """Evaluate a few policies on the last layer, where the run is long enough."""
    some = sorted(set(trace.layers) & set(layers)) if layers else list(trace.layers)
    try:
        found = evaluate(
            trace,
            POLICIES,
            forecasters=("persistence", "oracle"),
            ages=(4,),
            delays_s=(1e-6, 1e-4, 1e-2),
            phase=phase,
            layers=[max(some)] if some else None,
            iterations=iterations,
            most=32,
        )
    except MoetrafficError as error:
        return (Missing(title="Scheduling policies", reason=str(error)),)
    table, *_ = policy_scores.tables(found)
    return (policy_scores.chart(found), table)


def _beside(
    trace: Trace,
    other: Trace | None,
    network: Network,
    iterations: range | None,
    *,
    name: str,
    absent: str,
    **section: str,
) -> Section:
    """Build the section that compares a trace with a second one, if there is one."""
    lacking = Missing(title=section["title"], reason=absent)
    if other is None:
        return Section(key=section["key"], title=section["title"], parts=(lacking,))
    try:
        found = compare(trace, other, iterations=iterations)
    except AnalysisError as error:
        lacking = Missing(title=section["title"], reason=str(error))
        return Section(key=section["key"], title=section["title"], parts=(lacking,))
    if found.identical:
        section["about"] += f" Byte-identical: {found.identical}."
    times = f"Times of common calls: this run and {name}"
    hosts = network.topology.hosts
    port_bytes_s = hosts.nic_bytes_s * hosts.nics / hosts.ranks
    rates = side_by_side.rates(found, name, port_bytes_s)
    return Section(
        **section,
        parts=(
            *([rates] if rates else []),
            side_by_side.ratios(found, section["key"], name),
            side_by_side.distances(found, section["key"], name),
            *([comparison.times(found.times, times)] if found.times else []),
        ),
    )
