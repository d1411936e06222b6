"""Pictures of a trace, by name: charts of its matrices, calls and analysis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.analysis import analyze
from moetraffic.analysis.exchange import Exchange, exchanges
from moetraffic.analysis.rows import rows
from moetraffic.report.chart import Chart, Missing
from moetraffic.report.figures import save
from moetraffic.result import Result
from moetraffic.trace import Trace

from . import analysis as charts
from .info import about
from .trace import UNROUTED, demand_chart, load_chart, timeline_chart, traffic_chart

PARTS = {
    "traffic": "",
    "demand": "",
    "load": "",
    "timeline": "",
    "entropy": "evenness",
    "forecasts": "forecasts",
    "spectrum": "rhythm",
    "times": "times",
    "complexity": "complexity",
}
"""Names of pictures, and the part of an analysis that each is drawn from."""


def pictures(
    trace: Trace,
    names: Sequence[str],
    *,
    result: Result | None = None,
    iterations: Sequence[int] = (),
    operations: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    phase: str | None = None,
) -> dict[str, Chart | Missing]:
    """Draw the pictures of these names; the demand has one per layer.

    Parameters
    ----------
    trace
        Any.
    names
        Some of :data:`PARTS`.
    result
        Of an analysis with the parts that the pictures need; None: it is made.
    iterations
        Of the traffic; empty: the first, a middle and the last one.
    operations, layers, phase
        See :func:`moetraffic.report.views.trace.traffic_chart`; in the timeline, layers
        and phase select all-to-alls.
    """
    located = exchanges(trace, [], layers=layers, phase=phase or "dispatch")
    parts = sorted({PARTS[name] for name in names} - {""})
    if result is None:
        result = analyze(
            trace, layers=layers, phase=phase or "dispatch", parts=parts or ["network"]
        )
    made: dict[str, Chart | Missing] = {}
    for name in names:
        if name == "traffic":
            made[name] = traffic_chart(
                trace,
                iterations or middle_and_ends(trace.iterations.tolist()),
                operations=operations,
                layers=layers,
                phase=phase,
            )
        elif name == "demand":
            routed = [exchange for exchange in located if exchange.experts]
            made |= {_file(e, routed): demand_chart(trace, e) for e in routed}
            if not routed:
                made[name] = Missing(title="Demand", reason=UNROUTED)
        elif name == "load":
            read = {(e.layer, e.group): rows(trace, e).balance[0] for e in located}
            loads = {key: load for key, load in read.items() if load is not None}
            made[name] = load_chart(located, loads)
        elif name == "timeline":
            made[name] = timeline_chart(trace, layers=layers, phase=phase)
        elif name == "entropy":
            made[name] = charts.evenness_chart(result, first_screen=True)
        elif name == "forecasts":
            made[name] = _bytes_alone(charts.forecast_chart(result))
        elif name == "spectrum":
            made[name] = charts.spectrum_chart(result)
        elif name == "times":
            made[name] = charts.times_chart(result)
        elif name == "complexity":
            made[name] = charts.complexity_chart(result)
    return {name: _sourced(chart, about(trace)) for name, chart in made.items()}


def draw(trace: Trace, result: Result, folder: Path) -> list[Path]:
    """Write all pictures that can be drawn as PNG files; return the files."""
    return [
        save(chart, folder / f"{name}.png")
        for name, chart in pictures(trace, tuple(PARTS), result=result).items()
        if isinstance(chart, Chart)
    ]


def middle_and_ends(iterations: Sequence[int]) -> list[int]:
    """Choose the first, a middle and the last iteration."""
    if not iterations:
        return []
    return sorted({iterations[0], iterations[len(iterations) // 2], iterations[-1]})


def _file(exchange: Exchange, every: Sequence[Exchange]) -> str:
    """Build the file name of a layer's demand; groups are numbered."""
    groups = [e.group for e in every if e.layer == exchange.layer]
    which = f"-group-{groups.index(exchange.group)}" if len(groups) > 1 else ""
    return f"demand-layer-{exchange.layer}{which}"


def _bytes_alone(chart: Chart | Missing) -> Chart | Missing:
    """Keep the panels of bytes within 20%, of some layers: a page has all."""
    if isinstance(chart, Missing):
        return chart
    subjects = {panel.name[1] for panel in chart.panels}
    subject = next(s for s in ("wire", "expert load", *subjects) if s in subjects)
    panels = [p for p in chart.panels if p.name[1] == subject and "20%" in p.y.label]
    chosen = np.unique(np.linspace(0, len(panels) - 1, min(4, len(panels))).round())
    some = tuple(panels[int(number)] for number in chosen)
    return replace(chart, panels=some, across=2 if len(some) > 1 else 1, width=1200)


def _sourced(chart: Chart | Missing, source: str) -> Any:
    """Begin the description of a chart with that of its run."""
    if isinstance(chart, Missing) or chart.source.startswith(source):
        return chart
    return replace(chart, source=f"{source}. {chart.source}")
