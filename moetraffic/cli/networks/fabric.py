"""``moetraffic fabric``: link loads of a run's traffic on another network."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer import Option

from moetraffic.cli.show import (
    AllTables,
    AsJson,
    Force,
    NoTitle,
    Only,
    Output,
    Plot,
    Width,
    draw,
    show,
)
from moetraffic.errors import FabricError
from moetraffic.report.console.options import (
    Algorithm,
    Iterations,
    Operations,
    TraceFile,
    on_command_line,
    operation_names,
    positive_numbers,
)
from moetraffic.trace import Trace

TOPOLOGIES = ("single", "leaf-spine", "rails", "fat-tree", "torus", "dragonfly")
"""For the help; fabric.named, which also has them, takes long to import."""

NETWORK, TRAFFIC = "Network", "Traffic"


def _network(help: str, shown: str | None = None, **more: Any) -> Any:
    """Describe an option of the network."""
    if shown is not None:
        more["show_default"] = shown
    return Option(help=help, rich_help_panel=NETWORK, **more)


def fabric(
    context: typer.Context,
    trace: TraceFile,
    topology: Annotated[
        str,
        _network(f"Topology: {', '.join(TOPOLOGIES)}, or a JSON file of a network."),
    ] = "leaf-spine",
    hosts: Annotated[
        int | None, _network("Number of hosts.", "as many as ranks need")
    ] = None,
    ranks_per_host: Annotated[int, _network("Number of ranks per host.")] = 1,
    nics: Annotated[
        int | None, _network("Number of NICs per host.", "one per rank")
    ] = None,
    capacity: Annotated[
        str,
        _network(
            "Capacity of a NIC, or of a torus's links, each way: 400Gbps, 50GB/s."
        ),
    ] = "400Gbps",
    inside: Annotated[
        str, _network("Capacity of a rank's link inside a host, each way.")
    ] = "450GB/s",
    leaves: Annotated[
        int | None, _network("Number of leaves, or pods of rails.", "2; 1 pod")
    ] = None,
    spines: Annotated[
        int | None,
        _network("Number of spines.", "uplinks about as fast as NICs", min=1),
    ] = None,
    oversubscription: Annotated[
        str | None,
        _network(
            "Ratio of a leaf's downlink to uplink capacity; several are compared: "
            "1,2,4.",
            "1",
        ),
    ] = None,
    forwarding: Annotated[
        str | None, _network("NIC selection for rails: own or rail.", "rail")
    ] = None,
    ports: Annotated[
        int | None,
        _network("Number of ports of a fat-tree's switch.", "the fewest that fit"),
    ] = None,
    shape: Annotated[
        str | None,
        _network(
            "Shape of a torus: 4x4x2; of a dragonfly: hosts per router x routers x "
            "global links."
        ),
    ] = None,
    fail: Annotated[
        list[str] | None,
        _network(
            "Cable that fails, such as 'leaf0 -> spine1', or each: all cables between "
            "switches, one at a time."
        ),
    ] = None,
    slots: Annotated[
        str,
        Option(
            help="Ranks on hosts: block, strided, or slots separated by commas.",
            rich_help_panel=TRAFFIC,
        ),
    ] = "block",
    routing: Annotated[
        str,
        Option(
            help="Routing: ecmp, ideal (even split over shortest paths) or shortest.",
            rich_help_panel=TRAFFIC,
        ),
    ] = "ecmp",
    flows: Annotated[
        int,
        Option(
            help="Number of ECMP flows of a pair of ranks.",
            min=1,
            rich_help_panel=TRAFFIC,
        ),
    ] = 1,
    seed: Annotated[
        int,
        Option(help="Random seed of ECMP's hash.", min=0, rich_help_panel=TRAFFIC),
    ] = 0,
    iterations: Iterations = None,
    operations: Operations = None,
    algorithm: Algorithm = "ring",
    hot: Annotated[int, Option(help="Number of slowest links in a table.", min=1)] = 8,
    plot: Plot = None,
    width: Width = None,
    no_title: NoTitle = False,
    tables: AllTables = False,
    only: Only = None,
    as_json: AsJson = False,
    output: Output = None,
    force: Force = False,
) -> None:
    """Compute link loads of a run's traffic on a network, bounds and ECMP collisions.

    Example: moetraffic fabric run.h5 --topology leaf-spine --oversubscription 4
    """
    options: dict[str, Any] = {
        **{"hosts": hosts, "ranks_per_host": ranks_per_host, "nics": nics},
        **{"capacity": capacity, "inside": inside, "leaves": leaves, "spines": spines},
        **{"oversubscription": oversubscription, "forwarding": forwarding},
        **{"ports": ports, "shape": shape, "slots": slots},
    }
    if topology not in TOPOLOGIES:  # a file, which takes no option
        options = {name: options[name] for name in on_command_line(context, options)}
    what, example = "--oversubscription takes ratios", "a number above 0, or 1,2,4"
    given = options.get("oversubscription")
    ratios = positive_numbers(given, what, example, kind=float) or [None]
    from moetraffic.analysis.exchange import beyond_last
    from moetraffic.analysis.times.traffic import training_iterations, world_matrices
    from moetraffic.fabric import assess, compare, load_fabric
    from moetraffic.fabric.assessment import without_spines

    with Trace.open(trace) as opened:
        chosen = training_iterations(opened, iterations)
        beyond = beyond_last(iterations, int(opened.iterations[-1]))
        networks = {
            ratio: load_fabric(
                topology, opened.meta.world, **{**options, "oversubscription": ratio}
            )
            for ratio in ratios
        }
        if len(networks) > 1 and (why := without_spines(networks[ratios[0]])):
            raise FabricError(why[0].upper() + why[1:])
        matrices = world_matrices(
            opened,
            chosen,
            operations=operation_names(opened, operations),
            algorithm=algorithm,
        )
    results = {
        ratio: assess(
            network,
            matrices,
            iterations=chosen,
            routing=routing,
            seed=seed,
            flows=flows,
            hot=hot,
            fail=fail or (),
            name=str(trace),
            notes=beyond,
        )
        for ratio, network in networks.items()
    }
    result = compare(results) if len(results) > 1 else results[ratios[0]]
    show(result, tables=tables, only=only, as_json=as_json, output=output, force=force)
    if plot is not None:
        from moetraffic.report.views.fabric import picture

        draw(picture(result), plot, width=width, no_title=no_title, as_json=as_json)
