"""Two runs side by side: a run and its replay, or any other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from moetraffic.analysis import Comparison, Distance
from moetraffic.analysis.comparison import SCALES
from moetraffic.analysis.resampling import LEVEL
from moetraffic.analysis.times.completion import TimeRatio
from moetraffic.trace import Trace
from moetraffic.units import byte_size, duration

from .chart import (
    FAINT,
    Chart,
    Drawn,
    Listed,
    Missing,
    View,
    axes,
    colors,
    interval,
    packed,
)

QUANTILES = ("p50", "p90", "p99", "max")
SYMBOLS = ("circle", "diamond", "square", "cross")


def ratios(found: Comparison, key: str, first: str, second: str) -> Chart | Missing:
    """The second's total time over the first's, a row each part of the calls."""
    title = f"Times of {second} over those of {first}, by part"
    told = [t for t in found.times if np.isfinite(t.ratio.value)]
    if not told:
        return Missing(title=title, reason=untimed(found))
    color = colors(1)[0]
    views = []
    for measure in dict.fromkeys(t.measure for t in told):
        rows = [t for t in told if t.measure == measure]
        names = [_part(t) for t in rows]
        one: Drawn = {
            "type": "scatter",
            "mode": "markers",
            "name": f"{measure} time",
            "x": packed([t.ratio.value for t in rows]),
            "y": names,
            "marker": {"size": 9, "color": color},
        }
        reach = interval(
            [t.ratio.low for t in rows],
            [t.ratio.high for t in rows],
            names,
            f"{LEVEL:.0%} interval",
            color,
        )
        shape = {
            "type": "line",
            **{"x0": 1, "x1": 1, "y0": 0, "y1": 1, "yref": "paper"},
            "line": {"color": "#000000", "width": 1, "dash": "dot"},
        }
        views.append(
            View(
                name=(measure,),
                traces=(reach, one),
                layout={
                    **axes(
                        "ratio of total times (1 = the same)",
                        "",
                        x_rangemode="tozero",
                        y_autorange="reversed",
                    ),
                    "shapes": [shape],
                },
            )
        )
    most = max(len(v.traces[-1]["y"]) for v in views)
    return Chart(
        key=f"{key}-ratios",
        title=title,
        source=f"{capital(second)} over {first}: sums over the calls that both have, "
        f"{told[0].number} in all; intervals from iterations drawn for both together. "
        "Call: from the call to its end on the slowest member; transfer: from when its "
        "last member came.",
        columns=("ratio (dimensionless)", "part"),
        choices=("time",),
        views=tuple(views),
        height=130 + 28 * most,
    )


def quantiles(found: Comparison, key: str, first: str, second: str) -> Chart | Missing:
    """How times are spread in both runs."""
    title = "How long calls take in both"
    told = [t for t in found.times if np.isfinite(t.a.p50) and np.isfinite(t.b.p50)]
    if not told:
        return Missing(title=title, reason=untimed(found))
    views = []
    for measure in dict.fromkeys(t.measure for t in told):
        rows = [t for t in told if t.measure == measure]
        traces: list[Drawn] = []
        for run, color, pick in (
            (first, colors(2)[0], "a"),
            (second, colors(2)[1], "b"),
        ):
            for quantile, symbol in zip(QUANTILES, SYMBOLS, strict=True):
                traces.append(
                    {
                        "type": "scatter",
                        "mode": "markers",
                        "name": f"{run}, {quantile}" if quantile != "p50" else run,
                        "showlegend": quantile == "p50",
                        "x": packed(
                            [1e3 * getattr(getattr(t, pick), quantile) for t in rows]
                        ),
                        "y": [_part(t) for t in rows],
                        "marker": {"color": color, "symbol": symbol, "size": 8},
                    }
                )
        views.append(
            View(
                name=(measure,),
                traces=tuple(traces),
                layout=axes("time [ms]", "", x_type="log", y_autorange="reversed"),
            )
        )
    most = max(len(v.traces[-1]["y"]) for v in views)
    marks = ", ".join(f"{s}: {q}" for q, s in zip(QUANTILES, SYMBOLS, strict=True))
    return Chart(
        key=f"{key}-quantiles",
        title=title,
        source=f"{capital(first)} and {second}: quantiles over the calls that both "
        f"have. {capital(marks)}.",
        columns=("time [ms]", "part"),
        choices=("time",),
        views=tuple(views),
        height=190 + 28 * most,
    )


def distances(found: Comparison, key: str, first: str, second: str) -> Chart | Missing:
    """How far apart the traffic is, beside the first run's distance to itself."""
    title = "How far apart the traffic is"
    told = [d for d in found.distances if np.isfinite(d.value)]
    if not told:
        return Missing(
            title=title, reason="; ".join(found.notes) or "nothing in common"
        )
    views = []
    for measure in dict.fromkeys(d.measure for d in told):
        rows = [d for d in told if d.measure == measure]
        names = [_named(d) for d in rows]
        reach = interval(
            [d.low for d in rows],
            [d.high for d in rows],
            names,
            f"{LEVEL:.0%} interval",
            colors(1)[0],
        )
        one: Drawn = {
            "type": "scatter",
            "mode": "markers",
            "name": "apart",
            "x": packed([d.value for d in rows]),
            "y": names,
            "marker": {"size": 9, "color": colors(1)[0]},
        }
        floor: Drawn = {
            "type": "scatter",
            "mode": "markers",
            "name": f"first run from itself, {LEVEL:.0%} quantile",
            "x": packed([d.floor for d in rows]),
            "y": names,
            "marker": {"symbol": "line-ns-open", "size": 16, "color": FAINT},
        }
        views.append(
            View(
                name=(measure,),
                traces=(reach, one, floor),
                layout=axes(
                    f"{measure} ({SCALES[measure]})",
                    "",
                    x_rangemode="tozero",
                    y_autorange="reversed",
                ),
            )
        )
    most = max(len(v.traces[-1]["y"]) for v in views)
    return Chart(
        key=f"{key}-distances",
        title=title,
        source=f"{capital(first)} and {second}, layers and groups matched by their "
        "order. What lies right of the gray mark is more than the first run differs "
        "from itself.",
        columns=("distance (dimensionless)", "of"),
        choices=("measure",),
        views=tuple(views),
        height=130 + 28 * most,
    )


def figures(found: Comparison, key: str) -> Listed | Missing:
    """The times of all parts in figures."""
    title = "Times in figures"
    if not found.times:
        return Missing(title=title, reason=untimed(found))
    return Listed(
        key=f"{key}-times",
        title=title,
        source="Calls that both have; p50 and p99 of the first and the second.",
        head=(
            *("of", "time", "calls", "p50, 1st", "p50, 2nd", "p99, 1st", "p99, 2nd"),
            "ratio",
        ),
        rows=tuple(
            (
                *(_part(t), t.measure, str(t.number)),
                *(duration(v) for v in (t.a.p50, t.b.p50, t.a.p99, t.b.p99)),
                f"{t.ratio.value:.4g}" if np.isfinite(t.ratio.value) else "",
            )
            for t in found.times
        ),
    )


def who(traces: Sequence[tuple[str, Trace]]) -> Listed:
    """What the runs are."""
    rows = []
    for name, trace in traces:
        meta = trace.meta
        rows.append(
            (
                name,
                Path(trace.name).name,
                meta.origin,
                meta.model,
                str(meta.world),
                f"{meta.router} k={meta.k}" if meta.router else "",
                meta.backend,
                str(len(trace.iterations)),
                byte_size(_size(trace)) if _size(trace) else "",
            )
        )
    return Listed(
        key=f"runs-{traces[1][0].split()[0]}",
        title="The runs",
        source="What the traces say of themselves.",
        head=(
            *("", "file", "origin", "model", "ranks", "router", "backend"),
            *("iterations", "file size"),
        ),
        rows=tuple(rows),
    )


def _size(trace: Trace) -> int:
    path = Path(trace.name)
    return path.stat().st_size if path.is_file() else 0


def capital(text: str) -> str:
    """A sentence's begin."""
    return text[:1].upper() + text[1:]


def untimed(found: Comparison) -> str:
    """Why no times are compared."""
    told = [n for n in found.notes if "time" in n or "duration" in n]
    return "; ".join(told) or "no call has times in both traces"


def _part(of: TimeRatio) -> str:
    return "all calls" if of.by == "all" else f"{of.by} {of.label}".strip()


def _named(of: Distance) -> str:
    return f"{'all layers' if of.layer < 0 else f'layer {of.layer}'}: {of.of}"
