"""Summarize a run for the HTML report: main figures, sentences, table of layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moetraffic.analysis import Analysis, ExchangeAnalysis, Subject
from moetraffic.analysis.forecast.accuracy import mean_of_known as mean
from moetraffic.report.results.overview import about as about_run
from moetraffic.report.results.overview import layout, layout_known
from moetraffic.report.results.skew import named, subject_of
from moetraffic.report.results.summary import settled
from moetraffic.report.results.watch import WITHOUT_WAITING
from moetraffic.report.summary.answer import conclusions
from moetraffic.tables import Table
from moetraffic.trace import Trace
from moetraffic.trace.provenance import source_clause
from moetraffic.units import byte_size, duration

UNRECORDED = {
    **{"layers": 0, "hidden": 0, "experts": 0, "k": 0},
    **{"seed": -1, "data_seed": -1, "repeats_from": -1, "virtual": False},
}
"""Values of a trace's metadata that stand for "not recorded"."""


@dataclass(frozen=True, kw_only=True)
class Tile:
    """Large figure in the summary of the HTML report."""

    value: str
    what: str
    beside: str = ""  # reference value or context


def tiles(trace: Trace, analysis: Analysis) -> Iterator[Tile]:
    """Select the main figures of a run for the summary."""
    meta = trace.meta
    degrees = f"EP {meta.ep}, DP {meta.dp}, TP {meta.tp}, PP {meta.pp}"
    yield Tile(
        value=str(meta.world),
        what="ranks",
        beside=degrees if layout_known(meta) else layout(trace),
    )
    yield Tile(
        value=f"{len(trace.iterations):,}",
        what="training iterations",
        beside="virtual: nothing was sent" if meta.virtual else "",
    )
    if len(trace.layers):
        experts = f"{meta.experts} experts" if meta.experts else ""
        number = len(trace.layers)
        what = f"MoE layer{'s' * (number > 1)}"
        yield Tile(value=str(number), what=what, beside=experts)
    bottleneck = mean(
        [mean(e.network.bottleneck_bytes) for e in analysis.exchanges if e.network]
    )
    if np.isfinite(bottleneck):
        yield Tile(
            value=byte_size(bottleneck),
            what="bottleneck rank, a layer's dispatch",
            beside="sent or received, mean of iterations",
        )
    for metric, what in (
        ("normalized_entropy", "entropy of the expert load"),
        ("max_over_mean", "max/mean expert load of an iteration"),
    ):
        curves = [
            s.curves[metric]
            for e in analysis.exchanges
            if (s := subject_of(e, "expert_load")) and metric in s.curves
        ]
        floor = mean([mean(c.floor.mean) for c in curves if c.floor is not None])
        if curves:
            yield Tile(
                value=f"{np.mean([mean(c.values) for c in curves]):.3f}",
                what=what,
                beside=f"balanced router: {floor:.3f}" if np.isfinite(floor) else "",
            )
    if np.isfinite(analysis.leads.iteration_s):
        seconds = duration(analysis.leads.iteration_s)
        yield Tile(
            value=seconds, what="iteration time", beside="step of rank 0, median"
        )
    source = next((b for b in analysis.beats.found if b.by == "rank"), None)
    if source is not None and np.isfinite(source.rhythm.duty):
        yield Tile(
            value=f"{source.rhythm.duty:.1%}",
            what=f"duty cycle of all-to-alls, {source.name}",
            beside=f"share of the run's time, {WITHOUT_WAITING}; "
            f"{source.rhythm.bursts:,} bursts",
        )
    found = [e.complexity for e in analysis.exchanges if e.complexity]
    # of 2 ranks each has one partner, in 2 pairs
    product = mean([each.trace_complexity for each in found if each.pairs > 2])
    if np.isfinite(product):
        yield Tile(
            value=f"{product:.3f}",
            what="trace complexity Ψ",
            beside="of the sequence of packets between ranks, 1: no structure",
        )


def run_in_words(trace: Trace, analysis: Analysis) -> list[str]:
    """Describe the run in a few sentences, after the summary of its analysis."""
    meta = trace.meta
    complete = "complete" if meta.complete else f"not complete: {meta.missing}"
    lines = conclusions(analysis)
    lines.append(f"{about_run(trace)}; the trace is {complete}.")
    if meta.schedule:
        lines.append(f"Steps, layers and phases: {meta.schedule}.")
    if meta.contradiction:
        lines.append(f"Rows sent: {meta.contradiction}.")
    if clause := source_clause(trace):
        lines.append(f"Sources: {clause}.")
    return lines


def by_layer(analysis: Analysis) -> Table:
    """Tabulate the main figures of each layer, with their noise floors."""
    return Table(
        title="Layers",
        columns=(
            *("exchange", "iterations", "entropy", "max/mean", "bytes within 20%"),
            *("T", "NT", "loads converged", "matrix converged"),
        ),
        rows=[_row(e, analysis) for e in analysis.exchanges],
        notes=[
            "Means over the iterations; in brackets, the noise floor of a balanced "
            "router, where it is known. Bytes within 20%: share of the demand (of the "
            "wire bytes, where no router was observed) in cells forecast to within "
            "±20% one iteration ahead by the chosen forecaster (by the persistence "
            "baseline). T, NT: temporal and non-temporal complexity. Converged: "
            "training step from which loads or matrix stay at one level, with swings "
            "of one size."
        ],
    )


def _row(exchange: ExchangeAnalysis, analysis: Analysis) -> tuple[object, ...]:
    load = subject_of(exchange, "expert_load") or subject_of(exchange, "received")
    matrix = subject_of(exchange, "demand") or subject_of(exchange, "wire")
    packets, both = exchange.complexity, exchange.convergence
    courses = (both.load, both.cells) if both else ()
    since = [settled(course) for course in courses]
    return (
        *(named(exchange, analysis), len(exchange.iterations)),
        _with_floor(load, "normalized_entropy"),
        _with_floor(load, "max_over_mean"),
        _within(matrix),
        *((packets.temporal, packets.non_temporal) if packets else (None, None)),
        *(since or (None, None)),
    )


def _with_floor(subject: Subject | None, metric: str) -> str:
    curve = subject.curves.get(metric) if subject else None
    if curve is None:
        return ""
    floor = f" ({mean(curve.floor.mean):.3f})" if curve.floor is not None else ""
    return f"{mean(curve.values):.3f}{floor}"


def _within(subject: Subject | None) -> str:
    verdicts = subject.forecasts.verdicts if subject and subject.forecasts else ()
    first = next((v for v in verdicts if v.horizon == 1 and not v.reason), None)
    if first is None:
        return ""
    at = int(np.argmin([abs(t - 0.2) for t in first.tolerances]))
    return f"{first.within[at]:.0%} ({first.unchanged[at]:.0%})"


def about(runs: Mapping[str, Trace]) -> Table:
    """Tabulate the metadata that traces record of their runs, a column for each run."""
    facts = {name: _metadata(trace) for name, trace in runs.items()}
    fields = dict.fromkeys(field for of in facts.values() for field in of)
    return Table(
        title="Metadata of the traces",
        columns=("field", *facts),
        rows=[(n, *(of.get(n, "") for of in facts.values())) for n in fields],
    )


def _metadata(trace: Trace) -> dict[str, str]:
    """Return the file name and the recorded metadata of a trace."""
    meta = trace.meta
    hidden = () if layout_known(meta) else ("dp", "tp", "pp", "cp", "order")
    return {"file": Path(trace.name).name} | {
        name: str(value)
        for name, value in meta.as_dict().items()
        if name not in ("workload", "nodes", *hidden)
        and str(value) not in ("", "nan")
        and not (name in UNRECORDED and value == UNRECORDED[name])
    }
