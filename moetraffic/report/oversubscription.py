"""Compare the same traffic on networks that differ in their oversubscription."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.fabric.assessment import Assessment
from moetraffic.report.chart import LINE_COLORS, Axis, Chart, Panel, Series
from moetraffic.report.link_charts import time_unit
from moetraffic.report.results import fabric
from moetraffic.tables import Table
from moetraffic.units import duration, three_digits

if TYPE_CHECKING:
    import pandas


def as_dict(
    found: Mapping[float, Assessment], iterations: Sequence[int]
) -> dict[str, Any]:
    """Convert the assessment of each ratio to plain data, in the order given."""
    return {
        "networks": [
            {"oversubscription": ratio, **fabric.as_dict(one, iterations)}
            for ratio, one in found.items()
        ]
    }


def to_frame(
    found: Mapping[float, Assessment], iterations: Sequence[int]
) -> pandas.DataFrame:
    """Build the table of link loads of all ratios, with a column for the ratio."""
    import pandas

    frames = {ratio: one.to_frame(iterations) for ratio, one in found.items()}
    every = pandas.concat(frames, names=["oversubscription"])
    return every.reset_index(level=0).reset_index(drop=True)


def sentences(found: Mapping[float, Assessment]) -> list[str]:
    """State the bottleneck time of each ratio, and how many times that of the first."""
    mean = {ratio: float(one.bottleneck_s.mean()) for ratio, one in found.items()}
    first, *others = mean
    *_, last = found
    text = f"{first:g}:1 {duration(mean[first])}"
    like = f" times as long as {first:g}:1"
    for ratio in others:
        text += f", {ratio:g}:1 {duration(mean[ratio])}"
        if mean[first]:
            text += f" ({three_digits(mean[ratio] / mean[first])}{like})"
            like = " times"
    often = fabric.most_often(found[last])
    link = f", at {last:g}:1 {often}" if often else ""
    lines = [
        f"Bottleneck by oversubscription, {fabric.mean_of(found[first])}, "
        f"{fabric.routing_of(found[first])}: {text}{link}.",
        *_even_split(found),
    ]
    spines = [_spines(one) for one in found.values()]
    if len({*spines}) > 1:
        lines.append(
            f"Spines: {', '.join(map(str, spines))}, as many as make an uplink about "
            "as fast as a NIC; --spines gives all networks the same number."
        )
    return lines


def _even_split(found: Mapping[float, Assessment]) -> list[str]:
    """Compare the ratios with an even split, which no seed of a hash changes."""
    mean = {r: float(one.ideal_s.mean()) for r, one in found.items()}
    first, *others = mean
    if not mean[first] or not any(one.collisions for one in found.values()):
        return []
    times = (f"{r:g}:1 {three_digits(mean[r] / mean[first])} times" for r in others)
    like = f"as long as {first:g}:1 ({duration(mean[first])})"
    return [f"With an {fabric.EVEN}: {', '.join(times)} {like}."]


def _spines(one: Assessment) -> int:
    return sum(name.startswith("spine") for name in one.topology.switches)


def table(found: Mapping[float, Assessment]) -> Table:
    """Tabulate times and the bottleneck link, a row for each ratio."""
    first = next(iter(found))
    base = float(found[first].bottleneck_s.mean()) or np.nan
    routings, bounds = _bounds(found)
    return Table(
        title="Time of an iteration's traffic by oversubscription, all sent at once",
        columns={
            "oversubscription": ">",
            **{"mean": "s", "max": "s", f"ratio to {first:g}:1": ".3f"},
            **{
                "lower bound": "s",
                "bound by": "",
                "bottleneck link": "",
                "spines": ">",
            },
        },
        rows=[
            (
                *(f"{ratio:g}:1", one.bottleneck_s.mean(), one.bottleneck_s.max()),
                one.bottleneck_s.mean() / base,
                *(bounds[ratio].mean(), fabric.bounded_by(one, bounds[ratio])),
                *(one.hot[0].link if one.hot else "", _spines(one)),
            )
            for ratio, one in found.items()
        ],
        notes=[f"lower bound: of {routings}"],
    )


def _bounds(found: Mapping[float, Assessment]) -> tuple[str, dict[float, Float64]]:
    """Return the lower bound of each ratio, ``[n]`` s, and for what routings it is."""
    same = any(fabric.SAME_NICS in fabric.largest_bounds(one) for one in found.values())
    name = fabric.SAME_NICS if same else fabric.ANY_FORWARDING
    return name, {ratio: one.bound_s for ratio, one in found.items()}


def figure(found: Mapping[float, Assessment], source: str) -> Chart:
    """Draw the mean bottleneck time and lower bound over the ratios."""
    ratios = sorted(found)
    hosts = fabric.hosts_of(found[ratios[0]].topology)
    means = [float(found[ratio].bottleneck_s.mean()) for ratio in ratios]
    unit, scale = time_unit(max(means))
    routings, bounds = _bounds(found)
    routing = fabric.routing_of(found[ratios[0]])
    lines = tuple(
        Series(
            kind="points",  # nothing is known between the ratios
            x=[f"{ratio:g}:1" for ratio in ratios],  # ticks at these alone
            y=np.array(values) / scale,
            name=name,
            color=color,
            symbol=symbol,
            size=size,
        )
        for name, values, color, symbol, size in (
            (
                *(f"bottleneck link, {routing}", means),
                *(LINE_COLORS[0], "circle", 12.0),  # seen behind an equal bound
            ),
            (
                *(
                    f"lower bound of {routings} (largest of each iteration)",
                    [float(bounds[r].mean()) for r in ratios],
                ),
                *(LINE_COLORS[1], "diamond", 6.0),
            ),
        )
    )
    time = Axis(label=f"time [{unit}]", from_zero=True)
    ratio = Axis(label="oversubscription (a leaf's NICs to uplinks)")
    return Chart(
        key="oversubscription",
        title="Busy time of the bottleneck link by oversubscription",
        source=f"{source}. Hosts: {hosts}. Mean of iterations.",
        columns=("oversubscription", f"time [{unit}]"),
        panels=(Panel(x=ratio, y=time, series=lines),),
    )
