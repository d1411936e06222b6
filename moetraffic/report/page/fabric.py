"""What the traffic does to a network: link loads, circuits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moetraffic.analysis import Analysis
from moetraffic.analysis.times.iteration_traffic import world_matrices
from moetraffic.errors import MoetrafficError
from moetraffic.fabric import decompose
from moetraffic.fabric.assessment import Assessment, assess
from moetraffic.fabric.circuits import coverage, duty, terms_for
from moetraffic.fabric.loads import link_times
from moetraffic.fabric.named import Network
from moetraffic.report.fabric import BOUNDS, DRAWN
from moetraffic.trace import Trace
from moetraffic.units import bit_rate, duration

from .chart import (
    SCALE,
    Chart,
    Drawn,
    Missing,
    View,
    axes,
    bar_title,
    colors,
    line,
    packed,
    shorter,
)
from .matrices import Kept
from .skew import named

MOST_BYTES = 1 << 27
"""Of the matrices that are put on the network at once."""

MOST_ITERATIONS = 200

SMALL = 32
"""Ranks up to which the matching of fewest circuits is tried, which takes longest."""

MOST_TERMS = 400

FEW = 8
"""Permutations that are marked one by one."""

LONG = {"x_type": "log"}

RECONFIGURE_S = 10e-6


def links(trace: Trace, network: Network) -> list[Chart | Missing]:
    """How long links are busy: the fullest beside bounds, and the hottest."""
    titles = "How long the fullest link is busy", "The hottest links"
    there = trace.iterations
    fit = int(np.clip(MOST_BYTES // (8 * trace.meta.world**2), 1, MOST_ITERATIONS))
    step = max(1, -(-len(there) // fit))
    chosen = there[::step].tolist()
    try:
        found = assess(network.topology, network.slots, world_matrices(trace, chosen))
    except MoetrafficError as error:
        return [Missing(title=t, reason=str(error)) for t in titles]
    if not found.bottleneck_s.any():
        why = "no bytes between different ranks are known"
        return [Missing(title=t, reason=why) for t in titles]
    hosts = network.topology.hosts
    source = (
        f"All collectives of an iteration, all at once, on a {network.topology.name} "
        f"of {hosts.number} hosts with {many(hosts.ranks, 'rank')} and "
        f"{many(hosts.nics, 'NIC')} of {bit_rate(hosts.nic_bytes_s)} each, "
        f"{found.routing} routing; all-reduces as rings. {len(chosen)} of {len(there)} "
        "iterations."
    )
    unit, scale = _unit(float(found.bottleneck_s.max()))
    return [
        _bounds(found, chosen, titles[0], source, unit, scale),
        _hot(found, chosen, titles[1], source, unit, scale),
    ]


def many(number: int, of: str) -> str:
    """So many of something.

    Examples
    --------
    >>> many(1, "rank"), many(8, "rank")
    ('1 rank', '8 ranks')
    """
    return f"{number} {of}{'' if number == 1 else 's'}"


def _unit(top: float) -> tuple[str, float]:
    units = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
    return next((u for u in units if top >= u[1]), units[-1])


def _bounds(
    found: Assessment, at: list[int], title: str, source: str, unit: str, scale: float
) -> Chart:
    curves = [(f"fullest link, {found.routing}", found.bottleneck_s)]
    curves += [
        ("bound: " + BOUNDS.get(name, name.replace("cut ", "cut through a ")), bound)
        for name, bound in found.bounds_s.items()
    ]
    traces = tuple(
        line(
            packed(at),
            packed(values / scale),
            name,
            color,
            # where they are the same, the one behind is seen around the other
            width=max(1.2, 4.0 - 0.6 * number),
            dash=("solid", "dash", "dot", "dashdot")[number % 4],
        )
        for number, ((name, values), color) in enumerate(
            zip(curves, colors(len(curves)), strict=True)
        )
    )
    return Chart(
        key="bottleneck",
        title=title,
        source=f"{source} Bounds: below these no routing can be.",
        columns=("iteration", f"time [{unit}]"),
        views=(
            View(
                traces=traces,
                layout=axes("iteration", f"busy [{unit}]", y_rangemode="tozero"),
            ),
        ),
    )


def _hot(
    found: Assessment, at: list[int], title: str, source: str, unit: str, scale: float
) -> Chart:
    times = link_times(found.topology, np.atleast_2d(found.loads))
    order = np.argsort(-times.mean(axis=0), kind="stable")[:DRAWN]
    names = [found.topology.link_name(int(n)) for n in order]
    return Chart(
        key="links",
        title=title,
        source=f"{source} The {len(order)} that are busy for longest on average.",
        columns=("iteration", "link", f"busy [{unit}]"),
        views=(
            View(
                traces=(
                    {
                        "type": "heatmap",
                        "x": packed(at),
                        "y": [shorter(n, 22) for n in names],
                        "z": packed(times[:, order].T / scale),
                        "zmin": 0,
                        "zmax": float(times.max() / scale),
                        "colorscale": SCALE,
                        "colorbar": bar_title(f"busy [{unit}]"),
                        "hovertemplate": "%{y}<br>iteration %{x}<br>%{z:.4g} "
                        f"{unit}<extra></extra>",
                    },
                ),
                layout=axes("iteration", "", y_autorange="reversed"),
            ),
        ),
        height=150 + 20 * len(order),
    )


def circuits(analysis: Analysis, kept: Kept, network: Network) -> Chart | Missing:
    """What share of the demand the first so many permutations serve."""
    title = "Circuits: coverage by Birkhoff-von-Neumann permutations"
    rate = network.topology.hosts.nic_bytes_s
    views = []
    for exchange in analysis.exchanges:
        wires = kept.seen[exchange.layer, exchange.group].wires()
        if wires is None or len(exchange.ranks) < 2:
            continue
        mean = np.rint(wires.mean(axis=0)).astype(np.int64)
        np.fill_diagonal(mean, 0)  # what a rank keeps takes no circuit
        if mean.any():
            views.append(
                _served(mean, rate, (f"{named(exchange, analysis)}, {exchange.phase}",))
            )
    if not views:
        return Missing(title=title, reason="no bytes between different ranks were seen")
    return Chart(
        key="circuits",
        title=title,
        source="The mean matrix of the iterations whose matrices are in this page, "
        "without what ranks keep, decomposed into permutations by each matching; "
        f"circuits of {bit_rate(rate)}, {duration(RECONFIGURE_S)} to set them.",
        columns=("permutations", "demand served [%]"),
        choices=("layer",),
        views=tuple(views),
    )


def _served(mean: npt.NDArray[np.int64], rate: float, name: tuple[str, ...]) -> View:
    matchings = ("max-min", "max-weight") if len(mean) <= SMALL else ("max-weight",)
    matchings = (*matchings, "halving")
    traces: list[Drawn] = []
    words = []
    most = 0
    # where they are the same, the one behind is seen around the other
    for matching, color, width in zip(
        matchings, colors(len(matchings)), (5.0, 3.0, 1.4), strict=False
    ):
        found = decompose(mean, matching=matching)
        share = 100 * coverage(found)
        at = np.unique(
            np.rint(np.geomspace(1, len(share), min(MOST_TERMS, len(share))))
        ).astype(np.int64)
        drawn = line(packed(at), packed(share[at - 1]), matching, color, width=width)
        if len(at) <= FEW:  # a line of one point is not seen
            marker = {"color": color, "size": 5 + 2 * width}
            drawn |= {"mode": "lines+markers", "marker": marker}
        most = max(most, len(share))
        traces.append(drawn)
        told = duty(found, capacity_bytes_s=rate, reconfigure_s=RECONFIGURE_S)
        words.append(
            f"{matching}: {terms_for(found, 0.9)} of {found.terms} serve 90%, duty "
            f"{100 * told.duty:.2g}%, {duration(told.total_s)} (bound "
            f"{duration(told.bound_s)})"
        )
    return View(
        name=name,
        traces=tuple(traces),
        layout=axes(
            "permutations, in the order found",
            "demand served [%]",
            y_range=[0, 104],
            **({"x_dtick": 1, "x_range": [0, most + 1]} if most <= FEW else LONG),
        ),
        aside="; ".join(words) + ".",
    )
