"""The summary: what a run is and does, in words and a few figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moetraffic.analysis import Analysis, ExchangeAnalysis, Subject
from moetraffic.report.overview import layout, layout_known
from moetraffic.report.plain_data import mean
from moetraffic.report.summary import SHOWN_LAYERS, sentences
from moetraffic.trace import Trace
from moetraffic.units import byte_size, duration

from .chart import Listed
from .skew import named, subject_of

UNTOLD = {"layers": 0, "hidden": 0, "experts": 0, "k": 0, "seed": -1, "virtual": False}
"""Of a trace's meta, what says that nobody said it."""


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A figure that stands large in the summary."""

    value: str
    what: str
    beside: str = ""  # what to hold it against


def tiles(trace: Trace, analysis: Analysis) -> list[Tile]:
    """The figures that say most of a run."""
    meta = trace.meta
    found = [
        Tile(
            value=str(meta.world),
            what="ranks",
            beside=f"EP {meta.ep}, DP {meta.dp}, TP {meta.tp}, PP {meta.pp}"
            if layout_known(meta)
            else layout(trace),
        ),
        Tile(
            value=f"{len(trace.iterations):,}",
            what="training iterations",
            beside="virtual: nothing was sent" if meta.virtual else "",
        ),
    ]
    if len(trace.layers):
        found.append(
            Tile(
                value=str(len(trace.layers)),
                what="MoE layers",
                beside=f"{meta.experts} experts" if meta.experts else "",
            )
        )
    bottleneck = [
        e.network.bottleneck_bytes.mean()
        for e in analysis.exchanges
        if e.network is not None and len(e.network.bottleneck_bytes)
    ]
    if bottleneck:
        found.append(
            Tile(
                value=byte_size(float(np.mean(bottleneck))),
                what="busiest rank, a layer's dispatch",
                beside="sent or received, mean of iterations",
            )
        )
    for measure, what in (
        ("normalized_entropy", "entropy of the expert load"),
        ("max_over_mean", "max / mean expert load"),
    ):
        told = [
            s.curves[measure]
            for e in analysis.exchanges
            if (s := subject_of(e, "expert_load")) and measure in s.curves
        ]
        if told:
            floors = [mean(c.floor.mean) for c in told if c.floor is not None]
            found.append(
                Tile(
                    value=f"{np.mean([mean(c.values) for c in told]):.3f}",
                    what=what,
                    beside=f"balanced gate: {np.mean(floors):.3f}" if floors else "",
                )
            )
    if np.isfinite(analysis.leads.iteration_s):
        found.append(
            Tile(
                value=duration(analysis.leads.iteration_s), what="an iteration, median"
            )
        )
    beat = next((b for b in analysis.beats.found if b.by == "rank"), None)
    if beat is not None and np.isfinite(beat.rhythm.duty):
        found.append(
            Tile(
                value=f"{beat.rhythm.duty:.1%}",
                what=f"of the time all-to-alls are on, {beat.name}",
                beside=f"in {beat.rhythm.bursts:,} bursts",
            )
        )
    products = [
        e.complexity.product
        for e in analysis.exchanges
        if e.complexity is not None and np.isfinite(e.complexity.product)
    ]
    if products:
        found.append(
            Tile(
                value=f"{np.mean(products):.3f}",
                what="trace complexity Ψ",
                beside="1: no structure at all",
            )
        )
    return found


def run_in_words(trace: Trace, analysis: Analysis) -> list[str]:
    """A few sentences on what the run is, and what a scheduler can count on."""
    meta = trace.meta
    model = f"{meta.model} model" if meta.model else "model that is not named"
    router = f", routed by {meta.router}, k = {meta.k}" if meta.router else ""
    lines = [
        f"A {meta.origin} run of a {model} on {meta.world} ranks{router}"
        f"{f', {meta.dispatch}' if meta.dispatch else ''}; "
        + (
            "the trace is complete."
            if meta.complete
            else f"the trace is not complete: {meta.missing}."
        )
    ]
    if meta.schedule:
        lines.append(f"Steps, layers and phases: {meta.schedule}.")
    return lines + sentences(analysis)


def by_layer(analysis: Analysis) -> Listed:
    """The main figures of each layer, and their floors."""
    rows = tuple(_row(e, analysis) for e in analysis.exchanges)
    return Listed(
        key="layers",
        title="Layers in figures",
        source="Means over the iterations; in brackets, what a perfectly balanced gate "
        "shows, where that is known. Placed: what of the demand (of the wire, where no "
        "router was seen) is forecast within 20% one iteration ahead, by the best "
        "forecaster (by the last value). T, NT: temporal and non-temporal complexity. "
        "Loads, matrix: from which training step on they are stable.",
        head=(
            *("exchange", "iterations", "entropy", "max / mean", "placed"),
            *("T", "NT", "loads", "matrix"),
        ),
        rows=rows,
    )


def _row(exchange: ExchangeAnalysis, analysis: Analysis) -> tuple[str, ...]:
    load = subject_of(exchange, "expert_load") or subject_of(exchange, "received")
    matrix = subject_of(exchange, "demand") or subject_of(exchange, "wire")
    packets = exchange.complexity
    both = exchange.convergence
    return (
        named(exchange, analysis),
        str(len(exchange.iterations)),
        _with_floor(load, "normalized_entropy"),
        _with_floor(load, "max_over_mean"),
        _placed(matrix),
        _figure(packets.temporal) if packets else "",
        _figure(packets.non_temporal) if packets else "",
        _settled(both.load.settled_at, both.load.converged) if both else "",
        _settled(both.cells.settled_at, both.cells.converged) if both else "",
    )


def _with_floor(subject: Subject | None, measure: str) -> str:
    curve = subject.curves.get(measure) if subject else None
    if curve is None:
        return ""
    floor = f" ({mean(curve.floor.mean):.3f})" if curve.floor is not None else ""
    return f"{mean(curve.values):.3f}{floor}"


def _placed(subject: Subject | None) -> str:
    verdicts = subject.forecasts.verdicts if subject and subject.forecasts else ()
    first = next((v for v in verdicts if v.horizon == 1 and not v.reason), None)
    if first is None:
        return ""
    at = int(np.argmin([abs(t - 0.2) for t in first.tolerances]))
    return f"{first.within[at]:.0%} ({first.unchanged[at]:.0%})"


def _settled(at: int, converged: bool | None) -> str:
    if at < 0:
        return "not settled"
    return f"step {at}" + ("" if converged else ", moved since")


def _figure(value: float) -> str:
    return f"{value:.3f}" if np.isfinite(value) else ""


def about(trace: Trace, notes: Mapping[str, str]) -> Listed:
    """What the trace says of itself."""
    meta = trace.meta
    untold = () if layout_known(meta) else ("dp", "tp", "pp", "cp", "order")
    told = {
        "file": Path(trace.name).name,
        **{
            name: str(value)
            for name, value in meta.as_dict().items()
            if name not in ("workload", "nodes", *untold)
            and str(value) not in ("", "nan")
            and not (name in UNTOLD and value == UNTOLD[name])
        },
        **notes,
    }
    return Listed(
        key="meta",
        title="The trace",
        source="What the file says of itself.",
        head=("what", "value"),
        rows=tuple(told.items()),
    )


__all__ = ["SHOWN_LAYERS", "Tile", "about", "by_layer", "run_in_words", "tiles"]
