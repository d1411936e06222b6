"""Link loads, times, bounds and collisions of byte matrices on one network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64
from moetraffic.errors import FabricError
from moetraffic.tables import ShownAsTables

from .collisions import Collision, collisions
from .loads import (
    BottleneckLink,
    byte_matrices,
    cut_times,
    hottest,
    link_loads,
    link_times,
    longest_time,
    port_bound,
    rank_bound,
    ties,
)
from .named import Network
from .routing import route
from .topology import Topology, explicit

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, kw_only=True)
class Assessment(ShownAsTables):
    """Link loads, times, lower bounds and ECMP collisions of n byte matrices."""

    topology: Topology
    routing: str
    seed: int  # of ECMP's hash
    idle_hosts: int  # hosts without ranks
    loads: npt.NDArray[np.generic]  # [n, L] bytes
    bytes_between_hosts: Float64  # [n]
    bytes_inside_hosts: Float64  # [n], without rank-local (self) traffic
    bottleneck_s: Float64  # [n] time of the bottleneck link
    bounds_s: Mapping[str, Float64]  # [n] by name, such as "port", "rank", "cut host"
    ideal_s: Float64  # [n] even split over shortest paths: no bound
    cuts: Mapping[str, tuple[str, ...]]  # by bound, those of the longest mean time
    hot: tuple[BottleneckLink, ...]
    slowest: Mapping[str, BottleneckLink]  # by part of the network that carries bytes
    collisions: tuple[Collision, ...]  # ECMP only
    without_oversubscription_s: Float64  # [n] at 1:1, on the same paths
    ideal_without_oversubscription_s: Float64  # [n] at 1:1, even split
    without_rates_s: Float64  # [n] without rates of single NICs and links, same paths

    @property
    def bound_s(self) -> Float64:
        """Largest lower bound of any routing between the same NICs, ``[n]`` s.

        Each pair of ranks uses the NICs that the forwarding of the topology selects.
        """
        return np.asarray(np.max([*self.bounds_s.values()], axis=0), np.float64)

    @property
    def forwarding_bound_s(self) -> Float64:
        """Largest lower bound of any routing and forwarding by hosts, ``[n]`` s."""
        free = [bound for name, bound in self.bounds_s.items() if name != "port"]
        return np.asarray(np.max(free, axis=0), np.float64)

    def to_frame(self, iterations: Sequence[int] | None = None) -> pandas.DataFrame:
        """Build a tidy pandas table with one row per matrix and link.

        ``matrix`` is the index of the matrix, ``source`` and ``destination`` the ends
        of the link; ``bytes``, ``capacity_bytes_s`` and ``time_s`` are its load,
        capacity and transfer time.  Of the matrix, ``bottleneck_s`` is the slowest
        link's time, ``bound_s`` the largest lower bound of any routing between the same
        NICs, and ``forwarding_bound_s`` that of any routing and forwarding by hosts.
        With the ``iterations`` of the matrices the column ``iteration`` stands in place
        of ``matrix``.
        """
        import pandas

        number, links = self.loads.shape
        ends = pandas.MultiIndex.from_tuples(self.topology.links)
        return pandas.DataFrame(
            {
                "matrix" if iterations is None else "iteration": np.repeat(
                    np.arange(number) if iterations is None else iterations, links
                ),
                "source": np.tile(ends.get_level_values(0), number),
                "destination": np.tile(ends.get_level_values(1), number),
                "bytes": self.loads.ravel(),
                "capacity_bytes_s": np.tile(self.topology.capacity, number),
                "time_s": link_times(self.topology, self.loads).ravel(),
                "bottleneck_s": np.repeat(self.bottleneck_s, links),
                "bound_s": np.repeat(self.bound_s, links),
                "forwarding_bound_s": np.repeat(self.forwarding_bound_s, links),
            }
        )


def assess(
    topology: Topology | Network,
    slots: npt.ArrayLike,
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
        Network topology, or the network of :func:`~.named.load_fabric`.
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
        If the routing is unknown, the matrices do not match the number of ranks, or an
        argument is of another kind.
    """
    if isinstance(topology, Network):
        topology = topology.topology
    if not isinstance(topology, Topology):
        raise FabricError(
            f"a network is a Topology or of load_fabric, not {topology!r:.60}: "
            'give load_fabric("leaf-spine", 16, capacity="400Gbps")'
        )
    slots = explicit(np.asarray(slots).tolist(), topology.hosts)
    stack = byte_matrices(matrices, len(slots)).reshape(-1, len(slots), len(slots))
    routes = route(topology, slots, routing=routing, seed=seed, flows=flows)
    loads = link_loads(routes, stack)
    host = slots // topology.hosts.ranks
    apart = host[:, None] != host
    beside = ~apart & ~np.eye(len(slots), dtype=bool)
    bounds = {
        "port": port_bound(topology, slots, stack),
        "rank": rank_bound(topology, slots, stack),
    }
    cuts = dict[str, tuple[str, ...]]()
    for family, times in cut_times(topology, slots, stack).items():
        bounds[f"cut {family}"] = times.max(axis=0)
        mean = times.mean(axis=1)
        slow = np.flatnonzero(ties(mean, mean.max()))
        names = (topology.cuts[family][at].name for at in slow.tolist())
        cuts[f"cut {family}"] = tuple(dict.fromkeys(names))
    spread = loads
    if routing != "ideal":
        spread = link_loads(route(topology, slots, routing="ideal"), stack)
    slowest = {
        part: link
        for part, among in topology.parts.items()
        for link in hottest(topology, loads, most=1, among=among)
    }
    return Assessment(
        topology=topology,
        routing=routing,
        seed=seed,
        idle_hosts=topology.hosts.number - len(np.unique(host)),
        loads=loads,
        bytes_between_hosts=np.where(apart, stack, 0).sum(axis=(1, 2)).astype(float),
        bytes_inside_hosts=np.where(beside, stack, 0).sum(axis=(1, 2)).astype(float),
        bottleneck_s=longest_time(topology, loads),
        bounds_s=bounds,
        ideal_s=longest_time(topology, spread),
        cuts=cuts,
        hot=tuple(hottest(topology, loads, most=hot)),
        slowest=slowest,
        collisions=tuple(collisions(routes, stack)) if routing == "ecmp" else (),
        without_oversubscription_s=_at_one_to_one(topology, loads),
        ideal_without_oversubscription_s=_at_one_to_one(topology, spread),
        without_rates_s=longest_time(topology.without_rates or topology, loads),
    )


def _at_one_to_one(network: Topology, loads: npt.ArrayLike) -> Float64:
    """Compute the time of the bottleneck link if uplinks had 1:1, ``[n]`` seconds.

    The uplinks of a leaf carry the same bytes, with capacities that add up to that of
    its NICs; loads of a routing do not depend on capacities.
    """
    times = link_times(network, loads) / network.uplink_ratios
    longest: Float64 = times.max(axis=1, initial=0.0)
    return longest
