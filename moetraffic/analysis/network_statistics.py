"""Compute host-tier shares, flow counts and packet statistics of an exchange."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moetraffic.analysis.network.complexity import Complexity, complexity
from moetraffic.analysis.network.flows import (
    inter_host_share,
    largest_flows,
    nic_flows,
)
from moetraffic.analysis.network.packets import packets
from moetraffic.analysis.skew.measures import means_of_known
from moetraffic.arrays import Float64, Int64, Integer
from moetraffic.trace import Trace

from .exchange import Rows, Source, read

SEEN = 64
"""Number of evenly spaced iterations whose flows are counted."""

SAMPLED = (
    "nic_flows",
    "largest_flows_byte_share",
    "largest_flows_number_share",
)
"""Names of the rows computed for sampled iterations only."""

PACKETS = 1 << 16
"""Maximum packets from which the complexity of an exchange is computed."""


def looked_at(iterations: int) -> Int64:
    """Choose evenly spaced iterations whose flows are counted, increasing."""
    return np.arange(0, iterations, max(1, -(-iterations // SEEN)))


@dataclass(frozen=True, kw_only=True)
class NetworkStatistics:
    """Host-tier, flow and line statistics of a wire matrix; NaN where unknown.

    Each rank is assumed to have its own NIC, and each pair of ranks is a flow.
    """

    hosts: int  # number of hosts; 0 if unknown
    inter_host: Float64  # [T] share of the bytes between ranks that leave their host
    inter_host_uniform: float  # of uniform traffic on equal hosts
    line_efficiency: Float64  # [T] 1: all row and column sums equal
    bottleneck_bytes: Int64  # [T] largest sent or received by a rank
    nic_flows: float  # flows a NIC sends
    largest_flows_byte_share: float  # byte share of the largest 10% of flows
    largest_flows_number_share: float  # share of the number of flows
    flow_iterations: int  # iterations whose flows were counted


def network(source: Source, rows: Rows) -> NetworkStatistics | None:
    """Compute network statistics of an exchange; None without wire matrices."""
    if "wire.sent" not in rows:
        return None
    hosts = len(set(source.nodes)) if all(source.nodes) else 0
    width = len(source.ranks)
    equal = hosts > 0 and width % hosts == 0
    return NetworkStatistics(
        hosts=hosts,
        inter_host=np.asarray(rows["wire.inter_host"], np.float64),
        inter_host_uniform=(
            (width - width // hosts) / (width - 1) if equal else float("nan")
        ),
        line_efficiency=np.asarray(rows["wire.line_efficiency"], np.float64),
        bottleneck_bytes=np.asarray(rows["wire.bottleneck"], np.int64),
        flow_iterations=len(looked_at(len(source.iterations))),
        **{name: float(means_of_known(rows[f"wire.{name}"])) for name in SAMPLED},
    )


def network_rows(source: Source, first: int, wire: Integer) -> Rows:
    """Compute the host-tier and flow rows of a window of wire matrices.

    Parameters
    ----------
    first
        Index of the window's first iteration.
    wire
        ``[n, W, W]``, in any unit.

    Returns
    -------
    Rows
        ``wire.inter_host`` ``[n]``, and of the iterations of :func:`looked_at` the
        flows; NaN in all others.
    """
    rows = {
        f"wire.{name}": np.full(len(wire), np.nan) for name in ("inter_host", *SAMPLED)
    }
    hosts = np.unique(np.array(source.nodes), return_inverse=True)[1]
    if all(source.nodes) and hosts.max() > 0:
        rows["wire.inter_host"] = inter_host_share(wire, hosts)
    seen = looked_at(len(source.iterations)) - first
    seen = seen[(seen >= 0) & (seen < len(wire))]
    if len(seen):
        few = wire[seen].astype(np.int64)
        found = (means_of_known(nic_flows(few)), *largest_flows(few))
        for name, values in zip(SAMPLED, found, strict=True):
            rows[f"wire.{name}"][seen] = values
    return dict(rows)


def packet_complexity(
    trace: Trace, source: Source, notes: list[str]
) -> Complexity | None:
    """Compute the trace complexity of the wire or, without wire, of the demand."""
    of_wire = len(source.sent) > 0
    if of_wire and len(source.ranks) < 2:
        return None

    def matrices(first: int, last: int) -> Integer:
        window = read(trace, source, range(first, last))
        found = window.wire if of_wire else window.demand
        assert found is not None
        return found

    number = len(source.iterations)
    found = complexity(
        packets(matrices, number=number, diagonal=not of_wire, budget=PACKETS)
    )
    if not np.isfinite(found.trace_complexity):
        notes.append(
            f"{source.where}: no complexity, since there are no two packets between "
            "different pairs"
        )
    return found
