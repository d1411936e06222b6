"""Draw traffic on a network: time of the bottleneck link, bounds, busiest links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from moetraffic.analysis.times.traffic import world_matrices
from moetraffic.errors import MoetrafficError
from moetraffic.fabric.assessment import Assessment, assess
from moetraffic.fabric.loads import link_times
from moetraffic.fabric.named import Network
from moetraffic.report.chart import (
    DASHES,
    Axis,
    Chart,
    Missing,
    Panel,
    Series,
    line_colors,
)
from moetraffic.report.results.fabric import (
    ANY_FORWARDING,
    SAME_NICS,
    hosts_of,
    largest_bounds,
    ratios_of,
    routing_of,
    times_of,
)
from moetraffic.trace import Trace

DRAWN = 8  # links in the chart

MOST_BYTES = 1 << 27
"""Limit of the matrices that are assessed at once."""

MOST_ITERATIONS = 200

UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


def time_unit(longest_s: float) -> tuple[str, float]:
    """Select the unit of an axis of times, and its seconds."""
    return next((unit for unit in UNITS if longest_s >= unit[1]), UNITS[-1])


def charts(found: Assessment, iterations: Sequence[int], source: str) -> list[Chart]:
    """Draw the bottleneck time with its bounds, and the links with most busy time.

    The assessment has one matrix per iteration.
    """
    unit, scale = time_unit(float(found.bottleneck_s.max(initial=0.0)))
    holds = f"Lower bounds hold for {ANY_FORWARDING}"
    if SAME_NICS in largest_bounds(found):
        holds += f", that of a port for {SAME_NICS}"
    names: dict[tuple[float, ...], list[str]] = {}
    for name, values in times_of(found):
        names.setdefault(tuple(np.round(values / scale, 9).tolist()), []).append(name)
    idle = names.pop((0.0,) * len(iterations), []) if len(names) > 1 else []
    left_out = f"Always 0, not drawn: {', '.join(idle)}." if idle else ""
    lines = tuple(
        Series(
            x=list(iterations),
            y=np.array(values),
            name=_joined(equal),
            color=color,
            dash=DASHES[0] if number == 0 else DASHES[1 + (number - 1) % 3],
        )
        for number, ((values, equal), color) in enumerate(
            zip(names.items(), line_colors(len(names)), strict=True)
        )
    )
    times = link_times(found.topology, np.atleast_2d(found.loads))
    order = np.argsort(-times.mean(axis=0), kind="stable")[:DRAWN]
    heat = Series(
        kind="heatmap",
        x=list(iterations),
        y=[found.topology.link_name(int(link)) for link in order],
        z=times[:, order].T / scale,
        unit=f"busy time [{unit}]",
        hover=f"%{{y}}<br>iteration %{{x}}<br>%{{z:.4g}} {unit}<extra></extra>",
    )
    iteration = Axis(label="iteration")
    time = Axis(label=f"time [{unit}]", from_zero=True)
    return [
        Chart(
            key="bottleneck",
            title="Busy time of the bottleneck link",
            source=f"{source} {holds}.",
            columns=("iteration", f"time [{unit}]"),
            panels=(Panel(x=iteration, y=time, series=lines, note=left_out),),
        ),
        Chart(
            key="links",
            title="Bottleneck links",
            source=f"{source} The {len(order)} links with the longest mean busy time.",
            columns=("iteration", "link", f"busy time [{unit}]"),
            panels=(Panel(x=iteration, y=Axis(reverse=True), series=(heat,)),),
            height=150 + 20 * len(order),
        ),
    ]


def _joined(names: Sequence[str]) -> str:
    """Name what equal curves are, bounds in one pair of parentheses."""
    prefix = "lower bound: "
    bounds = [n.removeprefix(prefix) for n in names if n.startswith(prefix)]
    others = [n for n in names if not n.startswith(prefix)]
    return " = ".join(
        [*others, *[f"lower bound ({' = '.join(bounds)})"] * bool(bounds)]
    )


def figure(found: Assessment, iterations: Sequence[int], source: str) -> Chart:
    """Draw both charts of :func:`charts` below each other."""
    network = found.topology
    where = f"{source.rstrip('.')}. Hosts: {hosts_of(network)}."
    if ratios := ratios_of(network):
        where += f" Oversubscription {ratios}."
    times, links = charts(found, iterations, where)
    return replace(
        times,
        title="Busy time of links",
        source=links.source,
        panels=(*times.panels, *links.panels),
        height=400,
    )


def links(trace: Trace, network: Network) -> list[Chart | Missing]:
    """Draw the busy time of the bottleneck link with bounds, and the busiest links."""
    title = "Busy time of links"
    every = trace.iterations[np.isin(trace.iterations, trace.occurrences.iteration)]
    if not len(every):
        return [Missing(title=title, reason="there is no call in a training iteration")]
    fit = int(np.clip(MOST_BYTES // (8 * trace.meta.world**2), 1, MOST_ITERATIONS))
    chosen = every[:: max(1, -(-len(every) // fit))].tolist()
    try:
        found = assess(network.topology, network.slots, world_matrices(trace, chosen))
    except MoetrafficError as error:
        return [Missing(title=title, reason=str(error))]
    if not found.bottleneck_s.any():
        why = "no bytes between different ranks are known"
        return [Missing(title=title, reason=why)]
    source = (
        "All collectives of an iteration, sent at once; those of initialization are in "
        f"the first; network: {network.topology.name}, {routing_of(found)}; "
        f"all-reduces as rings. Hosts: {hosts_of(network.topology)}. "
        f"{len(chosen)} of {len(every)} iterations."
    )
    return [*charts(found, chosen, source)]
