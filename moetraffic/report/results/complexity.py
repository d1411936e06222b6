"""Draw the complexity map: traces by temporal and non-temporal complexity.

After Avin, Ghobadi, Griner, Schmid (SIGMETRICS 2020), figure 1: non-temporal complexity
on the x axis, temporal complexity on the y axis, their product as the area.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

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

PARTS = (1.5, 1.0, 0.75, 0.5, 0.25)
"""The same where axes begin above 0: shares of the longer axis below 1."""

CORNERS = (
    ("bursty and skewed", "left", "bottom"),
    ("bursty", "right", "bottom"),
    ("skewed", "left", "top"),
    ("uniform and random", "right", "top"),
)

SPANS = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Lengths of the axes below 1: the first on which every value and interval lies."""

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
    left, bottom = _begin(known.values())
    series = []
    levels: tuple[float, ...] = LEVELS
    if left > 0 and bottom > 0:
        levels = tuple(1 - part * max(1 - left, 1 - bottom) for part in PARTS)
    for level in levels:
        x = np.linspace(max(level, left), 1.0, 80)
        x = x[level / x >= bottom]
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
    right, top = 1.0 + 0.06 * (1 - left), 1.0 + 0.16 * (1 - bottom)
    ends = {"left": left, "right": right, "bottom": bottom, "top": top}
    # in a part of the map only one corner is what its name is
    corners = [
        Label(
            x=ends[across] + (0.01 if across == "left" else -0.01) * (1 - left),
            y=ends[up] + (0.01 if up == "bottom" else -0.02) * (1 - bottom),
            text=text,
            across=across,
            up=up,
        )
        for text, across, up in CORNERS
        if left == bottom == 0.0 or text == "uniform and random"
    ]
    if left or bottom:
        about += f"; NT from {left:g} and T from {bottom:g} on are drawn"
    return Chart(
        key="complexity",
        title=TITLE,
        source=f"{source}. {about}" if source else f"{about}.",
        columns=("NT (1 = all pairs equally likely)", "T (1 = no order in time)"),
        panels=(
            Panel(
                x=Axis(
                    label="non-temporal NT (1 = uniform)",
                    limits=(left, right),
                ),
                y=Axis(label="temporal T (1 = no order)", limits=(bottom, top)),
                series=tuple(series),
                labels=tuple(corners),
            ),
        ),
        height=560,
    )


def _begin(found: Collection[Complexity]) -> tuple[float, float]:
    """Return where the axes of NT and T begin."""
    lowest = [np.nanmin([[one.non_temporal, one.temporal] for one in found], axis=0)]
    for one in found:
        ends = one.non_temporal_interval[0], one.temporal_interval[0]
        lowest.append(np.array(ends, float))
        lowest.append(np.array([np.nan, one.temporal_corrected]))
    least = np.nanmin(lowest, axis=0)
    begin = [1 - next(s for s in SPANS if s >= min(1.0, 1.2 * (1 - x))) for x in least]
    return begin[0], begin[1]
