"""Compute the content of the HTML report in one pass over the trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from moetraffic.analysis import analyze
from moetraffic.analysis.exchange import Exchange, exchanges
from moetraffic.analysis.rows import Arrays, Mapper, in_threads
from moetraffic.analysis.trace_analysis import Tick
from moetraffic.errors import AnalysisError, MoetrafficError
from moetraffic.fabric import Network
from moetraffic.policies.evaluate import evaluate
from moetraffic.policies.schedule import circuits
from moetraffic.report.chart import Chart, Missing
from moetraffic.report.views import analysis as charts
from moetraffic.report.views import fabric as fabric_view
from moetraffic.report.views.evaluate import chart as evaluate_chart
from moetraffic.report.views.info import info
from moetraffic.report.views.schedule import circuits_result
from moetraffic.report.views.trace import load_chart, timeline_chart
from moetraffic.result import Result
from moetraffic.tables import Table
from moetraffic.trace import Trace
from moetraffic.trace.iterations import iteration_range, layer_numbers

from .matrices import Matrices, matrices, samples

POLICIES = ("packets", "rotation", "max-weight")
"""Policies of the report: without circuits, oblivious, and planned."""

MOST_ROWS = 100
"""Rows of a table in the report."""

Part = Chart | Missing | Table | Matrices | Result
Loads = dict[tuple[int, int], list[Any]]
"""Loads of windows by layer and group."""


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
    result: Result  # of the analysis, shown below the first chart
    sections: tuple[Section, ...]


def keep_loads(mapper: Mapper, loads: Loads) -> Mapper:
    """Wrap a mapper of windows: loads of experts, or bytes received, are collected."""

    def mapped(exchange: Exchange, parts: Sequence[range]) -> Iterator[Arrays]:
        for arrays in mapper(exchange, parts):
            load = arrays.get("load", arrays.get("received"))
            if load is not None:
                loads.setdefault((exchange.layer, exchange.group), []).append(load)
            yield arrays

    return mapped


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
    layers, phase, iterations, threads, tick
        See :func:`moetraffic.analysis.analyze`.

    Raises
    ------
    AnalysisError, TraceError
        See :func:`moetraffic.analysis.analyze`.
    """
    span = iteration_range(iterations)
    asked: dict[str, Any] = {
        "layers": layer_numbers(layers),
        "phase": phase,
        "iterations": span,
    }
    part = trace
    if span is not None:
        every = trace.occurrences.iteration
        chosen = (every >= span.start) & (every < span.stop)
        part = trace.select(np.flatnonzero(chosen))
    windows: Loads = {}
    result = analyze(
        trace,
        **asked,
        threads=threads,
        mapper=keep_loads(in_threads(trace, threads), windows),
        tick=tick,
    )
    loads = {key: np.concatenate(own) for key, own in windows.items()}
    located = exchanges(trace, [], **asked)
    sampled = samples(trace, located)
    no_bytes = "the trace has no routing and no expert exchange whose bytes are known"
    first = charts.evenness_chart(result, first_screen=True)
    sections = (
        Section(key="summary", title="Summary", parts=(first, result)),
        Section(
            key="traffic",
            title="Traffic matrices",
            about="The slider moves through the run; choose layer and quantity.",
            parts=(
                matrices(sampled) or Missing(title="Traffic matrices", reason=no_bytes),
            ),
        ),
        Section(
            key="balance",
            title="Load balance",
            about="How the load is shared by the experts of a layer.",
            parts=(
                charts.evenness_chart(result),
                load_chart(located, loads),
                *_tables(
                    result,
                    claims="Tested claims, level 1%",
                    experts="Experts",
                    ep_degrees="Busiest rank at other EP degrees",
                    hosts="Hosts per token",
                    coactivation="Experts of the same tokens",
                ),
            ),
        ),
        Section(
            key="forecast",
            title="Forecasts",
            about="How far ahead the traffic can be forecast.",
            parts=(
                charts.forecast_chart(result),
                charts.within_chart(result),
                *_tables(
                    result,
                    forecasts="Forecasts",
                    within="From the first dispatch of an iteration",
                    lead_times="Lead times within an iteration",
                ),
            ),
        ),
        Section(
            key="rhythm",
            title="On-off rhythm",
            about="When the network is used, and how regularly.",
            parts=(
                timeline_chart(part),
                charts.spectrum_chart(result),
                *_tables(result, bursts="Bursts", steps="Step times"),
            ),
        ),
        Section(
            key="times",
            title="Times",
            about="What a training step and its calls take.",
            parts=(
                charts.times_chart(result),
                *_tables(result, times="Time breakdown of steps", calls="Calls"),
            ),
        ),
        Section(
            key="network",
            title="Network",
            about="Complexity of the traffic, link loads on a network, and circuit "
            "schedules for an optical switch.",
            parts=(
                charts.complexity_chart(result),
                *fabric_view.links(part, network),
                _circuits(trace, network.hosts.nic_bytes_s, **asked),
                *_tables(
                    result, network="Bytes between ranks", complexity="Trace complexity"
                ),
            ),
        ),
        Section(
            key="policies",
            title="Scheduling policies",
            about="Circuits planned from the past of the last MoE layer, served "
            "against its true traffic; moetraffic evaluate has more policies.",
            parts=_policies(trace, **asked),
        ),
        Section(
            key="replay",
            title="Replay fidelity",
            about="Times and bytes of the replay, compared with the captured run.",
            parts=_beside(
                trace,
                replay,
                span,
                "Replay fidelity",
                "no replayed trace was given: make one with moetraffic replay, and "
                "give it with --replay",
            ),
        ),
        Section(
            key="comparison",
            title="Comparison",
            about="The run beside a second one.",
            parts=_beside(
                trace,
                other,
                span,
                "Comparison",
                "no second trace was given: name one after the first",
            ),
        ),
        Section(key="about", title="Contents of the trace", parts=_about(trace)),
    )
    return Content(
        title=title or trace.name.rsplit("/", 1)[-1], result=result, sections=sections
    )


def _tables(result: Result, **titles: str) -> Iterator[Result]:
    """Yield tables of a result that have rows, with a title each."""
    for name, title in titles.items():
        frame = charts.table_of(result, name)
        if frame is not None:
            rows = frame.iloc[:MOST_ROWS].to_dict("records")
            left = len(frame) - len(rows)
            note = f"{left:,} more rows: moetraffic analyze --only {name}"
            yield Result(
                verb=name,
                head=title,
                tables={name: rows},
                screen=(name,),
                notes=(note,) * (left > 0),
            )


def _circuits(trace: Trace, rate: float, **asked: Any) -> Missing | Result:
    """Schedule the mean matrix of each layer on circuits."""
    try:
        plans = circuits(trace, **asked)
    except MoetrafficError as error:
        return Missing(title="Circuit schedules", reason=str(error))
    return circuits_result(
        plans,
        file=str(trace.name),
        digest=trace.digest,
        capacity_bytes_s=rate,
        reconfigure_s=10e-6,
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
        result = evaluate(
            trace,
            POLICIES,
            forecasters=("persistence", "oracle"),
            age=(1, 4),
            reconfigure=("10us", "1us", "100us", "10ms"),
            phase=phase,
            layers=[max(some)] if some else None,
            iterations=iterations,
            most=32,
        )
    except MoetrafficError as error:
        return (Missing(title="Scheduling policies", reason=str(error)),)
    return (evaluate_chart(result), result)


def _beside(
    trace: Trace,
    other: Trace | None,
    iterations: range | None,
    title: str,
    absent: str,
) -> tuple[Part, ...]:
    """Compare a trace with a second one, if there is one."""
    if other is None:
        return (Missing(title=title, reason=absent),)
    from moetraffic.analysis.comparison import compare

    try:
        compared = compare(trace, other, iterations=iterations)
    except AnalysisError as error:
        return (Missing(title=title, reason=str(error)),)
    more = {
        name: name.replace("_", " ").capitalize()
        for name in compared.tables
        if name not in compared.screen
    }
    return (compared, *_tables(compared, **more))


def _about(trace: Trace) -> tuple[Part, ...]:
    """Describe the trace as ``moetraffic info`` does, with its metadata."""
    contents = info(trace)
    return (
        replace(contents, screen=("traffic", "layers", "sources")),
        *_tables(contents, metadata="Metadata"),
    )
