r"""Link loads of routed byte matrices, transfer times and their lower bounds.

Lower bounds on the transfer time of a byte matrix:

``port``
    No NIC and no rank transfers faster than its links' capacity: the largest row or
    column sum over the capacity, for one rank per NIC (the bottleneck bound of
    open-shop and circuit scheduling: Gonzalez and Sahni, J. ACM 23 (1976)).  It holds
    for every routing between the NICs of each pair, which the topology's forwarding
    fixes.  Where hosts have several NICs, routes through other ranks and their NICs
    can be faster.
``rank``
    Bytes of a rank over the capacity of all its links, the larger direction.  It holds
    for any routing and any forwarding by hosts.
``cut``
    Bytes from ranks inside a set of nodes to ranks outside must cross its boundary:
    bytes over crossing capacity, the larger direction, for named cuts: each host,
    leaf, pod or group, and halves of the network (``bisection``).  It holds for any
    routing and any forwarding (the easy half of max-flow min-cut: Ford and Fulkerson
    1956).

The time of an even split over shortest paths (routing ``ideal``) is no such bound: the
mean of ECMP over hashes is not below it, by convexity (Jensen), but a single hash, an
uneven split or routing on longer paths may be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from moetraffic.arrays import Bool, Float64, Int64
from moetraffic.errors import FabricError

from .routing import Routes, host_links
from .topology import Cut, Topology, slot_name

AT_ONCE = 1 << 25
"""Matrix cells per block of the routing product, to bound memory."""


def link_loads(routes: Routes, matrices: npt.ArrayLike) -> npt.NDArray[np.generic]:
    """Compute the bytes that each link carries from byte matrices and a routing.

    Parameters
    ----------
    routes
        Routing from :func:`moetraffic.fabric.routing.route`.
    matrices
        ``[W, W]`` or ``[n, W, W]`` bytes; row sends, column receives.  Rank-local
        traffic (the diagonal) crosses no link.

    Returns
    -------
    int64 or float64 array ``[L]`` or ``[n, L]``
        Exact integers where the bytes are integers and each pair has one path.

    Raises
    ------
    FabricError
        If the shape does not match the routed ranks, or bytes are negative.
    """
    given = byte_matrices(matrices, routes.ranks)
    stack = given.reshape(-1, routes.ranks**2)
    at_once = max(1, AT_ONCE // max(1, stack.shape[1]))
    parts = []
    for first in range(0, max(1, len(stack)), at_once):
        part: Any = stack[first : first + at_once]  # sparse product is untyped
        for factor in routes.factors:
            part = part @ factor
        parts.append(part)
    loads = np.concatenate(parts)
    return loads[0] if given.ndim == 2 else loads


def byte_matrices(matrices: npt.ArrayLike, ranks: int) -> npt.NDArray[np.generic]:
    """Check byte matrices for shape, type and sign, and return them as an array."""
    given = np.asarray(matrices)
    if given.ndim not in (2, 3) or given.shape[-2:] != (ranks, ranks):
        raise FabricError(
            f"bytes between {ranks} ranks are [W, W] or [n, W, W], but the shape is "
            f"{list(given.shape)}: place as many ranks as the matrix has"
        )
    if given.dtype.kind not in "iuf" or not (given >= 0).all():
        raise FabricError(
            "bytes are numbers of 0 or more, but a matrix has others: leave out what "
            "is not known"
        )
    return given


def link_times(topology: Topology, loads: npt.ArrayLike) -> Float64:
    """Compute the transfer time of each link's load: ``bytes / capacity``, seconds.

    Loads are ``[..., L]`` bytes; the result is float64 of the same shape.
    """
    return np.asarray(np.asarray(loads) / topology.capacity, np.float64)


def longest_time(topology: Topology, loads: npt.ArrayLike) -> Float64:
    """Compute the time of the bottleneck link of ``[..., L]`` bytes, seconds."""
    times = link_times(topology, loads)
    return np.asarray(times.max(axis=-1, initial=0.0), np.float64)


def ties(times: npt.ArrayLike, longest: npt.ArrayLike) -> Bool:
    """Return whether times are the longest; even loads may differ by rounding."""
    return np.asarray(np.isclose(times, longest, rtol=1e-9, atol=0))


@dataclass(frozen=True, kw_only=True)
class BottleneckLink:
    """Load and time of one of the most loaded links."""

    link: str
    capacity_bytes_s: float
    mean_bytes: float  # over the matrices
    max_bytes: float
    mean_busy_s: float  # mean transfer time
    iterations_as_bottleneck: int  # matrices in which this link is the slowest


def hottest(
    topology: Topology,
    loads: npt.ArrayLike,
    *,
    most: int = 8,
    among: Bool | None = None,
) -> list[BottleneckLink]:
    """List the links with the longest mean transfer time over the matrices.

    Loads are ``[n, L]`` bytes; at most ``most`` links are listed, of ``among``
    (``[L]`` bool; None: of all), none without load.
    """
    carried = np.atleast_2d(np.asarray(loads, np.float64))
    times = link_times(topology, carried)
    mean = times.mean(axis=0)
    slowest = times.max(axis=1, keepdims=True)
    first = (ties(times, slowest) & (slowest > 0)).sum(axis=0)
    order = np.argsort(-mean, kind="stable")
    order = order[:most] if among is None else order[among[order]][:most]
    return [
        BottleneckLink(
            link=topology.link_name(int(link)),
            capacity_bytes_s=float(topology.capacity[link]),
            mean_bytes=float(carried[:, link].mean()),
            max_bytes=float(carried[:, link].max()),
            mean_busy_s=float(mean[link]),
            iterations_as_bottleneck=int(first[link]),
        )
        for link in order
        if mean[link] > 0
    ]


# ---- lower bounds ---------------------------------------------------------------


def port_bound(topology: Topology, slots: Int64, matrices: npt.ArrayLike) -> Float64:
    """Compute the port bound: the time of the slowest host or NIC link, seconds.

    ``slots`` is the ``[W]`` slot of each rank; matrices ``[W, W]`` or ``[n, W, W]``
    bytes give ``[]`` or ``[n]`` float64.
    """
    inside = csr_array(host_links(topology, slots).inside)
    fixed = Routes(topology=topology, slots=slots, routing="", factors=(inside,))
    return longest_time(topology, link_loads(fixed, matrices))


def rank_bound(topology: Topology, slots: Int64, matrices: npt.ArrayLike) -> Float64:
    """Compute the time of the slowest rank over all its links, seconds.

    Arguments and values are as of :func:`port_bound`.
    """
    stack = np.asarray(byte_matrices(matrices, len(slots)), np.float64)
    stack = np.where(np.eye(len(slots), dtype=bool), 0, stack)
    out, back = rank_bytes_s(topology, slots)
    times = stack.sum(axis=-1) / out, stack.sum(axis=-2) / back
    return np.asarray(np.maximum(*times).max(axis=-1), np.float64)


def rank_bytes_s(topology: Topology, slots: Int64) -> tuple[Float64, Float64]:
    """Return the capacity of all links from and to each rank, ``[W]`` bytes/s each."""
    graph, ranks = topology.graph, topology.hosts.ranks
    nodes = [slot_name(*divmod(slot, ranks)) for slot in slots.tolist()]
    out, back = (
        np.array([degree[node] for node in nodes], np.float64)
        for degree in (
            graph.out_degree(weight="capacity"),
            graph.in_degree(weight="capacity"),
        )
    )
    return out, back


def cut_bounds(
    topology: Topology, slots: Int64, matrices: npt.ArrayLike
) -> dict[str, Float64]:
    """Compute the time of the slowest cut in each family of cuts, seconds.

    Families are such as "host", "leaf" and "bisection"; arguments and values are as of
    :func:`port_bound`.
    """
    times = cut_times(topology, slots, matrices)
    return {family: each.max(axis=0) for family, each in times.items()}


def cut_times(
    topology: Topology, slots: Int64, matrices: npt.ArrayLike
) -> dict[str, Float64]:
    """Compute the time of each cut of each family, ``[cuts, ...]`` seconds.

    Cuts are in the order of ``topology.cuts``; arguments and other axes are as of
    :func:`port_bound`.
    """
    return {
        family: np.array([_cut_time(topology, slots, cut, matrices) for cut in cuts])
        for family, cuts in topology.cuts.items()
    }


def bisection(topology: Topology) -> tuple[str, float, float]:
    """Return the halves of least capacity, and that out of and into the first, bytes/s.

    "" and NaN if the topology has no halves.
    """
    found: dict[str, tuple[float, float]] = {}
    for cut in topology.cuts.get("bisection", ()):
        (out, back), had = topology.crossing(cut), found.get(cut.name, (np.inf, np.inf))
        found[cut.name] = min(out, had[0]), min(back, had[1])
    halves = min(found, key=lambda name: min(found[name]), default="")
    return halves, *found.get(halves, (np.nan, np.nan))


def bisection_bytes_s(topology: Topology) -> float:
    """Return the smallest bisection capacity in one direction, bytes/s; NaN if none.

    Examples
    --------
    >>> from moetraffic.fabric import Hosts, torus
    >>> ring = torus(Hosts(number=16, nic_bytes_s=1e9), shape=(4, 4))
    >>> bisection_bytes_s(ring) / 1e9
    8.0
    """
    _, out, back = bisection(topology)
    return min(out, back)


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
