"""The complexity map of the packets between ranks."""

from __future__ import annotations

import numpy as np

from moetraffic.analysis import Analysis
from moetraffic.report.complexity import CORNERS, LEVELS

from .chart import FAINT, Chart, Missing, View, axes, colors, line, packed
from .skew import named

DISC = 46.0
"""Diameter in pixels of the disc of a trace without structure."""


def complexity(analysis: Analysis) -> Chart | Missing:
    """Structure in time upwards, structure in pairs to the right."""
    title = "Complexity map"
    known = [
        (e, e.complexity)
        for e in analysis.exchanges
        if e.complexity is not None and np.isfinite(e.complexity.product)
    ]
    if not known:
        why = "; ".join(n for n in analysis.notes if "complexity" in n)
        return Missing(
            title=title, reason=why or "no packets between different ranks were seen"
        )
    traces = []
    for level in LEVELS:
        x = np.linspace(level, 1.0, 40)
        traces.append(
            line(
                packed(x),
                packed(level / x),
                f"equal Ψ = {level:g}",
                "#D5D5D5",
                width=1.0,
                named=False,
                hoverinfo="skip",
                meta="floor",
            )
        )
    for (exchange, one), color in zip(known, colors(len(known)), strict=True):
        name = f"{named(exchange, analysis)}, {exchange.phase}"
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [one.non_temporal],
                "y": [one.temporal],
                "marker": {
                    "size": [DISC * float(np.sqrt(one.product))],
                    "color": color,
                    "opacity": 0.55,
                },
                "hovertemplate": f"{name}<br>NT %{{x:.3f}}, T %{{y:.3f}}, "
                f"Ψ {one.product:.3f}<extra></extra>",
                "error_x": _bar(one.non_temporal, one.non_temporal_interval),
                "error_y": _bar(one.temporal, one.temporal_interval),
            }
        )
        if np.isfinite(one.temporal_corrected):
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": f"{name}, T corrected",
                    "showlegend": False,
                    "x": [one.non_temporal],
                    "y": [one.temporal_corrected],
                    "marker": {"size": 5, "color": color},
                }
            )
    words = [
        {
            **{"x": x, "y": y, "text": f"<i>{text}</i>", "showarrow": False},
            **{"xanchor": across, "yanchor": up},
            "font": {"color": FAINT, "size": 11},
        }
        for x, y, text, across, up in CORNERS
    ]
    first = known[0][1]
    return Chart(
        key="complexity",
        title=title,
        source=f"{first.records:,} packets between different ranks, each of "
        f"{first.quantum} token copies (bytes, where copies are not known), "
        f"{first.order} within an iteration, compressed by {first.compressor} "
        "(Avin et al., SIGMETRICS 2020). Disc: T over NT, area as Ψ = T · NT; bars: "
        "95% over windows; dot: T corrected for the compressor; gray: equal Ψ.",
        columns=("NT (1 = all pairs alike)", "T (1 = no order in time)"),
        views=(
            View(
                traces=tuple(traces),
                layout={
                    **axes(
                        "non-temporal complexity NT (1 = all pairs alike)",
                        "temporal complexity T (1 = no order)",
                        x_range=[0, 1.08],
                        y_range=[0, 1.16],
                    ),
                    "annotations": words,
                },
            ),
        ),
        height=460,
    )


def _bar(value: float, interval: tuple[float, float]) -> dict[str, object]:
    low, high = interval
    return {
        "type": "data",
        "symmetric": False,
        "array": packed([high - value]),
        "arrayminus": packed([value - low]),
        "color": "#000000",
        "thickness": 1,
    }
