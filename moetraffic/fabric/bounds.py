r"""Lower bounds on the transfer time of a byte matrix under any schedule.

``port``
    No NIC and no rank transfers faster than its links' capacity: the largest row or
    column sum over the capacity, for one rank per NIC (the bottleneck bound of
    open-shop and circuit scheduling: Gonzalez and Sahni, J. ACM 23 (1976)).  It holds
    for every routing under the topology's forwarding, which fixes the NICs.
``cut``
    Bytes from ranks inside a set of nodes to ranks outside must cross its boundary:
    bytes over crossing capacity, the larger direction, for named cuts: each host,
    leaf, pod or group, and halves of the network (``bisection``).  It holds for any
    routing and any forwarding (the easy half of max-flow min-cut: Ford and Fulkerson
    1956).
``spreading``
    Time of the bottleneck link if traffic is split evenly over all shortest paths.  The
    mean of ECMP over hashes is not below it, by convexity (Jensen); routing on
    non-shortest paths may be.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from .loads import byte_matrices, link_loads, link_times
from .routing import Routes, host_links, route
from .topology import Cut, Topology

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


def port_bound(topology: Topology, slots: Int64, matrices: npt.ArrayLike) -> Float64:
    """Compute the port bound: the time of the slowest host or NIC link, seconds.

    Parameters
    ----------
    topology
        Network topology.
    slots
        ``[W]`` slot of each rank.
    matrices
        ``[W, W]`` or ``[n, W, W]`` bytes.

    Returns
    -------
    float64 array ``[]`` or ``[n]``
        Seconds.
    """
    inside = csr_array(host_links(topology, slots).inside)
    fixed = Routes(topology=topology, slots=slots, routing="", factors=(inside,))
    return _bottleneck(topology, fixed, matrices)


def cut_bounds(
    topology: Topology, slots: Int64, matrices: npt.ArrayLike
) -> dict[str, Float64]:
    """Compute the time of the slowest cut in each family of cuts, seconds.

    Parameters
    ----------
    topology, slots, matrices
        As in :func:`port_bound`.

    Returns
    -------
    dict of str to float64 array ``[]`` or ``[n]``
        Families such as "host", "leaf" and "bisection".
    """
    return {
        family: np.max([_cut_time(topology, slots, cut, matrices) for cut in cuts], 0)
        for family, cuts in topology.cuts.items()
    }


def spreading_bound(
    topology: Topology, slots: Int64, matrices: npt.ArrayLike
) -> Float64:
    """Compute the time of the bottleneck link under even splitting, seconds.

    Parameters
    ----------
    topology, slots, matrices
        As in :func:`port_bound`.

    Returns
    -------
    float64 array ``[]`` or ``[n]``
    """
    return _bottleneck(topology, route(topology, slots, routing="ideal"), matrices)


def bisection_bytes_s(topology: Topology) -> float:
    """Return the smallest bisection capacity in one direction, bytes/s; NaN if none.

    Examples
    --------
    >>> from moetraffic.fabric import Hosts, torus
    >>> ring = torus(Hosts(number=16, nic_bytes_s=1e9), shape=(4, 4))
    >>> bisection_bytes_s(ring) / 1e9
    8.0
    """
    cuts = topology.cuts.get("bisection", ())
    return min((min(topology.crossing(cut)) for cut in cuts), default=float("nan"))


def _bottleneck(topology: Topology, routes: Routes, matrices: npt.ArrayLike) -> Float64:
    """Return the largest transfer time over the links, seconds."""
    times = link_times(topology, link_loads(routes, matrices))
    return np.asarray(times.max(axis=-1, initial=0.0), np.float64)


def _cut_time(
    topology: Topology, slots: Int64, cut: Cut, matrices: npt.ArrayLike
) -> Float64:
    stack = np.asarray(byte_matrices(matrices, len(slots)), np.float64)
    inside = np.isin(slots // topology.hosts.ranks, cut.hosts)
    leaves = stack[..., inside, :][..., ~inside].sum(axis=(-2, -1))
    enters = stack[..., ~inside, :][..., inside].sum(axis=(-2, -1))
    out, back = topology.crossing(cut)
    # a cut without traffic gives a bound of 0 s, even at zero capacity
    times = [
        np.divide(moved, room, out=np.zeros_like(moved), where=moved > 0)
        for moved, room in ((leaves, out), (enters, back))
    ]
    return np.asarray(np.maximum(*times), np.float64)
