"""Lower bound on the time that operations of a replay take on a network.

There is one definition, for a single operation and for a whole pass: each NIC in each
direction, and each named cut of the network in each direction, carries all bytes of the
operations that cross it, no faster than its capacity; the bound is the time of the
slowest (:mod:`moetraffic.fabric.loads`).

It holds in whatever order the bytes are sent, for any overlap of operations and for any
routing between the NICs that the network's forwarding selects for each pair.  Of a
pass, it bounds the time from the first call of any rank to the last end of any rank.
Times of operations in a row, such as all-to-alls of which each has another busiest
rank, do not add up to a bound: a rank that has ended its part begins the next one, and
on every other port bytes of both may flow at once.

With a capacity and no topology the network is one switch with a NIC for each rank.
All-to-alls have the matrices of the plan, other collectives those of the ring
algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from moetraffic.arrays import Float64, Int64
from moetraffic.fabric import Network, cut_bounds, load_fabric, other_rates, port_bound
from moetraffic.replay.plan.program import Plan
from moetraffic.replay.plan.sizes import operation_matrices
from moetraffic.replay.request import Request
from moetraffic.trace.trace import Trace
from moetraffic.units import bit_rate, byte_rate

from .ports import Ports
from .result import NO_NIC


def requested_network(request: Request, ranks: int) -> Network | None:
    """Return the network of a replay's capacity and topology; None without either.

    Raises
    ------
    MoetrafficError
        If the capacity or the network is invalid.
    """
    if request.topology is None and request.capacity is None:
        return None
    return load_fabric(request.topology or "single", ranks, capacity=request.capacity)


def described(network: Network) -> str:
    """Describe a network: "10 Gbps = 1.25 GB/s a rank" for one switch.

    Others are described by their name and the rate of their NICs.  The name of its file
    comes before, rates that differ after: "slow.json: 100 Mbps = 0.0125 GB/s a rank,
    rank2 30 Mbps".  Where all ranks are on one host, this is said instead of rates.
    """
    hosts = network.hosts
    rate = _both_units(hosts.nic_bytes_s)
    others = other_rates(network)
    used = len(np.unique(network.slots // hosts.ranks))
    if used == 1 and len(network.slots) > 1:
        inside = byte_rate(hosts.inside_bytes_s)
        text = f"one host with all ranks, {inside} inside and {NO_NIC}"
        others = []
    elif network.name == "single switch" and hosts.ranks == 1:
        text = f"{rate} a rank"
    else:
        text = f"{network.name}, {rate} NICs"
    if network.file:
        text = f"{Path(network.file).name}: {text}"
    return ", ".join([text, *others])


def _both_units(bytes_s: float) -> str:
    """Format a rate as networks have it, and in the unit of bus bandwidths."""
    return f"{bit_rate(bytes_s)} = {byte_rate(bytes_s)}"


def busiest_s(network: Network, ranks: Int64, matrices: Int64) -> Float64:
    """Compute the time of the slowest port or cut for byte matrices, ``[...]`` s.

    ``ranks`` ``[W]`` int64 are those of the rows and columns of ``matrices``
    ``[..., W, W]`` int64 bytes, of which rows send.
    """
    placed = network.placed(network.slots[ranks])
    cuts = cut_bounds(placed, matrices).values()
    port = port_bound(placed, matrices)
    return np.asarray(np.max([port, *cuts], axis=0), np.float64)


def operation_bounds_s(trace: Trace, plan: Plan, network: Network) -> Float64:
    """Compute the lower bound of each operation by itself, ``[n]`` s."""
    out = np.full(len(plan), np.nan)
    for at, members, wire in operation_matrices(trace, plan):
        every, which = np.unique(members, axis=0, return_inverse=True)
        for number, ranks in enumerate(every):
            mine = np.flatnonzero(which.reshape(-1) == number)
            out[at[mine]] = busiest_s(network, ranks, wire[mine])
    return out


def pass_bound_s(trace: Trace, plan: Plan, network: Network) -> float:
    """Compute the lower bound of a pass, of all its operations together, s."""
    total = np.zeros((plan.world, plan.world), np.int64)
    for _, members, wire in operation_matrices(trace, plan):
        np.add.at(total, (members[:, :, None], members[:, None, :]), wire)
    return float(busiest_s(network, np.arange(plan.world), total))


def hosts_match(network: Network, nodes: Sequence[str]) -> bool:
    """Whether the ranks that share a host of the run share one of the network, too.

    Bytes inside a host cross no network.  ``nodes`` are the host of each rank, by name.
    """
    hosts = (network.slots // network.hosts.ranks).tolist()
    both = set(zip(nodes, hosts, strict=True))
    return len(both) == len(set(nodes)) == len(set(hosts))


def faster_than(network: Network, ports: Ports) -> str:
    """State which measured ports exceed a network's, so that no bound of it holds.

    Rates are of payload, which is less than what a port carries.  Hosts with several
    ranks are left out: bytes inside a host cross no port.

    "" if none does, by the lower end of its interval.
    """
    if network.hosts.ranks > 1:
        return ""
    faster = []
    for port in ports.rates:
        host = int(network.slots[port.rank])
        send, receive = network.nic_bytes_s(host, 0)
        given = send if port.direction == "send" else receive
        if port.rate.low > given:
            faster.append((port.rate.value / given, port, given))
    if not faster:
        return ""
    _, most, given = max(faster, key=lambda f: f[0])
    return (
        f"{len(faster)} of {len(ports.rates)} measured ports exceed the given network "
        f"(rank {most.rank} {most.direction}s at {byte_rate(most.rate.value)}, given "
        f"{_both_units(given)})"
    )
