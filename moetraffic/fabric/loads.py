"""Link loads of routed byte matrices, transfer times, and bottleneck links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.errors import FabricError

from .routing import Routes
from .topology import Topology

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

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

    Parameters
    ----------
    topology
        Topology of the links.
    loads
        ``[..., L]`` bytes.

    Returns
    -------
    float64 array ``[..., L]``
    """
    return np.asarray(np.asarray(loads) / topology.capacity, np.float64)


@dataclass(frozen=True, kw_only=True)
class BottleneckLink:
    """Load and time of one of the most loaded links."""

    name: str
    capacity_bytes_s: float
    mean_bytes: float  # over the matrices
    max_bytes: float
    mean_s: float  # mean transfer time
    bottleneck: int  # number of matrices in which this link is the slowest


def hottest(
    topology: Topology, loads: npt.ArrayLike, *, most: int = 8
) -> list[BottleneckLink]:
    """List the links with the longest mean transfer time over the matrices.

    Parameters
    ----------
    topology
        Topology of the links.
    loads
        ``[n, L]`` bytes.
    most
        Maximum number of links; links without load are excluded.
    """
    carried = np.atleast_2d(np.asarray(loads, np.float64))
    times = link_times(topology, carried)
    mean = times.mean(axis=0)
    slowest = times.max(axis=1, keepdims=True)
    first = ((times == slowest) & (slowest > 0)).sum(axis=0)
    order = np.argsort(-mean, kind="stable")[:most]
    return [
        BottleneckLink(
            name=topology.link_name(int(link)),
            capacity_bytes_s=float(topology.capacity[link]),
            mean_bytes=float(carried[:, link].mean()),
            max_bytes=float(carried[:, link].max()),
            mean_s=float(mean[link]),
            bottleneck=int(first[link]),
        )
        for link in order
        if mean[link] > 0
    ]
