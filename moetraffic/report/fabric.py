"""Traffic on a network as tables, plain data and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.console import Group
from rich.table import Table
from rich.text import Text

from moetraffic.fabric.assessment import Assessment
from moetraffic.fabric.bounds import bisection_bytes_s
from moetraffic.fabric.loads import link_times
from moetraffic.units import bit_rate, byte_size, duration

from .figures import AMOUNTS, LINE_COLORS

DRAWN = 16  # links in the picture
SETS = 6  # of links, in the table of collisions

BOUNDS = {
    "port": "busiest port of a host",
    "spreading": "even spreading over all shortest paths",
}


def as_dict(found: Assessment, iterations: Sequence[int]) -> dict[str, Any]:
    """All of it as plain data; times in s, amounts in bytes."""
    return {
        "fabric": {
            **found.topology.as_dict(),
            "bisection_bytes_s": bisection_bytes_s(found.topology),
        },
        "routing": found.routing,
        "iterations": list(iterations),
        "bytes_between_hosts": found.bytes_between_hosts,
        "bytes_inside_hosts": found.bytes_inside_hosts,
        "bottleneck_s": found.bottleneck_s,
        "lower_bounds_s": dict(found.bounds_s),
        "hottest_links": [
            {
                "link": hot.name,
                "capacity_bytes_s": hot.capacity_bytes_s,
                "mean_bytes": hot.mean_bytes,
                "max_bytes": hot.max_bytes,
                "mean_busy_s": hot.mean_s,
                "iterations_as_bottleneck": hot.bottleneck,
            }
            for hot in found.hot
        ],
        "ecmp_collisions": [
            {
                "links": list(one.links),
                "flows": one.flows,
                "max_flows": one.max_flows,
                "expected_max_flows": one.expected_max_flows,
                "probability_of_no_collision": one.no_collision,
                "max_bytes_over_even": one.bytes_over_even,
            }
            for one in found.collisions
        ],
    }


def tables(found: Assessment) -> Group:
    """All of it as tables."""
    parts: list[Any] = [_network(found), _times(found), _hot(found)]
    if found.collisions:
        parts.append(_collisions(found))
    elif found.routing == "ecmp":
        parts.append(Text("ECMP: no flow had more than one shortest path"))
    return Group(*parts)


def _network(found: Assessment) -> Table:
    told = found.topology
    table = Table.grid(padding=(0, 2))
    hosts = told.hosts
    table.add_row("network", told.name)
    table.add_row(
        "hosts",
        f"{hosts.number}, each {hosts.ranks} ranks and {hosts.nics} NICs of "
        f"{bit_rate(hosts.nic_bytes_s)}",
    )
    table.add_row(
        "switches",
        f"{len(told.switches)}, {int(told.between_switches.sum())} links between them",
    )
    half = bisection_bytes_s(told)
    if np.isfinite(half):
        table.add_row("bisection", f"{bit_rate(half)} each way")
    table.add_row(
        "traffic",
        f"{byte_size(found.bytes_between_hosts.mean())} between hosts, "
        f"{byte_size(found.bytes_inside_hosts.mean())} inside, a mean iteration",
    )
    return table


def _times(found: Assessment) -> Table:
    table = _table("Time of an iteration's traffic, all at once")
    table.add_column("what")
    for name in ("mean", "max", "mean over the routing's"):
        table.add_column(name, justify="right")
    rows = [(f"fullest link, {found.routing} routing", found.bottleneck_s)]
    rows += [
        (
            "lower bound: " + BOUNDS.get(name, name.replace("cut ", "cut through a ")),
            bound,
        )
        for name, bound in found.bounds_s.items()
    ]
    whole = float(found.bottleneck_s.mean())
    for name, values in rows:
        table.add_row(
            name,
            duration(float(values.mean())),
            duration(float(values.max())),
            f"{float(values.mean()) / whole:.3f}" if whole else "",
        )
    return table


def _hot(found: Assessment) -> Table:
    table = _table("Hottest links")
    table.add_column("link")
    for name in ("capacity", "mean load", "max load", "busy, mean", "bottleneck of"):
        table.add_column(name, justify="right")
    number = len(found.bottleneck_s)
    for hot in found.hot:
        table.add_row(
            hot.name,
            bit_rate(hot.capacity_bytes_s),
            byte_size(hot.mean_bytes),
            byte_size(hot.max_bytes),
            duration(hot.mean_s),
            f"{hot.bottleneck} of {number}",
        )
    return table


def _collisions(found: Assessment) -> Table:
    table = _table("ECMP: flows on equal links, beside balls in bins")
    table.add_column("links")
    for name in (
        "flows",
        "fullest link's",
        "expected",
        "P(no collision)",
        "bytes, max over even",
    ):
        table.add_column(name, justify="right")
    for one in found.collisions[:SETS]:
        last = one.links[-1].split(" -> ")[-1]
        table.add_row(
            f"{one.links[0]} to {last} ({len(one.links)})",
            f"{one.flows:.1f}",
            f"{one.max_flows:.2f}",
            f"{one.expected_max_flows:.2f}",
            f"{one.no_collision:.2g}",
            f"{one.bytes_over_even:.3f}",
        )
    if len(found.collisions) > SETS:
        table.caption = f"the most uneven {SETS} of {len(found.collisions)} sets"
        table.caption_justify = "left"
    return table


def figure(found: Assessment, iterations: Sequence[int], source: str) -> Figure:
    """Bottleneck and bounds over iterations; below, how long each hot link is busy."""
    fig = Figure(figsize=(9.0, 6.6), layout="constrained")
    FigureCanvasAgg(fig)
    lines, heat = fig.subplots(2, 1, height_ratios=(2, 3))
    at = np.asarray(iterations)
    top = float(max(found.bottleneck_s.max(initial=0.0), 1e-12))
    unit, scale = next(
        (u, s)
        for u, s in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))
        if top >= s or u == "ns"
    )
    curves = [(f"fullest link, {found.routing}", found.bottleneck_s)]
    curves += [
        (f"bound: {name.replace('cut ', 'cut, ')}", bound)
        for name, bound in found.bounds_s.items()
    ]
    for number, (name, values) in enumerate(curves):
        lines.plot(
            at,
            values / scale,
            label=name,
            color=LINE_COLORS[number % len(LINE_COLORS)],
            linewidth=2.0 if not number else 1.1,
            linestyle="-" if not number else ("--", ":", "-.")[number % 3],
            marker="o" if len(at) == 1 else None,
        )
    borders = (at[0] - 0.5, at[0] - 0.5 + len(at))
    lines.set_ylim(bottom=0)
    lines.set_xlim(borders)
    lines.set_ylabel(f"time [{unit}]")
    lines.legend(frameon=False, fontsize=8, ncols=3, loc="lower left")
    lines.spines[["top", "right"]].set_visible(False)
    lines.xaxis.set_major_locator(MaxNLocator(integer=True))
    times = link_times(found.topology, np.atleast_2d(found.loads))
    order = np.argsort(-times.mean(axis=0), kind="stable")[:DRAWN]
    image = heat.imshow(
        times[:, order].T / scale,
        aspect="auto",
        interpolation="nearest",
        cmap=AMOUNTS,
        vmin=0,
        extent=(*borders, len(order) - 0.5, -0.5),
    )
    heat.set_yticks(
        range(len(order)),
        [found.topology.link_name(int(link)) for link in order],
        fontsize=8,
    )
    heat.set_xlabel("iteration")
    heat.xaxis.set_major_locator(MaxNLocator(integer=True))
    fig.colorbar(image, ax=heat, label=f"busy [{unit}]", shrink=0.9)
    heat.set_title(f"the {len(order)} hottest links", loc="left", fontsize="medium")
    fig.suptitle("How long links are busy", x=0.01, ha="left", weight="bold")
    lines.set_title(source, loc="left", fontsize="small", color="#555555", wrap=True)
    return fig


def _table(title: str) -> Table:
    return Table(
        title=title, title_justify="left", box=None, header_style="bold", padding=(0, 1)
    )
