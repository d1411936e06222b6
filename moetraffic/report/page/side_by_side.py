"""Compare two runs in charts: a run and its replay, or any other run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from moetraffic.analysis import Comparison
from moetraffic.analysis.comparison import SCALES
from moetraffic.analysis.resampling import LEVEL
from moetraffic.report.chart import (
    OTHER_COLOR,
    Axis,
    Chart,
    Missing,
    Panel,
    Rule,
    Series,
)
from moetraffic.tables import Table
from moetraffic.units import bit_rate


def ratios(found: Comparison, key: str, second: str) -> Chart | Missing:
    """Draw the ratio of total call times, second run to this one, by kind of call."""
    notes = [n for n in found.notes if "time" in n or "duration" in n]
    number = found.times[0].number if found.times else 0
    return _chart(
        [
            (
                t.measure,
                "all calls" if t.by == "all" else f"{t.by} {t.label}".strip(),
                *(t.ratio, np.nan),
            )
            for t in found.times
        ],
        "ratio",
        key=f"{key}-ratios",
        title=f"Call times of {second} relative to this run",
        reason="; ".join(notes) or "no call has times in both traces",
        source=f"Sums over the {number:,} calls that both runs have; intervals over "
        "iterations resampled for both together, of two replays over their runs. Call: "
        "from issue to the end on the slowest member; transfer: from the last member's "
        "issue.",
        columns=("ratio (dimensionless)", "part"),
        choices=("time",),
    )


def rates(found: Comparison, second: str, port_bytes_s: float) -> Table | None:
    """Tabulate busbw, its ratio to the bound of a rank's port, and waiting.

    busbw is the bytes of the bottleneck port over the transfer time, so that the rate
    of a port over it is the transfer time over its lower bound.  None where no
    all-to-all has times.
    """
    rows = []
    for ratio in found.times:
        if ratio.busbw_gbs is None or ratio.by == "all":
            continue
        name = f"{ratio.by} {ratio.label}".strip()
        over = [port_bytes_s / 1e9 / rate for rate in ratio.busbw_gbs]
        waiting = ratio.waiting or (None, None)
        rows.append((name, *ratio.busbw_gbs, *over, *waiting))
    if not rows:
        return None
    names = ("busbw [GB/s]", "transfer/lower bound", "waiting")
    forms = (".3g", ",.1f", ".0%")
    return Table(
        title="Bus bandwidth, lower bound and waiting of the all-to-alls",
        columns={"part": ""}
        | {
            f"{name}, {run}": form
            for name, form in zip(names, forms, strict=True)
            for run in ("captured", second)
        },
        rows=rows,
        notes=[
            f"Lower bound: each rank sends and receives {bit_rate(port_bytes_s)}. "
            "Waiting for late ranks: share of the time in calls."
        ],
    )


def distances(found: Comparison, key: str, second: str) -> Chart | Missing:
    """Draw distances between the runs' traffic, and the within-run noise."""
    return _chart(
        [
            (
                d.measure,
                f"{'all layers' if d.layer < 0 else f'layer {d.layer}'}: {d.of}",
                *(d, d.floor),
            )
            for d in found.distances
        ],
        "distance",
        key=f"{key}-distances",
        title=f"Distance between the traffic of this run and {second}",
        reason="; ".join(found.notes) or "the runs have nothing in common",
        source="Layers and groups are matched by their order. A distance to the right "
        "of the gray mark exceeds the within-run noise; distances of reruns of one "
        "program often do, too.",
        columns=("distance (dimensionless)", "quantity"),
        choices=("metric",),
    )


def _chart(
    rows: Sequence[tuple[str, str, Any, float]],
    what: str,
    *,
    title: str,
    reason: str,
    **named: Any,
) -> Chart | Missing:
    """Build a chart with one panel per metric, or the reason why there is none.

    Rows are metric, part, estimate with its interval, and noise (NaN: none).
    """
    known = [row for row in rows if np.isfinite(row[2].value)]
    if not known:
        return Missing(title=title, reason=reason)
    panels = []
    for measure in dict.fromkeys(row[0] for row in known):
        mine = [row[1:] for row in known if row[0] == measure]
        parts, estimates, noise = zip(*mine, strict=True)
        points = Series(
            kind="points",
            x=np.array([e.value for e in estimates]),
            y=list(parts),
            name=f"{what}, {LEVEL:.0%} interval",
            size=9,
            x_interval=([e.low for e in estimates], [e.high for e in estimates]),
        )
        marks = Series(
            kind="points",
            x=np.array(noise),
            y=list(parts),
            name="within-run noise (95th percentile)",
            color=OTHER_COLOR,
            symbol="tick",
            size=16,
        )
        relative = what == "ratio"
        label = "ratio of total times (1 = equal)"
        panels.append(
            Panel(
                name=(measure,),
                x=Axis(
                    label=label if relative else f"{measure} ({SCALES[measure]})",
                    from_zero=True,
                ),
                y=Axis(reverse=True),
                series=(points,) if relative else (points, marks),
                rules=(Rule(x=1),) if relative else (),
            )
        )
    most = max(len(panel.series[0].y) for panel in panels)
    return Chart(title=title, panels=tuple(panels), height=160 + 28 * most, **named)
