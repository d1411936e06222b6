r"""Link loads of routed byte matrices, transfer times and their lower bounds.

Lower bounds on the transfer time of a byte matrix:

``port``
    No NIC and no rank transfers faster than its links' capacity: the largest row or
    column sum over the capacity, for one rank per NIC (the bottleneck bound of
    open-shop and circuit scheduling: Gonzalez and Sahni, J. ACM 23 (1976)).  It holds
    for any routing between the same NICs, those that the forwarding selects for each
    pair.  Where hosts have several NICs, routes through other ranks can be faster.
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

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from moetraffic.arrays import Float64
from moetraffic.errors import FabricError

from .routing import Routes
from .topology import Network

AT_ONCE = 1 << 23
"""Matrix cells per block of a computation, to bound memory."""


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


def _blocks(given: npt.NDArray[np.generic]) -> Iterator[npt.NDArray[Any]]:
    """Yield blocks ``[b, W, W]`` of one or several matrices, at least one."""
    stack = given.reshape(-1, *given.shape[-2:])
    size = max(1, AT_ONCE // max(1, given.shape[-1] ** 2))
    for first in range(0, max(1, len(stack)), size):
        yield stack[first : first + size]


def link_loads(routes: Routes, matrices: npt.ArrayLike) -> npt.NDArray[np.generic]:
    """Compute the bytes that each link carries.

    Parameters
    ----------
    routes
        Of :func:`moetraffic.fabric.route`.
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
    given = byte_matrices(matrices, routes.network.ranks)
    blocks = []
    for block in _blocks(given):
        product: Any = block.reshape(len(block), -1)
        for factor in routes.factors:
            product = product @ factor
        blocks.append(product)
    loads: npt.NDArray[np.generic] = np.concatenate(blocks)
    return loads[0] if given.ndim == 2 else loads


def link_times(network: Network, loads: npt.ArrayLike) -> Float64:
    """Compute the transfer time of each link's load, ``[..., L]`` seconds."""
    carried, capacity = np.asarray(loads, np.float64), network.capacity
    return np.divide(carried, capacity, out=np.zeros_like(carried), where=capacity > 0)


def transfer_seconds(routes: Routes, matrices: npt.ArrayLike) -> Float64:
    """Compute the time of the bottleneck link of byte matrices, ``[]`` or ``[n]`` s.

    It is when the last flow ends whose rates are proportional to their bytes, and that
    of max-min fair rates to 0.1% (3% for very skewed matrices).
    """
    times = link_times(routes.network, link_loads(routes, matrices))
    return np.asarray(times.max(axis=-1, initial=0.0), np.float64)


def limit_times(network: Network, matrices: npt.ArrayLike, name: str) -> Float64:
    """Compute the time of each port, rank or cut of a bound, ``[..., n]`` seconds.

    ``name`` is ``port``, ``rank`` or ``cut`` and a family of ``network.cuts``, whose
    cuts are in the same order; ranks and cuts have the larger direction.
    """
    given = byte_matrices(matrices, network.ranks)
    diagonal = np.eye(network.ranks, dtype=bool)
    blocks = []
    for block in _blocks(given):
        sent = np.where(diagonal, 0, block).astype(np.float64)
        if name == "port":
            blocks.append(_port_times(network, sent))
            continue
        if name == "rank":
            nodes, size = network.slot_nodes[network.slots], len(network.nodes)
            out, back = sent.sum(axis=2), sent.sum(axis=1)
            rates = np.stack(
                [
                    np.bincount(ends, network.capacity, size)[nodes]
                    for ends in (network.tail, network.head)
                ]
            )
        else:
            cuts = network.cuts[name.removeprefix("cut ")]
            sides = [np.isin(network.host_of_rank, np.array(c.hosts)) for c in cuts]
            within = csr_array(np.array(sides, np.float64))
            out, back = (_leaving(within, x) for x in (sent, sent.swapaxes(1, 2)))
            rates = np.array([network.crossing(cut) for cut in cuts]).T
        with np.errstate(divide="ignore", invalid="ignore"):
            times = np.maximum(out / rates[0], back / rates[1])
        blocks.append(np.where((out > 0) | (back > 0), times, 0.0))
    limits = np.concatenate(blocks)
    return np.asarray(limits[0] if given.ndim == 2 else limits, np.float64)


def _leaving(within: csr_array, sent: Float64) -> Float64:
    """Sum the bytes that leave sets of ranks ``[n, W]`` 0 or 1, ``[b, n]``."""
    flat = sent.transpose(1, 0, 2).reshape(sent.shape[1], -1)
    rows = (within @ flat).reshape(-1, len(sent), sent.shape[1])  # [n, b, W]
    outside = 1 - within.toarray()
    return np.asarray(np.einsum("nbw,nw->bn", rows, outside))


def _port_times(network: Network, sent: Float64) -> Float64:
    """Compute the time of links inside hosts and of NICs, ``[b, L]`` seconds."""
    fixed, host = network.host_links, network.host_of_rank
    same = host[:, None] == host
    near = np.where(same, sent, 0.0)
    far = sent - near
    places = network.slots % network.hosts.ranks
    by_place = far @ np.equal.outer(places, np.arange(network.hosts.ranks))
    # bytes of each kind of link, by sender, receiver, or sender and place
    columns = [
        (fixed.up, near.sum(axis=2)),
        (fixed.down, near.sum(axis=1)),
        *((links, far.sum(axis=1)) for links in fixed.back.T),
        *(
            (fixed.out[..., step].ravel(), by_place.reshape(len(sent), -1))
            for step in range(fixed.out.shape[2])
        ),
    ]
    link = np.concatenate([links for links, _ in columns])
    carried = np.hstack(
        [np.broadcast_to(b, (len(sent), b.shape[1])) for _, b in columns]
    )
    used = np.flatnonzero(link >= 0)
    shape = len(used), len(network.capacity)
    ones = np.ones(len(used))
    loads = carried[:, used] @ csr_array(
        (ones, (np.arange(len(used)), link[used])), shape
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(loads > 0, loads / network.capacity, 0.0)


def bounds(network: Network, matrices: npt.ArrayLike) -> dict[str, Float64]:
    """Compute lower bounds on the transfer time, ``[]`` or ``[n]`` seconds, by name.

    ``port``, ``rank``, ``cut host`` and one for each further family of cuts; matrices
    are as in :func:`link_loads`.
    """
    names = ("port", "rank", *(f"cut {family}" for family in network.cuts))
    return {
        name: np.asarray(limit_times(network, matrices, name).max(axis=-1, initial=0.0))
        for name in names
    }


def port_bound(network: Network, matrices: npt.ArrayLike) -> Float64:
    """Compute the bound ``port``, of any routing between the same NICs."""
    return np.asarray(limit_times(network, matrices, "port").max(axis=-1, initial=0.0))


def cut_bounds(network: Network, matrices: npt.ArrayLike) -> dict[str, Float64]:
    """Compute the bounds of cuts, by family."""
    return {
        family: np.asarray(limit_times(network, matrices, f"cut {family}").max(axis=-1))
        for family in network.cuts
    }


def routing_bound(network: Network, matrices: npt.ArrayLike) -> Float64:
    """Compute the largest bound of any routing between the same NICs."""
    return np.asarray(np.max([*bounds(network, matrices).values()], axis=0))


def forwarding_bound(network: Network, matrices: npt.ArrayLike) -> Float64:
    """Compute the largest bound of any routing and any forwarding by hosts."""
    found = bounds(network, matrices)
    del found["port"]
    return np.asarray(np.max([*found.values()], axis=0))
