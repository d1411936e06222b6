"""Baselines: captured, minimal and modeled durations of a replay's operations.

Each is ``[n]`` float64 seconds, one per operation of the plan, NaN if unknown:

``captured``
    duration of the same operation in the trace that is replayed;
``bound``
    lower bound on its duration on a network: the largest of the port bound and the cut
    bounds (:mod:`moetraffic.fabric.bounds`), of its byte matrix alone.  With a capacity
    and no topology it is the busiest rank's bytes over the capacity, which is the port
    bound of one switch with one NIC per rank;
``model``
    duration of a collective of its size in a table of measurements, interpolated by
    Hockney's model (:mod:`moetraffic.patterns.bandwidth`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moetraffic.analysis.times.completion import completion
from moetraffic.errors import AnalysisError, ReplayError
from moetraffic.fabric import cut_bounds, port_bound
from moetraffic.fabric.named import Network
from moetraffic.patterns.bandwidth import BandwidthTable
from moetraffic.patterns.collective import COLLECTIVES, UNEVEN, wire_bytes
from moetraffic.replay.plan.matrices import Matrices
from moetraffic.replay.plan.program import KINDS, Plan
from moetraffic.trace.model import ALL_TO_ALL, Float64, Int64
from moetraffic.trace.trace import Trace

_WHOLE = frozenset({"all_gather", "gather"})
"""Kinds whose size is one member's part in a plan, and the total in nccl-tests."""


@dataclass(frozen=True, kw_only=True)
class Baselines:
    """Baseline durations of a replay's operations; None if not requested."""

    captured_call_s: Float64 | None = None
    captured_transfer_s: Float64 | None = None
    bound_s: Float64 | None = None
    model_s: Float64 | None = None
    bound_of: str = ""  # description of the network
    model_of: str = ""  # the table
    notes: tuple[str, ...] = ()


def captured_times(trace: Trace, plan: Plan) -> tuple[Float64, Float64]:
    """Return captured call and transfer times of operations, ``[n]`` s each."""
    calls = completion(trace, kind=None)
    row = np.full(len(trace.occurrences), -1, np.int64)
    row[calls.occurrence] = np.arange(len(calls))
    at = np.where(plan.occurrence >= 0, row[plan.occurrence], -1)
    found = []
    for values in (calls.call_s, calls.transfer_s):
        out = np.full(len(plan), np.nan)
        out[at >= 0] = values[at[at >= 0]]
        found.append(out)
    return found[0], found[1]


def port_times(plan: Plan, capacity_bytes_s: float) -> Float64:
    """Compute the port bound: bytes of the busiest rank / link capacity, ``[n]`` s.

    Raises
    ------
    ReplayError
        If the capacity is not positive.
    """
    if not 0 < capacity_bytes_s < float("inf"):
        raise ReplayError(
            f"a capacity is positive and finite, but is {capacity_bytes_s:g} bytes/s: "
            "give one such as 400Gbps"
        )
    return np.asarray(plan.bottleneck_bytes / capacity_bytes_s, np.float64)


def network_bounds(plan: Plan, matrices: Matrices, network: Network) -> Float64:
    """Compute a lower bound on each operation's time on a network, ``[n]`` s.

    Parameters
    ----------
    plan
        Plan of the replay.
    matrices
        As :func:`moetraffic.replay.plan.matrices.operation_matrices` yields them.
    network
        Network with a slot for each rank.
    """
    out = np.full(len(plan), np.nan)
    for at, members, wire in matrices:
        every, which = np.unique(members, axis=0, return_inverse=True)
        for number, ranks in enumerate(every):
            mine = np.flatnonzero(which.reshape(-1) == number)
            out[at[mine]] = lower_bounds(network, ranks, wire[mine])
    return out


def lower_bounds(network: Network, ranks: Int64, matrices: Int64) -> Float64:
    """Compute the larger of port and cut bounds of byte matrices ``[..., W, W]``, s."""
    slots = network.slots[ranks]
    cuts = cut_bounds(network.topology, slots, matrices).values()
    port = port_bound(network.topology, slots, matrices)
    return np.asarray(np.max([port, *cuts], axis=0), np.float64)


def modeled(
    plan: Plan, table: BandwidthTable, nodes: Sequence[str]
) -> tuple[Float64, tuple[str, ...]]:
    """Estimate operation times from a table of measurements, ``[n]`` s, with notes.

    An uneven all-to-all is looked up by the bytes of its busiest link, among uneven
    ones if these were measured, otherwise among even ones.

    Parameters
    ----------
    plan
        Plan of the replay.
    table
        Measured collectives.
    nodes
        Host of each rank.
    """
    out = np.full(len(plan), np.nan)
    measured = {key[0] for key in table.curves}
    notes: list[str] = []
    width = np.array([len(g) for g in plan.groups], np.int64)
    span = np.array([len({nodes[r] for r in g}) for g in plan.groups], np.int64)
    keys = np.stack([plan.kind.astype(np.int64), span[plan.group]], axis=1)
    moved = plan.bottleneck_bytes > 0
    for number, hosts in np.unique(keys[moved], axis=0).tolist():
        kind = KINDS[number]
        at = np.flatnonzero((keys == [number, hosts]).all(axis=1) & moved)
        name = UNEVEN if kind == ALL_TO_ALL and UNEVEN in measured else kind
        if name not in COLLECTIVES or name not in measured:
            notes.append(f"{kind}: not in the table")
            continue
        ranks = width[plan.group[at]]
        if kind == ALL_TO_ALL:
            size = plan.bottleneck_bytes[at] / wire_bytes(name, ranks, 1.0)
        else:
            size = (plan.size[at] * np.where(kind in _WHOLE, ranks, 1)).astype(float)
        spans = sorted({key[3] for key in table.curves if key[0] == name})
        if hosts not in spans:
            notes.append(
                f"{kind} over {hosts} hosts: not in the table, estimated from those "
                f"over {spans[0]}"
            )
        try:
            found = table.effective(
                name, ranks, size, span=hosts if hosts in spans else spans[0]
            )
        except AnalysisError as error:
            notes.append(str(error))
            continue
        out[at] = found.time_s
        outside = int((~found.inside).sum())
        if outside:
            notes.append(
                f"{kind}: {outside} of {len(at)} sizes or ranks lie outside the "
                "measured range"
            )
    return out, tuple(notes)
