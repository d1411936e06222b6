"""``moetraffic fabric``: what a run's traffic would do on another network."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Annotated

import typer

from moetraffic.errors import AnalysisError, FabricError
from moetraffic.patterns.algorithms import ALGORITHMS
from moetraffic.trace import Trace
from moetraffic.trace.hdf5.durable import validate_outputs
from moetraffic.trace.iterations import iteration_range
from moetraffic.units import bytes_per_second

from .choices import Iterations, picture
from .output import console, print_json

TOPOLOGIES = ("single", "leaf-spine", "rails", "fat-tree", "torus", "dragonfly")
"""For the help; fabric.named, which says so too, takes long to import."""


def fabric(
    trace: Annotated[Path, typer.Argument(help="Trace file.")],
    topology: Annotated[
        str, typer.Option(help=f"{', '.join(TOPOLOGIES)}.")
    ] = "leaf-spine",
    hosts: Annotated[
        int | None, typer.Option(help="Hosts.", show_default="as many as ranks need")
    ] = None,
    ranks_per_host: Annotated[int, typer.Option(help="Ranks on a host.")] = 1,
    nics: Annotated[
        int | None, typer.Option(help="NICs of a host.", show_default="one a rank")
    ] = None,
    capacity: Annotated[
        str, typer.Option(help="Of a NIC, each way: 400Gbps, 50GB/s.")
    ] = "400Gbps",
    inside: Annotated[
        str, typer.Option(help="Of a rank's link inside a host, each way.")
    ] = "450GB/s",
    leaves: Annotated[
        int | None, typer.Option(help="Leaves, or pods of rails.", show_default="2, 1")
    ] = None,
    spines: Annotated[
        int | None,
        typer.Option(help="Spines.", show_default="uplinks about as fast as NICs"),
    ] = None,
    oversubscription: Annotated[
        float | None,
        typer.Option(help="What a leaf receives over its uplinks.", show_default="1"),
    ] = None,
    forwarding: Annotated[
        str | None,
        typer.Option(help="Which NIC, for rails: own, rail.", show_default="rail"),
    ] = None,
    ports: Annotated[
        int | None,
        typer.Option(help="Ports of a fat-tree's switch.", show_default="fits"),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            help="Torus: 4x4x2. Dragonfly: hosts a router x routers x global links."
        ),
    ] = None,
    slots: Annotated[
        str,
        typer.Option(help="Ranks on hosts: block, strided, or slots with commas."),
    ] = "block",
    routing: Annotated[str, typer.Option(help="ecmp, ideal or shortest.")] = "ecmp",
    flows: Annotated[int, typer.Option(help="ECMP flows of a pair of ranks.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the switches' hash.")] = 0,
    iterations: Iterations = None,
    operations: Annotated[
        str | None,
        typer.Option(help="Collectives, such as all_to_all.", show_default="all"),
    ] = None,
    algorithm: Annotated[
        str, typer.Option(help=f"How all-reduces travel: {', '.join(ALGORITHMS)}.")
    ] = "ring",
    hot: Annotated[int, typer.Option(help="Hottest links to name.")] = 8,
    plot: Annotated[
        Path | None, typer.Option(callback=picture, help="Picture to draw, PNG.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Overwrite the picture.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Put the traffic on a network: link loads, lower bounds, ECMP collisions.

    Example: moetraffic fabric run.h5 --topology leaf-spine --oversubscription 4
    """
    given = {
        "leaves": leaves,
        "spines": spines,
        "oversubscription": oversubscription,
        "forwarding": forwarding,
        "k": ports,
        "shape": shape,
    }
    options = {name: value for name, value in given.items() if value is not None}
    from moetraffic.fabric.named import named_topology, placed, refuse_options

    refuse_options(topology, options)
    if hot < 1:
        raise FabricError(f"at least 1 link is named, but hot is {hot}: raise --hot")
    validate_outputs((plot,), (trace,), force=force)
    rate, inner = bytes_per_second(capacity), bytes_per_second(inside)
    from moetraffic.analysis.times.iteration_traffic import world_matrices
    from moetraffic.fabric import Hosts
    from moetraffic.fabric.assessment import assess
    from moetraffic.fabric.topology import at_least
    from moetraffic.report import fabric as report
    from moetraffic.report import figures

    at_least(1, ranks_per_host, "ranks of a host")
    at_least(1, 1 if nics is None else nics, "NICs of a host")
    with Trace.open(trace) as opened:
        chosen = _iterations(opened, iterations)
        world = opened.meta.world
        made = named_topology(
            topology,
            Hosts(
                number=ceil(world / ranks_per_host) if hosts is None else hosts,
                ranks=ranks_per_host,
                nics=ranks_per_host if nics is None else nics,
                nic_bytes_s=rate,
                inside_bytes_s=inner,
            ),
            options,
        )
        at = placed(slots, world, made.hosts)
        matrices = world_matrices(
            opened,
            chosen,
            operations=_operations(opened, operations),
            algorithm=algorithm,
        )
        found = assess(
            made, at, matrices, routing=routing, seed=seed, flows=flows, hot=hot
        )
    if plot is not None:
        source = f"{trace.name}: {world} ranks, {slots}, on a {made.name}, {routing}"
        figures.save(report.figure(found, chosen, source), plot)
    if as_json:
        print_json({"file": str(trace), **report.as_dict(found, chosen)})
    else:
        console.print(*report.tables(found))
        if plot is not None:
            console.print(str(plot))


def _iterations(trace: Trace, asked: str | None) -> list[int]:
    """Training iterations of the trace, or those of a range among them."""
    there: list[int] = trace.iterations.tolist()
    chosen = iteration_range(asked)
    if chosen is not None:
        there = [i for i in there if chosen.start <= i < chosen.stop]
    if not there:
        raise AnalysisError(
            f"the traffic of training iterations is put on a network, but {trace.name} "
            f"has none{f' in {asked}' if asked else ''}: see moetraffic info"
        )
    return there


def _operations(trace: Trace, asked: str | None) -> list[str] | None:
    known = sorted({s.operation for s in trace.sites} - {"routing"})
    names = None if asked is None else asked.split(",")
    if names is not None and not set(names) <= set(known):
        raise AnalysisError(
            f"the trace has {', '.join(known)}, but operations are {asked!r}: choose "
            "among these"
        )
    return names
