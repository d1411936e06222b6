"""Charts of traffic on a network: times of the slowest link, bounds, slowest links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from moetraffic.analysis.times.traffic import world_matrices
from moetraffic.errors import MoetrafficError
from moetraffic.fabric import Network, assess
from moetraffic.fabric.assessment import ANY_FORWARDING, EVEN, SAME_NICS
from moetraffic.report.chart import (
    DASHES,
    LINE_COLORS,
    Axis,
    Chart,
    Missing,
    Panel,
    Series,
    line_colors,
)
from moetraffic.result import Result
from moetraffic.trace import Trace

DRAWN = 8  # links in the chart

MOST_BYTES = 1 << 27
"""Limit of the matrices that are assessed at once."""

MOST_ITERATIONS = 200

UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


def time_unit(longest_s: float) -> tuple[str, float]:
    """Select the unit of an axis of times, and its seconds."""
    return next((unit for unit in UNITS if longest_s >= unit[1]), UNITS[-1])


def charts(result: Result) -> list[Chart]:
    """Draw the time of the slowest link with its bounds, and the slowest links.

    ``result``: of :func:`moetraffic.fabric.assess`.
    """
    data: Mapping[str, Any] = result.data
    unit, scale = time_unit(float(data["bottleneck_s"].max(initial=0.0)))
    iterations = list(data["iterations"])
    lines = {"slowest link": data["bottleneck_s"]}
    if data["routing"] != "ideal":
        lines[EVEN] = data["even_split_s"]
    lines[f"lower bound of {SAME_NICS}"] = data["same_nics_bound_s"]
    lines[f"lower bound of {ANY_FORWARDING}"] = data["any_forwarding_bound_s"]
    names: dict[tuple[float, ...], list[str]] = {}  # equal lines are drawn once
    for name, values in lines.items():
        names.setdefault(tuple(np.round(values / scale, 9).tolist()), []).append(name)
    drawn = tuple(
        Series(
            x=iterations,
            y=np.array(values),
            name=" = ".join(equal),
            color=color,
            dash=DASHES[min(number, len(DASHES) - 1)],
        )
        for number, ((values, equal), color) in enumerate(
            zip(names.items(), line_colors(len(names)), strict=True)
        )
    )
    loads = result.frame("loads").pivot(
        index="link", columns="iteration", values="time_s"
    )
    means = loads.mean(axis=1)
    slowest = means.sort_values(ascending=False, kind="stable").index[:DRAWN]
    heat = Series(
        kind="heatmap",
        x=iterations,
        y=list(slowest),
        z=loads.loc[slowest, iterations].to_numpy() / scale,
        unit=f"busy time [{unit}]",
        hover=f"%{{y}}<br>iteration %{{x}}<br>%{{z:.4g}} {unit}<extra></extra>",
    )
    iteration = Axis(label="iteration")
    return [
        Chart(
            key="bottleneck",
            title="Busy time of the slowest link",
            source=f"{result.head}.",
            columns=("iteration", f"time [{unit}]"),
            panels=(
                Panel(
                    x=iteration,
                    y=Axis(label=f"time [{unit}]", from_zero=True),
                    series=drawn,
                ),
            ),
        ),
        Chart(
            key="links",
            title="Slowest links",
            source=f"{result.head}. The {len(slowest)} links of the longest mean time.",
            columns=("iteration", "link", f"busy time [{unit}]"),
            panels=(Panel(x=iteration, y=Axis(reverse=True), series=(heat,)),),
            height=150 + 20 * len(slowest),
        ),
    ]


def picture(result: Result) -> Chart:
    """Draw both charts of :func:`charts` below each other, or ratios beside another."""
    if "networks" in result.tables:
        return ratios_chart(result)
    times, links = charts(result)
    return replace(
        times,
        title="Busy time of links",
        source=links.source,
        panels=(*times.panels, *links.panels),
        height=400,
    )


def ratios_chart(result: Result) -> Chart:
    """Draw the mean time of the slowest link and its bound by oversubscription."""
    frame = result.frame("networks").sort_values("oversubscription")
    unit, scale = time_unit(float(frame["mean_s"].max()))
    marks = (
        ("slowest link", "mean_s", "circle", 12.0),
        (f"lower bound of {SAME_NICS}", "bound_s", "diamond", 6.0),
    )
    points = tuple(
        Series(
            kind="points",  # nothing is known between the ratios
            x=[f"{ratio:g}:1" for ratio in frame["oversubscription"]],
            y=frame[column].to_numpy() / scale,
            name=name,
            color=color,
            symbol=symbol,
            size=size,
        )
        for (name, column, symbol, size), color in zip(marks, LINE_COLORS, strict=False)
    )
    time = Axis(label=f"time [{unit}]", from_zero=True)
    ratio = Axis(label="oversubscription (a leaf's NICs to uplinks)")
    return Chart(
        key="oversubscription",
        title="Busy time of the slowest link by oversubscription",
        source=f"{result.head}. Mean of iterations.",
        columns=("oversubscription", f"time [{unit}]"),
        panels=(Panel(x=ratio, y=time, series=points),),
    )


def links(trace: Trace, network: Network) -> list[Chart | Missing]:
    """Draw the traffic of a run's iterations on a network, for its page."""
    title = "Busy time of links"
    there = trace.iterations[np.isin(trace.iterations, trace.occurrences.iteration)]
    if not len(there):
        return [Missing(title=title, reason="there is no call in a training iteration")]
    fit = int(np.clip(MOST_BYTES // (8 * trace.meta.world**2), 1, MOST_ITERATIONS))
    chosen = there[:: max(1, -(-len(there) // fit))].tolist()
    try:
        name = f"{len(chosen)} of {len(there)} iterations"
        matrices = world_matrices(trace, chosen)
        result = assess(network, matrices, iterations=chosen, name=name)
    except MoetrafficError as error:
        return [Missing(title=title, reason=str(error))]
    if not result.data["bottleneck_s"].any():
        why = "no bytes between different ranks are known"
        return [Missing(title=title, reason=why)]
    return [*charts(result)]
