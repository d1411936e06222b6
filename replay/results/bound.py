"""Lower bound on the time that operations of a replay take on a network.

There is one definition, for a single operation and for a whole pass: each NIC in each
direction, and each named cut of the network in each direction, carries all bytes of the
operations that cross it, no faster than its capacity; the bound is the time of the
slowest.  It holds for every order, overlap and routing between the same NICs.  Of a
pass, it bounds the time from the first call of any rank to the last end of any rank.
Bounds of operations do not add up to one: these may have different busiest ports.

All-to-alls have the bytes of the plan, other collectives those of the ring algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from moetraffic.arrays import Float64, Int64
from moetraffic.fabric import (
    Network,
    cut_bounds,
    load_fabric,
    other_rates,
    port_bound,
)
from moetraffic.replay.plan.matrices import operation_matrices
from moetraffic.replay.plan.operations import Plan
from moetraffic.trace.trace import Trace
from moetraffic.units import bit_rate, byte_rate


def network_of(
    topology: str | None, capacity: str | None, ranks: int
) -> Network | None:
    """Return the network of a replay; one switch for a capacity alone, None for none.

    Raises
    ------
    MoetrafficError
        If the capacity or the network is invalid.
    """
    if topology is None and capacity is None:
        return None
    network = load_fabric(topology or "single", ranks, capacity=capacity)
    # all NICs of a host take at least the time of its cut, on one switch of any cut
    cuts = {
        name: cuts
        for name, cuts in network.cuts.items()
        if name != "host" and network.name != "single switch"
    }
    return replace(network, cuts=cuts)


def described(network: Network) -> str:
    """Describe a network by its file, name and rates.

    "10 Gbps = 1.25 GB/s a rank" for one switch; "slow.json: leaf-spine, 100 Mbps =
    0.0125 GB/s NICs, rank2 30 Mbps".
    """
    hosts = network.hosts
    rate = f"{bit_rate(hosts.nic_bytes_s)} = {byte_rate(hosts.nic_bytes_s)}"
    text = f"{network.name}, {rate} NICs"
    if network.name == "single switch" and hosts.ranks == 1:
        text = f"{rate} a rank"
    if network.file:
        text = f"{Path(network.file).name}: {text}"
    return ", ".join([text, *other_rates(network)])


def bounds_s(trace: Trace, plan: Plan, network: Network) -> tuple[Float64, float]:
    """Compute the lower bound of each operation by itself, ``[n]`` s, and of a pass."""
    each = np.full(len(plan), np.nan)
    total = np.zeros((plan.world, plan.world), np.int64)
    for at, members, wire in operation_matrices(trace, plan):
        groups, which = np.unique(members, axis=0, return_inverse=True)
        for number, ranks in enumerate(groups):
            rows = np.flatnonzero(which.reshape(-1) == number)
            same = wire.strides[0] == 0  # one matrix for all
            different = wire[rows[:1]] if same else wire[rows]
            each[at[rows]] = busiest_s(network, ranks, different)
            times = len(rows) if same else 1
            total[np.ix_(ranks, ranks)] += different.sum(axis=0) * times
    return each, float(busiest_s(network, np.arange(plan.world), total))


def busiest_s(network: Network, ranks: Int64, matrices: Int64) -> Float64:
    """Compute the time of the slowest port or cut for byte matrices, ``[...]`` s.

    ``ranks`` ``[W]`` int64 are those of the rows and columns of ``matrices``
    ``[..., W, W]`` int64 bytes, of which rows send.
    """
    part = network.placed(network.slots[ranks])
    cuts = cut_bounds(part, matrices).values()
    port = port_bound(part, matrices)
    return np.asarray(np.max([port, *cuts], axis=0), np.float64)


def hosts_match(network: Network, nodes: Sequence[str]) -> bool:
    """Return whether ranks that share a host of the run share one of the network, too.

    Bytes inside a host cross no network.  ``nodes`` are the host of each rank, by name.
    """
    hosts = (network.slots // network.hosts.ranks).tolist()
    both = set(zip(nodes, hosts, strict=True))
    return len(both) == len(set(nodes)) == len(set(hosts))
