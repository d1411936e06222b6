"""Charts of one trace, and their files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.analysis import Analysis, ExchangeAnalysis
from moetraffic.analysis.exchange import sources
from moetraffic.analysis.mapper import in_threads, observed
from moetraffic.analysis.skew.measures import shares
from moetraffic.analysis.times.iteration_traffic import world_matrices
from moetraffic.errors import AnalysisError, TraceError
from moetraffic.report import figures
from moetraffic.report.chart import Axis, Chart, Missing, Panel, Rule, Series
from moetraffic.trace import ALL_TO_ALL, ROUTING, Trace
from moetraffic.trace.model import PHASES

from .complexity import complexities, complexity_chart
from .overview import about
from .rhythm import time_chart, timeline
from .skew import curves, named, subject_of

MOST_BORDERS = 16  # lines between ranks above which none are drawn


PICTURES = (
    *("traffic", "demand", "load", "timeline", "entropy", "time-breakdown"),
    "complexity",
)
"""Names of the pictures of a trace."""

UNROUTED = (
    "the trace has no routing: register the router with capture.router in the "
    "training program, or draw --only traffic"
)

OVER_TIME = tuple(
    f"{what} over iterations" for what in ("5% quantile", "mean", "95% quantile")
)
"""Panels of the load."""

PARTS = {
    "demand": "skew",
    "load": "skew",
    "entropy": "skew",
    "time-breakdown": "time-breakdown",
    "complexity": "complexity",
}
"""Parts of an analysis that pictures are drawn from."""


def draw(trace: Trace, analysis: Analysis, folder: Path) -> list[Path]:
    """Draw a trace's charts: demand, timeline, entropy, time breakdown, complexity.

    Existing PNG files in the folder are replaced; the files are returned.
    """
    made = charts(trace, analysis, PICTURES[1:])
    return [
        figures.save(chart, folder / f"{name}.png")
        for name, chart in made.items()
        if isinstance(chart, Chart)
    ]


def charts(
    trace: Trace, analysis: Analysis, names: Sequence[str], *, phase: str | None = None
) -> dict[str, Chart | Missing]:
    """Return the charts of these names, which may be several each, by file name.

    The layers are those of the analysis; the timeline has the all-to-alls of ``phase``
    in these layers, or of all if the analysis has all.
    """
    source = about(trace)
    made: dict[str, Chart | Missing] = {}
    for name in names:
        if name == "demand":
            routed = [e for e in analysis.exchanges if subject_of(e, "demand")]
            made |= {_demand_name(e, routed): heatmaps(trace, e) for e in routed}
            if not routed:
                made[name] = Missing(title="Demand", reason=UNROUTED)
        elif name == "load":
            made[name] = load(trace, analysis, source)
        elif name == "timeline":
            layers = {e.layer for e in analysis.exchanges}
            some = layers if layers != set(trace.layers) else None
            made[name] = timeline(trace, source=source, layers=some, phase=phase)
        elif name == "entropy":
            made[name] = entropy(analysis, source)
        elif name == "time-breakdown":
            made[name] = time_chart(analysis.occupation, source)
        elif name == "complexity":
            made[name] = complexity_chart(complexities(analysis), source=source)
    return made


def load(trace: Trace, analysis: Analysis, source: str) -> Chart | Missing:
    """Draw each expert's share of its layer's load: mean and quantiles, a row a layer.

    Shares are relative to that of a balanced layer.
    """
    title = "Load of each expert"
    mapper = in_threads(trace, 1, loads_only=True)
    shown = {(e.layer, e.group): named(e, analysis) for e in analysis.exchanges}
    found: dict[str, np.ndarray] = {}
    for exchange in sources(trace, [], of=("demand",)):
        if name := shown.get((exchange.layer, exchange.group)):
            rows = observed(exchange, mapper)
            if "demand.load" in rows:
                part = shares(rows["demand.load"])
                low, high = np.quantile(part, (0.05, 0.95), axis=0)
                found[name] = part.shape[1] * np.array([low, part.mean(axis=0), high])
    if not found:
        return Missing(title=title, reason=UNROUTED)
    experts = max(layer.shape[1] for layer in found.values())
    cells = np.full((3, len(found), experts), np.nan)
    for number, layer in enumerate(found.values()):
        cells[:, number, : layer.shape[1]] = layer
    return matrix_chart(
        dict(zip(OVER_TIME, cells, strict=True)),
        title=title,
        source=f"{source}. Token copies of each expert, relative to a balanced layer "
        "(1)",
        unit="load relative to the mean",
        column="expert",
        row="",
        rows=list(found),
    )


def heatmaps(trace: Trace, exchange: ExchangeAnalysis) -> Chart:
    """Draw the demand of one layer in the first, a middle and the last iteration.

    A mean over several would hide what repeats within them.
    """
    when = exchange.iterations.tolist()
    matrices = {}
    for iteration in sorted({when[0], when[len(when) // 2], when[-1]}):
        routed = trace.find(
            operation=ROUTING,
            layer=exchange.layer,
            group=exchange.group,
            direction="forward",
            iterations=range(iteration, iteration + 1),
        )
        total = trace.demand(trace.complete(routed)).sum(axis=0)
        matrices[f"iteration {iteration}"] = total
    mean = np.mean(list(matrices.values()))
    rules = _rank_borders(trace, exchange)
    lines = "; white lines: between ranks" if rules else ""
    return matrix_chart(
        matrices,
        title=f"Demand of layer {exchange.layer}",
        source=f"{about(trace)}. Token copies, dropped ones included; mean of all "
        f"cells: {mean:.4g}{lines}",
        unit=f"token copies, layer {exchange.layer}",
        column="expert",
        rules=rules,
    )


def _rank_borders(trace: Trace, exchange: ExchangeAnalysis) -> tuple[Rule, ...]:
    """Return lines between the experts of different ranks, if these are few."""
    try:
        holder = trace.holder(
            exchange.layer, exchange.group, int(exchange.iterations[0])
        )
    except TraceError:  # unknown, or experts with replicas
        return ()
    borders = np.flatnonzero(np.diff(holder)) + 0.5
    if len(borders) >= MOST_BORDERS:
        return ()
    return tuple(Rule(x=float(x), color="white", dash="solid") for x in borders)


def matrix_chart(
    matrices: dict[str, np.ndarray],
    *,
    title: str,
    source: str,
    unit: str,
    column: str,
    rules: tuple[Rule, ...] = (),
    row: str = "sending rank",
    rows: Sequence[Any] = (),
    across: int = 0,
    log_color: bool = False,
) -> Chart:
    """Draw matrices side by side as heatmaps on one color scale.

    ``column`` and ``row`` are the labels of both axes and ``unit`` that of the cells;
    ``rows`` are the names of the rows (empty: their numbers). ``rules`` are lines
    across each matrix, ``across`` is the number of panels side by side (0: all). With
    ``log_color``, zeros are blank.
    """
    height, columns = next(iter(matrices.values())).shape
    beside = across or len(matrices)
    # square cells within limits, and panels wide enough for the values in the cells
    width = float(np.clip(42 * columns, 260, 460))
    return Chart(
        title=title,
        source=source,
        panels=tuple(
            Panel(
                name=(name,),
                x=Axis(label=column),
                y=Axis(label=row),
                series=(
                    Series(
                        kind="heatmap",
                        x=np.arange(columns),
                        y=rows or np.arange(height),
                        z=cells,
                        unit=unit,
                    ),
                ),
                rules=rules,
            )
            for name, cells in matrices.items()
        ),
        width=int(max(900, beside * (width + 35) + 130)),
        height=int(np.clip(width * height / columns, 120, 480)) + 90,
        across=beside,
        log_color=log_color,
    )


def traffic(
    trace: Trace,
    iterations: Sequence[int],
    *,
    operations: Sequence[str] | None = None,
    algorithm: str = "ring",
    layers: Sequence[int] | None = None,
    phase: str | None = None,
) -> Chart:
    """Draw the bytes between all ranks in a few iterations.

    They are those of the all-to-alls of ``layers`` and a ``phase``, or of
    ``operations``; by default of all dispatches, and of all collectives where there are
    none: a sum over phases is symmetric.

    ``operations`` and ``algorithm`` are those of
    :func:`moetraffic.analysis.times.iteration_traffic.world_matrices`.
    """
    if operations is None and layers is None and phase is None:
        phase = PHASES[0] if _dispatches(trace) else None
    if layers is None and phase is None:
        matrices = world_matrices(
            trace, iterations, operations=operations, algorithm=algorithm
        )
        what = " + ".join(operations) if operations else "all collectives"
        summed, how = "", f"all-reduces and the like as {algorithm}; "
    else:
        matrices = _of_layers(trace, iterations, layers or trace.layers, phase)
        what = phase or "all phases"
        if layers:
            what += f", layers: {', '.join(map(str, layers))}"
        summed, how = "" if layers else " in all layers", ""
    factor, unit = byte_unit(int(matrices.max(initial=0)))
    shown = matrices / factor
    own = np.arange(shown.shape[1])
    shown[:, own, own] = np.nan  # left out, not zero
    return matrix_chart(
        dict(zip(map(trace.steps.label, iterations), shown, strict=True)),
        title=f"Bytes between ranks: {what}",
        source=f"{about(trace)}. Sums over the calls of one iteration{summed}; {how}"
        "without rank-local (self) traffic, the diagonal",
        unit=f"{what} [{unit}]",
        column="receiving rank",
    )


def _dispatches(trace: Trace) -> bool:
    return any(site.phase == PHASES[0] for site in trace.sites)


def byte_unit(most: float) -> tuple[float, str]:
    """Choose the unit of an amount of bytes, and how many bytes it is."""
    units = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    return next((one for one in units if most >= one[0]), units[-1])


def _of_layers(
    trace: Trace, iterations: Sequence[int], layers: Sequence[int], phase: str | None
) -> np.ndarray:
    """Sum the wire matrices of layers and phases, ``[n, R, R]`` bytes."""
    found = trace.find(operation=ALL_TO_ALL, kind=None)
    sites = [trace.sites[int(n)] for n in trace.occurrences.site[found]]
    phases = {s.phase for s in sites if s.phase}
    if phase is not None and phase not in phases:
        raise AnalysisError(
            f"the trace has the phases {', '.join(sorted(phases)) or 'of no call'}, "
            f"but --phase is {phase!r}: choose among these"
        )
    world = trace.meta.world
    out = np.zeros((len(iterations), world, world), np.int64)
    for at, iteration in enumerate(iterations):
        for layer in layers:
            here = trace.find(
                operation=ALL_TO_ALL,
                layer=layer,
                iterations=range(iteration, iteration + 1),
                kind=None,  # of evaluations, too, where they are asked for
            )
            for o in here.tolist():
                site = trace.sites[int(trace.occurrences.site[o])]
                if site.phase and phase in (None, site.phase):
                    ranks = np.array(trace.groups[site.group].ranks)
                    out[at][np.ix_(ranks, ranks)] += trace.wire(np.array([o]))[0]
    out[:, np.arange(world), np.arange(world)] = 0
    return out


def entropy(analysis: Analysis, source: str) -> Chart | Missing:
    """Draw normalized entropy and max/mean of the expert load over the run."""
    chart = curves(analysis)
    if not isinstance(chart, Chart):
        return chart
    shown = ("normalized entropy", "max over mean")
    panels = [
        replace(p, name=())
        for p in chart.panels
        if p.name[0] == "expert load" and p.name[1] in shown
    ]
    if not panels:
        return Missing(title=chart.title, reason=UNROUTED)
    source = f"{source}. Token copies that each expert is given"
    return replace(chart, source=source, panels=tuple(panels), height=280)


def _demand_name(exchange: ExchangeAnalysis, every: Sequence[ExchangeAnalysis]) -> str:
    """Build the file name of a layer's demand chart; groups are numbered."""
    of_layer = [e.group for e in every if e.layer == exchange.layer]
    which = f"-group-{of_layer.index(exchange.group)}" if len(of_layer) > 1 else ""
    return f"demand-layer-{exchange.layer}{which}"
