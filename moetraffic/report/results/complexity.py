"""Draw the complexity map: traces by temporal and non-temporal complexity.

After Avin, Ghobadi, Griner, Schmid (SIGMETRICS 2020), figure 1: non-temporal complexity
on the x axis, temporal complexity on the y axis, their product as the area.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from moetraffic.analysis import Analysis
from moetraffic.analysis.network.complexity import Complexity
from moetraffic.report.chart import (
    Axis,
    Chart,
    Label,
    Missing,
    Panel,
    Series,
    line_colors,
)

from .skew import named

DISC = 46.0
"""Diameter in pixels of the disc of a trace without any structure."""

LEVELS = (0.1, 0.25, 0.5, 0.75)
"""Products of both complexities that are drawn as curves."""

CORNERS = (
    (0.01, 0.01, "bursty and skewed", "left", "bottom"),
    (1.05, 0.01, "bursty", "right", "bottom"),
    (0.01, 1.14, "skewed", "left", "top"),
    (1.05, 1.14, "uniform and random", "right", "top"),
)

TITLE = "Complexity map"


def complexities(analysis: Analysis) -> dict[str, Complexity]:
    """Return the complexity of each exchange by the name of its layer and phase."""
    return {
        f"{named(e, analysis)}, {e.phase}": e.complexity
        for e in analysis.exchanges
        if e.complexity is not None
    }


def complexity_map(
    found: Mapping[str, Complexity], *, source: str = "", reason: str = ""
) -> Chart | Missing:
    """Draw the complexity of several traces, layers or phases, by name.

    Each is a disc at (NT, T) with an area proportional to Psi; bars are 95% intervals
    over windows, the small dot is T corrected for the compressor. ``reason`` explains
    why nothing is known, if it is.
    """
    known = {n: c for n, c in found.items() if np.isfinite(c.product)}
    if not known:
        why = reason or "no packets between different ranks were observed"
        return Missing(title=TITLE, reason=why)
    series = []
    for level in LEVELS:
        x = np.linspace(level, 1.0, 40)
        series.append(
            Series(
                x=x,
                y=level / x,
                name=f"equal Ψ = {level:g}",
                color="#D5D5D5",
                width=1.0,
                legend=False,
                reference=True,
            )
        )
    colors = dict(zip(known, line_colors(len(known)), strict=True))
    # the largest first, so that no disc is hidden
    for name, one in sorted(known.items(), key=lambda pair: -pair[1].product):
        series.append(
            Series(
                kind="points",
                x=[one.non_temporal],
                y=[one.temporal],
                name=name,
                color=colors[name],
                opacity=0.55,
                size=[DISC * float(np.sqrt(one.product))],
                x_interval=one.non_temporal_interval,
                y_interval=one.temporal_interval,
                hover=f"NT %{{x:.3f}}, T %{{y:.3f}}, Ψ {one.product:.3f}",
            )
        )
        if np.isfinite(one.temporal_corrected):
            series.append(
                Series(
                    kind="points",
                    size=5,
                    x=[one.non_temporal],
                    y=[one.temporal_corrected],
                    name=f"{name}, T corrected",
                    color=colors[name],
                    legend=False,
                )
            )
    one = next(iter(known.values()))
    about = (
        f"{one.records:,} packets between different ranks, each of {one.quantum} token "
        f"copies (bytes, where copies are not known), {one.order} within an iteration, "
        f"compressed by {one.compressor} (Avin et al., SIGMETRICS 2020). Disc: T over "
        "NT, area as Ψ = T · NT; bars: 95% over windows; dot: T corrected for the "
        "compressor; gray: equal Ψ"
    )
    corners = [
        Label(x=x, y=y, text=text, across=across, up=up)
        for x, y, text, across, up in CORNERS
    ]
    return Chart(
        key="complexity",
        title=TITLE,
        source=f"{source}. {about}" if source else f"{about}.",
        columns=("NT (1 = all pairs equally likely)", "T (1 = no order in time)"),
        panels=(
            Panel(
                x=Axis(
                    label="non-temporal complexity NT (1 = all pairs equally likely)",
                    limits=(0.0, 1.06),
                ),
                y=Axis(
                    label="temporal complexity T (1 = no order)", limits=(0.0, 1.16)
                ),
                series=tuple(series),
                labels=tuple(corners),
            ),
        ),
        height=560,
    )
