r"""Traffic between hosts, flows, and evenness of lines of an exchange's bytes.

A matrix is ``[..., W, W]`` bytes or token copies: row sends, column receives.  What a
rank sends to itself is left out.  Each rank is assumed to have its own NIC, and each
pair of ranks with bytes to send is one flow, which a switch hashes as one 5-tuple.

References
----------
A. Gangidi et al., RDMA over Ethernet for Distributed AI Training at Meta Scale,
SIGCOMM 2024: low entropy, few 5-tuples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.measures import means_of_known, quantiles, ratio
from moetraffic.arrays import Float64, Int64, Integer

if TYPE_CHECKING:
    from moetraffic.analysis.exchange import Exchange
    from moetraffic.analysis.rows import Rows

FLOW_ITERATIONS = 64
"""Number of evenly spaced iterations whose flows are counted."""

FLOWS = ("nic_flows", "largest_flows_byte_share", "largest_flows_number_share")
"""Names of the arrays of flows."""


def inter_host_share(matrix: npt.ArrayLike, hosts: Int64) -> Float64:
    """Compute the share of the traffic between ranks that leaves its host, ``[...]``.

    Parameters
    ----------
    matrix
        ``[..., W, W]`` bytes or token copies.
    hosts
        ``[W]`` number of the host of each rank.

    Returns
    -------
    float64 array ``[...]``
        NaN where nothing is sent.

    Examples
    --------
    >>> import numpy as np
    >>> share = inter_host_share(np.ones((16, 16)), np.arange(16) // 8)
    >>> round(float(share), 6)
    0.533333
    """
    array = np.asarray(matrix)
    crosses, local = hosts[:, None] != hosts, np.eye(len(hosts), dtype=bool)
    away, sent = (array.sum(axis=(-2, -1), where=cells) for cells in (crosses, ~local))
    return ratio(away, sent)


def nic_flows(matrix: npt.ArrayLike) -> Int64:
    """Count the flows that each NIC sends, ``[..., W]``.

    A ring of equal messages has one flow per NIC and perfectly even bytes.

    Examples
    --------
    >>> import numpy as np
    >>> nic_flows(np.roll(np.eye(4), 1, axis=1) * 1e6).tolist()
    [1, 1, 1, 1]
    """
    return np.asarray((_between_ranks(matrix) > 0).sum(axis=-1), np.int64)


def largest_flows(matrix: npt.ArrayLike, share: float = 0.1) -> tuple[Float64, Float64]:
    """Compute the byte share of the largest flows, and their share of all flows.

    Parameters
    ----------
    matrix
        ``[..., W, W]`` bytes.
    share
        Of the number of flows; rounded down, but at least one flow.

    Returns
    -------
    tuple of float64 arrays ``[...]``
        NaN without flows.

    Examples
    --------
    >>> sizes, flows = largest_flows([[0, 3], [1, 0]], 0.5)
    >>> float(sizes), float(flows)
    (0.75, 0.5)
    """
    array = _between_ranks(matrix)
    sizes = -np.sort(-array.reshape(*array.shape[:-2], -1), axis=-1)
    number = np.asarray((sizes > 0).sum(axis=-1))
    taken = np.maximum(np.floor(number * share + 1e-9), number > 0)
    largest = np.arange(sizes.shape[-1]) < taken[..., None]
    size = np.where(largest, sizes, 0).sum(axis=-1)
    return ratio(size, sizes.sum(axis=-1)), ratio(taken, number)


def network_rows(
    exchange: Exchange, first: int, wire: Integer
) -> dict[str, npt.NDArray[Any]]:
    """Compute the inter-host share and the flows of a window of wire matrices.

    Parameters
    ----------
    first
        Index of the first iteration of the window.
    wire
        ``[n, W, W]``, in any unit.

    Returns
    -------
    dict
        ``inter_host`` ``[n]`` and :data:`FLOWS` ``[n]``, which are NaN except in
        :data:`FLOW_ITERATIONS` evenly spaced iterations; NaN where hosts are unknown.
    """
    rows = {name: np.full(len(wire), np.nan) for name in ("inter_host", *FLOWS)}
    hosts = np.unique(np.array(exchange.nodes), return_inverse=True)[1]
    if all(exchange.nodes) and hosts.max() > 0:
        rows["inter_host"] = inter_host_share(wire, hosts)
    counted = _flow_iterations(len(exchange.iterations)) - first
    counted = counted[(counted >= 0) & (counted < len(wire))]
    if len(counted):
        matrices = wire[counted].astype(np.int64)
        values = (means_of_known(nic_flows(matrices)), *largest_flows(matrices))
        for name, value in zip(FLOWS, values, strict=True):
            rows[name][counted] = value
    return dict(rows)


def network_tables(exchange: Exchange, rows: Rows) -> dict[str, list[dict[str, Any]]]:
    """List the table ``network``: a row of an exchange whose bytes are known.

    Shares and flows are means over iterations; bottlenecks have a mean and quantiles.
    """
    if rows.bottleneck is None:
        return {"network": []}
    hosts = len(set(exchange.nodes)) if all(exchange.nodes) else 0
    width = len(exchange.ranks)
    even = hosts > 0 and width % hosts == 0
    sizes = quantiles(rows.bottleneck[rows.bottleneck > 0], (0.5, 0.9, 0.99))
    names = ("bottleneck_p50", "bottleneck_p90", "bottleneck_p99")
    row = {
        **exchange.key,
        "hosts": hosts,
        "inter_host": float(means_of_known(rows.tiers["inter_host"])),
        "inter_host_uniform": (width - width // hosts) / (width - 1)
        if even
        else np.nan,
        "line_efficiency": float(means_of_known(rows.wire["line_efficiency"])),
        "bottleneck_bytes": float(rows.bottleneck.mean()),
        **dict(zip(names, sizes, strict=True)),
        **{name: float(means_of_known(rows.tiers[name])) for name in FLOWS},
    }
    return {"network": [row]}


def _flow_iterations(iterations: int) -> Int64:
    """Choose evenly spaced iterations whose flows are counted."""
    return np.arange(0, iterations, max(1, -(-iterations // FLOW_ITERATIONS)))


def _between_ranks(matrix: npt.ArrayLike) -> npt.NDArray[Any]:
    array = np.asarray(matrix)
    local = np.eye(array.shape[-1], dtype=bool)
    return np.where(local, array.dtype.type(0), array)
