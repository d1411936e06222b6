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

from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64
from moetraffic.errors import FabricError

from .routing import Routes
from .topology import Network

AT_ONCE = 1 << 25
"""Matrix cells per block of a product, to bound memory."""


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


def _product(matrices: npt.ArrayLike, ranks: int, *factors: Any) -> Any:
    """Multiply byte matrices, flattened, by sparse factors."""
    given = byte_matrices(matrices, ranks)
    stack = given.reshape(-1, ranks**2)
    at_once = max(1, AT_ONCE // max(1, ranks**2))
    blocks = []
    for first in range(0, max(1, len(stack)), at_once):
        block: Any = stack[first : first + at_once]
        for factor in factors:
            block = block @ factor
        blocks.append(block)
    product = np.concatenate(blocks)
    return product[0] if given.ndim == 2 else product


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
    loads: npt.NDArray[np.generic] = _product(
        matrices, routes.network.ranks, *routes.factors
    )
    return loads


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

    Cuts are in the order of ``network.cuts``; they and ranks have the larger direction.
    """
    given = np.asarray(byte_matrices(matrices, network.ranks), np.float64)
    given = np.where(np.eye(network.ranks, dtype=bool), 0, given)
    times = np.asarray(_product(given, network.ranks, network.limits[name]), np.float64)
    if name != "port":
        times = times.reshape(*times.shape[:-1], -1, 2).max(axis=-1)
    return times


def bounds(network: Network, matrices: npt.ArrayLike) -> dict[str, Float64]:
    """Compute lower bounds on the transfer time, ``[]`` or ``[n]`` seconds, by name.

    ``port``, ``rank``, ``cut host`` and one for each further family of cuts; matrices
    are as in :func:`link_loads`.
    """
    times = {name: limit_times(network, matrices, name) for name in network.limits}
    return {
        name: np.asarray(each.max(axis=-1, initial=0.0), np.float64)
        for name, each in times.items()
    }


def port_bound(network: Network, matrices: npt.ArrayLike) -> Float64:
    """Compute the bound ``port``, of any routing between the same NICs."""
    return bounds(network, matrices)["port"]


def cut_bounds(network: Network, matrices: npt.ArrayLike) -> dict[str, Float64]:
    """Compute the bounds of cuts, by family."""
    found = bounds(network, matrices)
    return {name[4:]: times for name, times in found.items() if name[:4] == "cut "}


def routing_bound(network: Network, matrices: npt.ArrayLike) -> Float64:
    """Compute the largest bound of any routing between the same NICs."""
    return np.asarray(np.max([*bounds(network, matrices).values()], axis=0))


def forwarding_bound(network: Network, matrices: npt.ArrayLike) -> Float64:
    """Compute the largest bound of any routing and any forwarding by hosts."""
    found = bounds(network, matrices)
    del found["port"]
    return np.asarray(np.max([*found.values()], axis=0))
