"""Compute host-tier shares, flow counts and packet statistics of an exchange."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.network.complexity import Complexity, complexity
from moetraffic.analysis.network.flows import largest_flows, nic_flows
from moetraffic.analysis.network.packets import packets
from moetraffic.analysis.network.tiers import (
    host_entropy,
    tier_shares,
    uniform_inter_host_share,
)
from moetraffic.analysis.noise.closed_forms import inter_host_moments
from moetraffic.analysis.noise.null_model import NoiseFloor
from moetraffic.trace import Trace

from .exchange import Rows, Source, read

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

SEEN = 64
"""Number of evenly spaced iterations whose flows are counted."""

SAMPLED = (
    "host_entropy",
    "within_entropy",
    "flows",
    "flow_entropy",
    "byte_entropy",
    "elephants",
    "elephants_even",
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
    inter_host_floor: NoiseFloor | None  # [T] of a balanced router, if tokens are known
    host_entropy_bits: float  # H of the pairs of hosts
    within_entropy_bits: float  # H of the pair of ranks given that of hosts
    line_efficiency: Float64  # [T] 1: all row and column sums equal
    bottleneck_bytes: Int64  # [T] largest sent or received by a rank
    nic_flows: float  # flows a NIC sends
    nic_flow_entropy_bits: float  # log2 of these
    nic_byte_entropy_bits: float  # of the flows' shares of bytes
    elephant_share: float  # byte share of the largest 10% of flows
    elephant_share_even: float  # share of the number of flows
    seen: int  # iterations whose flows were counted


def network(
    source: Source, rows: Rows, *, tokens: Int64 | None = None, k: int = 1
) -> NetworkStatistics | None:
    """Compute network statistics of an exchange; None without wire matrices.

    Parameters
    ----------
    source, rows
        The exchange and its rows.
    tokens
        ``[T]`` tokens per rank, if they determine the bytes, for the noise floor.
    k
        Distinct experts per token.
    """
    if "wire.sent" not in rows:
        return None
    hosts = len(set(source.nodes)) if all(source.nodes) else 0
    width = len(source.ranks)
    even = (
        uniform_inter_host_share(width, width // hosts)
        if hosts and width % hosts == 0
        else float("nan")
    )
    floor = None
    if (
        tokens is not None
        and hosts > 1
        and width % hosts == 0
        and source.experts % width == 0
    ):
        mean, std = inter_host_moments(
            tokens, experts=source.experts, k=k, ranks=width, hosts=hosts
        )
        floor = NoiseFloor(mean=mean, std=std)
    told = {
        name: _mean(np.asarray(rows[f"wire.{name}"], np.float64)) for name in SAMPLED
    }
    return NetworkStatistics(
        hosts=hosts,
        inter_host=np.asarray(rows["wire.inter_host"], np.float64),
        inter_host_uniform=even,
        inter_host_floor=floor,
        host_entropy_bits=told["host_entropy"],
        within_entropy_bits=told["within_entropy"],
        line_efficiency=np.asarray(rows["wire.line_efficiency"], np.float64),
        bottleneck_bytes=np.asarray(rows["wire.bottleneck"], np.int64),
        nic_flows=told["flows"],
        nic_flow_entropy_bits=told["flow_entropy"],
        nic_byte_entropy_bits=told["byte_entropy"],
        elephant_share=told["elephants"],
        elephant_share_even=told["elephants_even"],
        seen=len(looked_at(len(source.iterations))),
    )


def _mean(values: Float64) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")


def network_rows(source: Source, first: int, wire: npt.NDArray[np.integer]) -> Rows:
    """Compute the host-tier and flow rows of a window of wire matrices.

    Parameters
    ----------
    source
        The exchange.
    first
        Index of the window's first iteration.
    wire
        ``[n, W, W]``, in any unit.

    Returns
    -------
    Rows
        ``wire.inter_host`` ``[n]``, and of the iterations of :func:`looked_at` the
        entropies over hosts and the flows; NaN in all others.
    """
    count = len(wire)
    rows: dict[str, Float64] = {
        f"wire.{name}": np.full(count, np.nan) for name in ("inter_host", *SAMPLED)
    }
    several = len(set(source.nodes)) > 1 and all(source.nodes)
    hosts = np.unique(np.array(source.nodes), return_inverse=True)[1]
    if several:
        rows["wire.inter_host"] = tier_shares(wire, hosts).inter_host
    seen = looked_at(len(source.iterations)) - first
    seen = seen[(seen >= 0) & (seen < count)]
    if not len(seen):
        return dict(rows)
    few = wire[seen].astype(np.int64)
    if several:
        split = host_entropy(few, hosts, diagonal=False)
        rows["wire.host_entropy"][seen] = split.host_pairs
        rows["wire.within_entropy"][seen] = split.within
    flows = nic_flows(few)
    rows["wire.flows"][seen] = flows.flows.mean(axis=-1)
    for name, values in (
        ("flow_entropy", flows.flow_entropy),
        ("byte_entropy", flows.byte_entropy),
    ):
        known = np.isfinite(values)
        total = np.where(known, values, 0.0).sum(axis=-1)
        number = known.sum(axis=-1)
        mean = np.full(len(seen), np.nan)
        np.divide(total, number, out=mean, where=number > 0)
        rows[f"wire.{name}"][seen] = mean
    large = largest_flows(few)
    rows["wire.elephants"][seen], rows["wire.elephants_even"][seen] = large
    return dict(rows)


def packet_complexity(
    trace: Trace, source: Source, notes: list[str]
) -> Complexity | None:
    """Compute the trace complexity of the wire or, without wire, of the demand."""
    if len(source.sent) and len(source.ranks) < 2:
        return None
    of_wire = len(source.sent) > 0

    def matrices(first: int, last: int) -> npt.NDArray[np.integer]:
        if first == last:
            width = len(source.ranks)
            return np.zeros((0, width, width if of_wire else source.experts), np.int64)
        window = read(trace, source, range(first, last))
        found = window.wire if of_wire else window.demand
        assert found is not None
        return found

    taken = packets(
        matrices,
        number=len(source.iterations),
        diagonal=not of_wire,
        budget=PACKETS,
    )
    found = complexity(taken)
    if not np.isfinite(found.product):
        notes.append(
            f"{source.where}: no complexity, since there are no two packets between "
            "different pairs"
        )
    return found
