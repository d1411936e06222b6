"""Link loads, times, bounds and collisions of byte matrices on one network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.tables import ShownAsTables

from .collisions import Collision, collisions
from .loads import (
    BottleneckLink,
    byte_matrices,
    cut_bounds,
    hottest,
    link_loads,
    link_times,
    port_bound,
    spreading_bound,
)
from .routing import route
from .topology import Topology

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Assessment(ShownAsTables):
    """Link loads, times, lower bounds and ECMP collisions of n byte matrices."""

    topology: Topology
    routing: str
    loads: npt.NDArray[np.generic]  # [n, L] bytes
    bytes_between_hosts: Float64  # [n]
    bytes_inside_hosts: Float64  # [n], without rank-local (self) traffic
    bottleneck_s: Float64  # [n] time of the bottleneck link
    bounds_s: Mapping[str, Float64]  # [n] by name, such as "port", "cut host"
    hot: tuple[BottleneckLink, ...]
    collisions: tuple[Collision, ...]  # ECMP only


def assess(
    topology: Topology,
    slots: Int64,
    matrices: npt.ArrayLike,
    *,
    routing: str = "ecmp",
    seed: int = 0,
    flows: int = 1,
    hot: int = 8,
) -> Assessment:
    """Compute link loads, times, bounds and collisions of byte matrices on a network.

    Parameters
    ----------
    topology
        Network topology.
    slots
        ``[W]`` slot of each rank.
    matrices
        ``[n, W, W]`` bytes; row sends, column receives.
    routing, seed, flows
        As in :func:`moetraffic.fabric.routing.route`.
    hot
        Number of bottleneck links to list.

    Raises
    ------
    FabricError
        If the routing is unknown, or the matrices do not match the number of ranks.
    """
    stack = byte_matrices(matrices, len(slots)).reshape(-1, len(slots), len(slots))
    routes = route(topology, slots, routing=routing, seed=seed, flows=flows)
    loads = link_loads(routes, stack)
    host = slots // topology.hosts.ranks
    apart = host[:, None] != host
    beside = ~apart & ~np.eye(len(slots), dtype=bool)
    bounds = {"port": port_bound(topology, slots, stack)}
    for family, bound in cut_bounds(topology, slots, stack).items():
        bounds[f"cut {family}"] = bound
    bounds["spreading"] = spreading_bound(topology, slots, stack)
    return Assessment(
        topology=topology,
        routing=routing,
        loads=loads,
        bytes_between_hosts=np.where(apart, stack, 0).sum(axis=(1, 2)).astype(float),
        bytes_inside_hosts=np.where(beside, stack, 0).sum(axis=(1, 2)).astype(float),
        bottleneck_s=link_times(topology, loads).max(axis=1, initial=0.0),
        bounds_s=bounds,
        hot=tuple(hottest(topology, loads, most=hot)),
        collisions=tuple(collisions(routes, stack)) if routing == "ecmp" else (),
    )
