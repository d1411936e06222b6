"""Compare two runs in charts: a run and its replay, or any other run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from moetraffic.analysis import Comparison, Distance
from moetraffic.analysis.comparison import SCALES
from moetraffic.analysis.resampling import LEVEL
from moetraffic.analysis.times.completion import TimeRatio
from moetraffic.report.chart import (
    OTHER_COLOR,
    Axis,
    Chart,
    Missing,
    Panel,
    Rule,
    Series,
)


def ratios(found: Comparison, key: str, first: str, second: str) -> Chart | Missing:
    """Draw the ratio of total call times, second run to first, by category of call."""
    rows = [t for t in found.times if np.isfinite(t.ratio.value)]

    def panel(rows: list[Any]) -> Panel:
        points = Series(
            kind="points",
            x=np.array([t.ratio.value for t in rows]),
            y=[_part(t) for t in rows],
            name=f"ratio, {LEVEL:.0%} interval",
            size=9,
            x_interval=([t.ratio.low for t in rows], [t.ratio.high for t in rows]),
        )
        label = "ratio of total times (1 = equal)"
        return _rows(rows[0].measure, label, (points,), rules=(Rule(x=1),))

    return _by_measure(
        rows,
        panel,
        key=f"{key}-ratios",
        title=f"Call times of {second} relative to {first}",
        reason=_untimed(found),
        source=f"Sums over the {rows[0].number if rows else 0} calls that both runs "
        "have; intervals from iterations resampled for both together. Call: from issue "
        "to the end on the slowest member; transfer: from the last member's issue.",
        columns=("ratio (dimensionless)", "part"),
        choices=("time",),
    )


def distances(found: Comparison, key: str, first: str, second: str) -> Chart | Missing:
    """Draw distances between the runs' traffic, and the within-run noise."""
    rows = [d for d in found.distances if np.isfinite(d.value)]

    def panel(rows: list[Any]) -> Panel:
        names = [_named(d) for d in rows]
        points = Series(
            kind="points",
            x=np.array([d.value for d in rows]),
            y=names,
            name=f"distance, {LEVEL:.0%} interval",
            size=9,
            x_interval=([d.low for d in rows], [d.high for d in rows]),
        )
        noise = Series(
            kind="points",
            x=np.array([d.floor for d in rows]),
            y=names,
            name="within-run noise (95th percentile)",
            color=OTHER_COLOR,
            symbol="tick",
            size=16,
        )
        measure = rows[0].measure
        label = f"{measure} ({SCALES[measure]})"
        return _rows(measure, label, (points, noise), from_zero=True)

    return _by_measure(
        rows,
        panel,
        key=f"{key}-distances",
        title=f"Distance of the traffic, {first} and {second}",
        reason="; ".join(found.notes) or "the runs have nothing in common",
        source="Layers and groups are matched by their order. A distance to the right "
        "of the gray mark exceeds the within-run noise of the first run.",
        columns=("distance (dimensionless)", "quantity"),
        choices=("metric",),
    )


def _rows(
    name: str,
    label: str,
    series: tuple[Series, ...],
    *,
    rules: tuple[Rule, ...] = (),
    from_zero: bool = False,
) -> Panel:
    return Panel(
        name=(name,),
        x=Axis(label=label, from_zero=from_zero or bool(rules)),
        y=Axis(reverse=True),
        series=series,
        rules=rules,
    )


def _by_measure(
    rows: Sequence[Any],
    panel: Callable[[list[Any]], Panel],
    *,
    title: str,
    reason: str,
    **named: Any,
) -> Chart | Missing:
    """Build a chart with one panel per metric, or the reason why there is none."""
    if not rows:
        return Missing(title=title, reason=reason)
    by = {m: [r for r in rows if r.measure == m] for m in [r.measure for r in rows]}
    most = max(map(len, by.values()))
    panels = tuple(map(panel, by.values()))
    return Chart(title=title, panels=panels, height=160 + 28 * most, **named)


def _untimed(found: Comparison) -> str:
    """Explain why no call times are compared."""
    notes = [n for n in found.notes if "time" in n or "duration" in n]
    return "; ".join(notes) or "no call has times in both traces"


def _part(of: TimeRatio) -> str:
    return "all calls" if of.by == "all" else f"{of.by} {of.label}".strip()


def _named(of: Distance) -> str:
    return f"{'all layers' if of.layer < 0 else f'layer {of.layer}'}: {of.of}"
