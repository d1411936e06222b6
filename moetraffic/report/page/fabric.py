"""Draw the traffic of a run on a network: link loads and circuit schedules."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moetraffic.analysis import Analysis
from moetraffic.analysis.times.iteration_traffic import world_matrices
from moetraffic.errors import MoetrafficError
from moetraffic.fabric import decompose
from moetraffic.fabric.assessment import assess
from moetraffic.fabric.circuits import coverage, duty, terms_for
from moetraffic.fabric.named import Network
from moetraffic.report.chart import Axis, Chart, Missing, Panel, Series, line_colors
from moetraffic.report.results.fabric import charts
from moetraffic.report.results.skew import named
from moetraffic.trace import Trace
from moetraffic.units import bit_rate, duration

from .matrices import Kept

MOST_BYTES = 1 << 27
"""Limit of the matrices that are assessed at once."""

MOST_ITERATIONS = 200

SMALL = 32
"""Maximum number of ranks for the slowest matching, with the fewest circuits."""

MOST_TERMS = 400

FEW = 8
"""Up to this number, each permutation has a marker."""

RECONFIGURE_S = 10e-6


def links(trace: Trace, network: Network) -> list[Chart | Missing]:
    """Draw the busy time of the bottleneck link with bounds, and the busiest links."""
    title = "Busy time of links"
    every = trace.iterations
    fit = int(np.clip(MOST_BYTES // (8 * trace.meta.world**2), 1, MOST_ITERATIONS))
    chosen = every[:: max(1, -(-len(every) // fit))].tolist()
    try:
        found = assess(network.topology, network.slots, world_matrices(trace, chosen))
    except MoetrafficError as error:
        return [Missing(title=title, reason=str(error))]
    if not found.bottleneck_s.any():
        why = "no bytes between different ranks are known"
        return [Missing(title=title, reason=why)]
    hosts = network.topology.hosts
    source = (
        f"All collectives of an iteration, sent at once, on a {network.topology.name} "
        f"of {hosts.number} hosts with {hosts.ranks} ranks and {hosts.nics} NICs of "
        f"{bit_rate(hosts.nic_bytes_s)} each, {found.routing} routing; all-reduces as "
        f"rings. {len(chosen)} of {len(every)} iterations."
    )
    return [*charts(found, chosen, source)]


def circuits(analysis: Analysis, kept: Kept, network: Network) -> Chart | Missing:
    """Draw the share of demand that the first n circuit permutations serve."""
    title = "Circuits: coverage by Birkhoff-von-Neumann permutations"
    rate = network.topology.hosts.nic_bytes_s
    panels = []
    for exchange in analysis.exchanges:
        wires = kept.seen[exchange.layer, exchange.group].wires()
        if wires is None or len(exchange.ranks) < 2:
            continue
        mean = np.rint(wires.mean(axis=0)).astype(np.int64)
        np.fill_diagonal(mean, 0)  # rank-local traffic takes no circuit
        if mean.any():
            name = f"{named(exchange, analysis)}, {exchange.phase}"
            panels.append(_coverage(mean, rate, (name,)))
    if not panels:
        why = "no bytes between different ranks were observed"
        return Missing(title=title, reason=why)
    return Chart(
        key="circuits",
        title=title,
        source="Mean matrix of the iterations whose matrices are in this page, without "
        "rank-local traffic, decomposed into permutations by each matching; circuits "
        f"of {bit_rate(rate)}, reconfiguration {duration(RECONFIGURE_S)}.",
        columns=("permutations", "demand served [%]"),
        choices=("layer",),
        panels=tuple(panels),
    )


def _coverage(mean: npt.NDArray[np.int64], rate: float, name: tuple[str, ...]) -> Panel:
    fewest = ("max-min",) if len(mean) <= SMALL else ()
    matchings = (*fewest, "max-weight", "halving")
    series, notes, most = [], [], 0
    # decreasing widths keep coinciding lines visible
    for matching, color, width in zip(
        matchings, line_colors(len(matchings)), (5.0, 3.0, 1.4), strict=False
    ):
        found = decompose(mean, matching=matching)
        share = 100 * coverage(found)
        at = np.unique(
            np.rint(np.geomspace(1, len(share), min(MOST_TERMS, len(share))))
        ).astype(np.int64)
        most = max(most, len(share))
        series.append(
            Series(
                x=at,
                y=share[at - 1],
                name=matching,
                color=color,
                width=width,
                marked=len(at) <= FEW,  # a line of one point is invisible
                size=5 + 2 * width,
            )
        )
        cycle = duty(found, capacity_bytes_s=rate, reconfigure_s=RECONFIGURE_S)
        notes.append(
            f"{matching}: {terms_for(found, 0.9)} of {found.terms} serve 90%, duty "
            f"cycle {100 * cycle.duty:.2g}%, {duration(cycle.total_s)} (lower bound "
            f"{duration(cycle.bound_s)})"
        )
    few = most <= FEW
    return Panel(
        name=name,
        x=Axis(
            label="permutations, in the order found",
            log=not few,
            limits=(0, most + 1) if few else None,
        ),
        y=Axis(label="demand served [%]", limits=(0, 104)),
        series=tuple(series),
        note="; ".join(notes) + ".",
    )
