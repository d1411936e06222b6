"""``moetraffic fabric``: what a run's traffic would do on another network."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moetraffic.errors import AnalysisError, FabricError
from moetraffic.patterns.algorithms import ALGORITHMS
from moetraffic.report.units import bytes_per_second
from moetraffic.trace import Trace
from moetraffic.trace.durable import refuse_output
from moetraffic.trace.iterations import iteration_range

from .output import console, print_json

if TYPE_CHECKING:
    from moetraffic.fabric import Hosts, Topology

TOPOLOGIES = {
    "single": (),
    "leaf-spine": ("leaves", "spines", "oversubscription"),
    "rails": ("leaves", "spines", "oversubscription", "forwarding"),
    "fat-tree": ("k",),
    "torus": ("shape",),
    "dragonfly": ("shape",),
}
"""By name, the options that it takes."""


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
    k: Annotated[
        int | None,
        typer.Option("-k", help="Ports of a fat-tree's switch.", show_default="fits"),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            help="Torus: 4x4x2. Dragonfly: hosts a router x routers x global links."
        ),
    ] = None,
    placement: Annotated[
        str,
        typer.Option(help="Ranks on hosts: block, strided, or slots with commas."),
    ] = "block",
    routing: Annotated[str, typer.Option(help="ecmp, ideal or shortest.")] = "ecmp",
    flows: Annotated[int, typer.Option(help="ECMP flows of a pair of ranks.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the switches' hash.")] = 0,
    iterations: Annotated[
        str | None, typer.Option(help="Only iterations A:B, A up to, not with, B.")
    ] = None,
    operations: Annotated[
        str | None,
        typer.Option(help="Collectives, such as all_to_all.", show_default="all"),
    ] = None,
    algorithm: Annotated[
        str, typer.Option(help=f"How all-reduces travel: {', '.join(ALGORITHMS)}.")
    ] = "ring",
    hot: Annotated[int, typer.Option(help="Hottest links to name.")] = 8,
    plot: Annotated[Path | None, typer.Option(help="Picture to draw, PNG.")] = None,
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
        "k": k,
        "shape": shape,
    }
    options = _options(topology, {n: v for n, v in given.items() if v is not None})
    if hot < 1:
        raise FabricError(f"at least 1 link is named, but hot is {hot}: raise --hot")
    if plot is not None:
        refuse_output(plot, force=force)
    rate, inner = bytes_per_second(capacity), bytes_per_second(inside)
    from moetraffic.analysis.traffic import world_matrices
    from moetraffic.fabric import Hosts
    from moetraffic.fabric.assessment import assess
    from moetraffic.fabric.topology import at_least
    from moetraffic.report import fabric as report
    from moetraffic.report import figures

    at_least(1, ranks_per_host, "ranks of a host")
    with Trace.open(trace) as opened:
        chosen = _iterations(opened, iterations)
        world = opened.meta.world
        made = _network(
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
        slots = _placed(placement, world, made.hosts)
        matrices = world_matrices(
            opened,
            chosen,
            operations=_operations(opened, operations),
            algorithm=algorithm,
        )
        found = assess(
            made, slots, matrices, routing=routing, seed=seed, flows=flows, hot=hot
        )
    if plot is not None:
        source = (
            f"{trace.name}: {world} ranks, {placement}, on a {made.name}, {routing}"
        )
        figures.save(report.figure(found, chosen, source), plot)
    if as_json:
        print_json({"file": str(trace), **report.as_dict(found, chosen)})
    else:
        console.print(report.tables(found))
        if plot is not None:
            console.print(str(plot))


def _options(topology: str, given: dict[str, Any]) -> dict[str, Any]:
    """The options of a topology, if it takes them."""
    if topology not in TOPOLOGIES:
        raise FabricError(
            f"the topology is one of {', '.join(TOPOLOGIES)}, not {topology!r}: "
            "choose one"
        )
    for name in sorted(set(given) - set(TOPOLOGIES[topology])):
        takers = [t for t, names in TOPOLOGIES.items() if name in names]
        raise FabricError(
            f"{name} is of {', '.join(takers)}, but the topology is {topology}: leave "
            f"out {'-k' if name == 'k' else '--' + name}"
        )
    return given


def _network(topology: str, hosts: Hosts, options: dict[str, Any]) -> Topology:
    """The topology that the options ask for."""
    from moetraffic.fabric import (
        dragonfly,
        fat_tree,
        leaf_spine,
        rail_optimised,
        single_switch,
        torus,
    )

    if topology == "single":
        return single_switch(hosts)
    if topology == "leaf-spine":
        fitting = next((n for n in range(2, hosts.number) if hosts.number % n == 0), 1)
        two = 2 if hosts.number == 2 else fitting
        return leaf_spine(hosts, **{"leaves": two, **options})
    if topology == "rails":
        pods = options.pop("leaves", 1)
        return rail_optimised(hosts, pods=pods, **options)
    if topology == "fat-tree":
        k = 2
        while k**3 // 4 < hosts.number * hosts.nics:
            k += 2
        return fat_tree(hosts, **{"k": k, **options})
    sizes = _shape(options.get("shape"), topology, hosts.number)
    if topology == "torus":
        return torus(hosts, shape=sizes)
    each, routers, links = sizes
    return dragonfly(hosts, hosts_a_router=each, routers=routers, global_links=links)


def _shape(text: str | None, topology: str, hosts: int) -> list[int]:
    """Numbers with x between; a torus has a shape of its own, nearly square."""
    if text is None and topology == "torus":
        short = max(n for n in range(1, int(hosts**0.5) + 1) if hosts % n == 0)
        return [hosts // short, short] if short > 1 else [hosts]
    parts = (text or "").split("x")
    if all(part.isdecimal() for part in parts) and (
        topology == "torus" or len(parts) == 3
    ):
        return [int(part) for part in parts]
    raise FabricError(
        f"the shape of a {topology} is numbers with x between, not {text!r}: give "
        + (
            "--shape 4x4"
            if topology == "torus"
            else "--shape 2x4x2 for 2 hosts a router, 4 routers a group, 2 global links"
        )
    )


def _placed(placement: str, ranks: int, hosts: Hosts) -> Any:
    from moetraffic.fabric import PLACEMENTS, explicit

    if placement in PLACEMENTS:
        return PLACEMENTS[placement](ranks, hosts)
    parts = placement.split(",")
    if not all(part.isdecimal() for part in parts) or len(parts) != ranks:
        raise FabricError(
            f"a placement is {', '.join(PLACEMENTS)} or {ranks} slots with commas, one "
            f"a rank, not {placement!r}: choose one"
        )
    return explicit([int(part) for part in parts], hosts)


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
