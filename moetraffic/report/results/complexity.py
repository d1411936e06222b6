"""Draw temporal and non-temporal complexity of traces, layers or phases.

After Avin, Ghobadi, Griner, Schmid (SIGMETRICS 2020): non-temporal complexity NT,
temporal complexity T and their product.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from moetraffic.analysis import Analysis
from moetraffic.analysis.network.complexity import Complexity
from moetraffic.report.chart import (
    LINE_COLORS,
    Axis,
    Chart,
    Missing,
    Panel,
    Rule,
    Series,
)

from .skew import named

TITLE = "Complexity"

NO_INTERVAL = (np.nan, np.nan)


def complexities(analysis: Analysis) -> dict[str, Complexity]:
    """Return the complexity of each exchange by the name of its layer and phase."""
    return {
        f"{named(e, analysis)}, {e.phase}": e.complexity
        for e in analysis.exchanges
        if e.complexity is not None
    }


def complexity_chart(
    found: Mapping[str, Complexity], *, source: str = "", reason: str = ""
) -> Chart | Missing:
    """Draw NT, T and T without compressor bias, a row for each name.

    Bars are 95% intervals over windows. ``reason`` explains why nothing is known, if it
    is.
    """
    known = {n: c for n, c in found.items() if np.isfinite(c.trace_complexity)}
    if not known:
        why = reason or "no packets between different ranks were observed"
        return Missing(title=TITLE, reason=why)
    every = list(known.values())
    shown = (
        (
            "NT (non-temporal)",
            [c.non_temporal for c in every],
            [c.non_temporal_interval for c in every],
            "circle",
        ),
        (
            "T (temporal)",
            [c.temporal for c in every],
            [c.temporal_interval for c in every],
            "circle",
        ),
        (
            "T without compressor bias (estimate, no bar)",
            [c.temporal_corrected for c in every],
            [NO_INTERVAL] * len(every),
            "diamond",
        ),
    )
    series = []
    for number, (name, values, intervals, symbol) in enumerate(shown):
        low, high = np.array(intervals, float).T
        series.append(
            Series(
                kind="points",
                # a row has one line for each quantity
                x=np.array(values, float),
                y=np.arange(len(every)) + (number - 1) / 4,
                name=name,
                color=LINE_COLORS[number],
                symbol=symbol,
                x_interval=(low, high),
                hover="%{x:.4f}",
            )
        )
    one = every[0]
    about = (
        f"{one.records:,} packets between different ranks, each of {one.packet_size} "
        "token copies (bytes, where copies are not known), "
        f"{one.order} within an iteration, "
        f"compressed by {one.compressor} (Avin et al., SIGMETRICS 2020). NT = 1: all "
        "pairs are equally likely; T = 1: no order in time; bars: 95% of NT and T over "
        "windows; a compressor finds only part of the order, which makes T too large: "
        "T without this bias may lie outside T's bar"
    )
    return Chart(
        key="complexity",
        title=TITLE,
        source=f"{source}. {about}" if source else f"{about}.",
        columns=("complexity", "row"),
        panels=(
            Panel(
                x=Axis(label="complexity (1 = random)"),
                y=Axis(names=tuple(known), reverse=True),
                series=tuple(series),
                rules=(Rule(x=1.0),),
            ),
        ),
        height=150 + 40 * len(known),
    )
