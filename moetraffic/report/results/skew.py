"""Draw load skew: metrics over iterations with their noise floors, expert shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.analysis import Analysis, Curve, ExchangeAnalysis, Subject, shares
from moetraffic.report.chart import (
    Axis,
    Chart,
    Missing,
    Panel,
    Series,
    in_legend,
    line_colors,
)
from moetraffic.units import rank_span

METRICS = {
    "normalized_entropy": "normalized entropy (1 = balanced)",
    "max_over_mean": "max/mean of an iteration (1 = balanced)",
    "cv": "coefficient of variation (0 = balanced)",
    "gini": "Gini index (0 = balanced)",
    "sparsity": "share of cells that are zero",
}
"""Drawn metrics and their axis labels."""

SMOOTHED = 40
"""Number of windows of the moving mean in a run."""

LOAD_CELLS = 400_000
"""Maximum number of cells in the load heatmaps."""

LONGEST = 1000
"""Maximum points of a line; longer ones are thinned evenly."""

MOST_POINTS = 250_000
"""Maximum points of all lines of a chart; above it, lines are thinned further."""


def every(length: int, curves: int = 1) -> int:
    """Choose the stride for drawing a number of curves of a given length."""
    fit = max(16, min(LONGEST, MOST_POINTS // max(1, curves)))
    return max(1, -(-length // fit))


def thinned(step: int) -> str:
    """Describe the stride of thinned curves in a sentence; "" for stride 1."""
    return f" One of every {step} iterations is drawn." if step > 1 else ""


def named(exchange: ExchangeAnalysis, analysis: Analysis) -> str:
    """Name an exchange by its layer, and by its ranks if there are several groups."""
    several = len({e.group for e in analysis.exchanges}) > 1
    ranks = f", ranks {rank_span(exchange.ranks)}" if several else ""
    return f"layer {exchange.layer}{ranks}"


def subject_of(exchange: ExchangeAnalysis, name: str) -> Subject | None:
    """Return the statistics of "expert_load", "demand", "wire" or "received"."""
    return next((s for s in exchange.subjects if s.name == name), None)


def curves(analysis: Analysis) -> Chart | Missing:
    """Draw skew metrics in every iteration, with a balanced router's noise floor."""
    subjects = [s for e in analysis.exchanges for s in e.subjects if s.curves]
    title = "Load balance, and the noise floor of a balanced router"
    if not subjects:
        return Missing(title=title, reason=_why(analysis))
    about = {s.name: s.about for s in subjects}
    drawn = len(analysis.exchanges) * len(about) * len(METRICS)
    longest = max(len(e.iterations) for e in analysis.exchanges)
    step = every(longest, 2 * drawn)
    panels = []
    for kind in about:
        for metric, label in METRICS.items():
            found = [
                (e, s.curves[metric])
                for e in analysis.exchanges
                if (s := subject_of(e, kind)) and metric in s.curves
            ]
            if found and (
                metric != "sparsity" or any(c.values.any() for _, c in found)
            ):
                name = (kind.replace("_", " "), metric.replace("_", " "))
                panels.append(_panel(analysis, found, name, label, step))
    smoothed = any(panel.smooth > 1 for panel in panels)
    kinds = "; ".join(f"{kind.replace('_', ' ')}: {of}" for kind, of in about.items())
    return Chart(
        key="evenness",
        title=title,
        source=f"{kinds}. "
        + (
            "Faint lines: each iteration; thick lines: moving mean. "
            if smoothed
            else ""
        )
        + "Gray: noise floor of a balanced router, mean ± 2 standard deviations; "
        "outside, imbalance is more than sampling noise." + thinned(step),
        columns=("iteration", "value (dimensionless)"),
        choices=("quantity", "metric"),
        panels=tuple(panels),
    )


def _panel(
    analysis: Analysis,
    found: list[tuple[ExchangeAnalysis, Curve]],
    name: tuple[str, ...],
    label: str,
    step: int,
) -> Panel:
    rows = slice(None, None, step)
    series = []
    note = "No noise floor: the token counts behind these bytes are not known."
    floored = next(((e, c.floor) for e, c in found if c.floor is not None), None)
    if floored is not None:
        exchange, floor = floored
        mean, spread = np.atleast_1d(floor.mean)[rows], np.atleast_1d(floor.std)[rows]
        series.append(
            Series(
                kind="band",
                x=exchange.iterations[rows],
                y=mean - 2 * spread,
                upper=mean + 2 * spread,
                name="balanced ±2 sd",
            )
        )
        several = len(found) > 1
        note = f"Noise floor of {named(exchange, analysis)}." if several else ""
    for (exchange, curve), color, legend in zip(
        found, line_colors(len(found)), in_legend(len(found)), strict=True
    ):
        series.append(
            Series(
                x=exchange.iterations[rows],
                y=curve.values[rows],
                name=named(exchange, analysis),
                color=color,
                legend=legend,
            )
        )
    return Panel(
        name=name,
        x=Axis(label="iteration"),
        y=Axis(label=label),
        series=tuple(series),
        smooth=len(found[0][0].iterations[rows]) // SMOOTHED,
        note=note,
    )


def loads(
    analysis: Analysis,
    known: Mapping[tuple[int, int], tuple[str, npt.NDArray[Any]]],
) -> Chart | Missing:
    """Draw a heatmap of each expert's (or rank's) load share over the run.

    ``known`` has "expert" or "rank", and loads ``[T, E]``, by layer and group.
    """
    title = "Expert load over time"
    if not known:
        return Missing(title=title, reason=_why(analysis))
    cells = sum(load.size for _, load in known.values())
    step = max(1, -(-cells // LOAD_CELLS))
    panels = []
    for exchange in analysis.exchanges:
        if (exchange.layer, exchange.group) not in known:
            continue
        what, load = known[exchange.layer, exchange.group]
        part = 100 * shares(load[::step])
        heat = Series(
            kind="heatmap",
            x=exchange.iterations[::step],
            y=list(range(part.shape[1]))
            if what == "expert"
            else [f"rank {rank}" for rank in exchange.ranks],
            z=part.T,
            unit="share [%]",
            hover=f"{what} %{{y}}<br>iteration %{{x}}<br>%{{z:.2f}} %<extra></extra>",
        )
        panels.append(
            Panel(
                name=(named(exchange, analysis),),
                x=Axis(label="iteration"),
                y=Axis(label=what),
                series=(heat,),
                note=f"Balanced: {100 / part.shape[1]:.3g}% for each.",
            )
        )
    return Chart(
        key="loads",
        title=title,
        source="Token copies that each expert is given, as a share of its layer's; "
        "where no router was observed, bytes that each rank receives." + thinned(step),
        columns=("iteration", next(iter(known.values()))[0], "share [%]"),
        choices=("layer",),
        panels=tuple(panels),
    )


def _why(analysis: Analysis) -> str:
    words = ("no skew", "no demand", "no wire")
    notes = [note for note in analysis.notes if any(word in note for word in words)]
    return "; ".join(notes) or "the trace has no routing and no expert exchange"
