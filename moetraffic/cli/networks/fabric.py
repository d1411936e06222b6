"""``moetraffic fabric``: link loads of a run's traffic on another network."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import typer

from moetraffic.cli.output import Printing, printed, refuse_format
from moetraffic.errors import FabricError
from moetraffic.files import validate_outputs
from moetraffic.report.console.options import (
    Algorithm,
    Force,
    Iterations,
    Operations,
    Plot,
    TraceFile,
    on_command_line,
    operation_names,
    option,
    positive_numbers,
)
from moetraffic.trace import Trace
from moetraffic.units import bytes_per_second

TOPOLOGIES = ("single", "leaf-spine", "rails", "fat-tree", "torus", "dragonfly")
"""For the help; fabric.named, which also has them, takes long to import."""

NETWORK, TRAFFIC = "Network", "Traffic"

PARTS = ("network", "times", "links", "slowest", "collisions")


@printed(PARTS, plot=Plot)
def fabric(
    ctx: typer.Context,
    trace: TraceFile,
    topology: str = option(
        "leaf-spine",
        f"Topology: {', '.join(TOPOLOGIES)}, or a JSON file of a network.",
        panel=NETWORK,
    ),
    hosts: int | None = option(
        None, "Number of hosts.", panel=NETWORK, shown="as many as ranks need"
    ),
    ranks_per_host: int = option(1, "Number of ranks per host.", panel=NETWORK),
    nics: int | None = option(
        None, "Number of NICs per host.", panel=NETWORK, shown="one per rank"
    ),
    capacity: float = option(
        "400Gbps",
        "Capacity of a NIC, or of a torus's links, each way: 400Gbps, 50GB/s.",
        panel=NETWORK,
        read=bytes_per_second,
    ),
    inside: float = option(
        "450GB/s",
        "Capacity of a rank's link inside a host, each way.",
        panel=NETWORK,
        read=bytes_per_second,
    ),
    leaves: int | None = option(
        None, "Number of leaves, or pods of rails.", panel=NETWORK, shown="2; 1 pod"
    ),
    spines: int | None = option(
        None,
        "Number of spines.",
        panel=NETWORK,
        shown="uplinks about as fast as NICs",
        min=1,
    ),
    oversubscription: str | None = option(
        None,
        "Ratio of a leaf's downlink to uplink capacity; several are compared: 1,2,4.",
        panel=NETWORK,
        shown="1",
    ),
    forwarding: str | None = option(
        None, "NIC selection for rails: own or rail.", panel=NETWORK, shown="rail"
    ),
    ports: int | None = option(
        None,
        "Number of ports of a fat-tree's switch.",
        panel=NETWORK,
        shown="the fewest that fit",
    ),
    shape: str | None = option(
        None,
        "Shape of a torus: 4x4x2; of a dragonfly: hosts per router x routers x "
        "global links.",
        panel=NETWORK,
    ),
    slots: str = option(
        "block",
        "Ranks on hosts: block, strided, or slots separated by commas.",
        panel=TRAFFIC,
    ),
    routing: str = option(
        "ecmp",
        "Routing: ecmp, ideal (even split over shortest paths) or shortest.",
        panel=TRAFFIC,
    ),
    flows: int = option(
        1, "Number of ECMP flows of a pair of ranks.", panel=TRAFFIC, min=1
    ),
    seed: int = option(0, "Random seed of ECMP's hash.", panel=TRAFFIC, min=0),
    iterations: Iterations = None,
    operations: Operations = None,
    algorithm: Algorithm = "ring",
    hot: int = option(8, "Number of hottest links to show.", min=1),
    output: Path | None = option(
        None,
        "File to write: .json, or the link loads as .csv, .parquet or .xlsx.",
        *("-o", "--output"),
    ),
    force: Force = False,
    *,
    printing: Printing,
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
    is_file = topology not in TOPOLOGIES
    if is_file:
        options = {name: options[name] for name in on_command_line(ctx, options)}
    ratios: list[float | None] = [None]
    if (text := options.get("oversubscription")) is not None:
        what = "--oversubscription takes ratios"
        example = "a number above 0, or several such as 1,2,4"
        given = positive_numbers(text, what, example, kind=float)
        ratios = [*dict.fromkeys(given)]
    validate_outputs((printing.plot, output), (trace,), force=force)
    refuse_format(output)
    from moetraffic.analysis.exchange import beyond_last
    from moetraffic.analysis.times.traffic import (
        training_iterations,
        world_matrices,
    )
    from moetraffic.fabric.assessment import assess
    from moetraffic.fabric.named import load_fabric
    from moetraffic.report import oversubscription as compared
    from moetraffic.report.link_charts import figure
    from moetraffic.report.results import fabric as report

    with Trace.open(trace) as opened:
        chosen = training_iterations(opened, iterations)
        beyond = beyond_last(iterations, int(opened.iterations[-1]))
        world = opened.meta.world
        networks = [
            load_fabric(topology, world, **{**options, "oversubscription": ratio})
            for ratio in ratios
        ]
        no_spine = report.without_spines(networks[0].topology)
        if no_spine and len(ratios) > 1:
            raise FabricError(no_spine[0].rstrip("."))
        matrices = world_matrices(
            opened,
            chosen,
            operations=operation_names(opened, operations),
            algorithm=algorithm,
        )
        every = [
            assess(
                network,
                network.slots,
                matrices,
                routing=routing,
                seed=seed,
                flows=flows,
                hot=hot,
            )
            for network in networks
        ]
    order = "as in the file" if is_file else slots
    source = f"{trace.name}: {world} ranks (slots: {order}); network:"
    routed = report.routing_of(every[0])
    summary: list[Any]
    parts: dict[str, list[Any]] = {}
    if len(every) > 1:
        by_ratio = dict(zip(filter(None, ratios), every, strict=True))
        data = {"file": str(trace), **compared.as_dict(by_ratio, chosen)}
        summary = [*compared.sentences(by_ratio), compared.table(by_ratio)]
        chart = compared.figure(by_ratio, f"{source} {topology}, {routed}")
        frame = partial(compared.to_frame, by_ratio, chosen)
    else:
        found = every[0]
        data = {"file": str(trace), **report.as_dict(found, chosen)}
        shown = report.tables(found)
        summary = report.sentences(found)
        parts = {name: [one] for name, one in zip(PARTS, shown, strict=False)}
        chart = figure(found, chosen, f"{source} {found.topology.name}, {routed}")
        frame = partial(found.to_frame, chosen)
    summary += [f"{note.capitalize()}." for note in beyond]
    table = {"output": output, "frame": frame, "force": force}
    printing.present(data, *summary, parts=parts, chart=chart, **table)
