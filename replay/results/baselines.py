"""Baselines: captured, minimal and modeled durations of a replay's operations.

Each is ``[n]`` float64 seconds, one per operation of the plan, NaN if unknown:

``captured``
    duration of the same operation in the trace that is replayed;
``bound``
    lower bound on its duration on a network: no NIC sends faster than its capacity, and
    traffic that leaves a set of hosts does not cross its uplinks faster than theirs
    (:mod:`moetraffic.fabric.loads`).  With a capacity and no topology it is the
    busiest rank's bytes over the capacity, which is the port bound of one switch with
    one NIC per rank.  All-to-alls have the matrices of the plan, other collectives use
    the ring algorithm;
``model``
    duration of a collective of its size in a table of measurements, interpolated by
    Hockney's model (:mod:`moetraffic.patterns.bandwidth`), or by Hockney's alpha and
    beta.

There are three lower bounds for the whole replay, each at least the one before it:

``whole``
    Every NIC and every cut carries all bytes of the replay, in any order.
``iterations``
    No byte of an iteration is sent before all bytes of the previous one.  Ranks wait
    only for their own operations, so they may run slightly ahead of each other: the
    bound holds if in an iteration every rank exchanges bytes with every other.
``operations``
    No operation of a stream begins on any of its members before the previous one has
    ended on all of its own: in each iteration the largest sum over a rank's operations
    of a stream.  Estimates by a model are summed in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from moetraffic.analysis.times.completion import completion
from moetraffic.errors import AnalysisError, ReplayError
from moetraffic.fabric import cut_bounds, port_bound
from moetraffic.fabric.named import Network
from moetraffic.patterns.bandwidth import BandwidthTable
from moetraffic.patterns.bandwidth.collective import (
    COLLECTIVES,
    UNEVEN,
    convention,
    wire_bytes,
)
from moetraffic.patterns.bandwidth.hockney import Hockney
from moetraffic.replay.plan.program import KINDS, Plan
from moetraffic.replay.plan.sizes import Matrices, operation_matrices
from moetraffic.trace.model import ALL_TO_ALL, Float64, Int64
from moetraffic.trace.trace import Trace
from moetraffic.units import bytes_per_second, duration, seconds

_WHOLE = frozenset({"all_gather", "gather"})
"""Kinds whose size is one member's part in a plan, and the total in nccl-tests."""


@dataclass(frozen=True, kw_only=True)
class Baselines:
    """Baseline durations of a replay's operations; None if not requested."""

    captured_call_s: Float64 | None = None
    captured_transfer_s: Float64 | None = None
    bound_s: Float64 | None = None
    ports_s: Float64 | None = None
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
    """Compute a lower bound on each operation's time on a network, ``[n]`` s."""
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


# ---- the whole replay ------------------------------------------------------------


_CELLS = 1 << 22  # matrix cells held at a time, one matrix per iteration


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Lower bounds on the duration of a plan and its operations, s."""

    operation_s: Float64  # [n] of each operation
    whole_s: float
    iterations_s: float
    operations_s: float
    topology: str


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Estimated durations from measurements of the network."""

    operation_s: Float64  # [n]; 0 where no byte crosses the network, NaN: unknown
    total_s: float  # of the known operations, summed as Bounds.operations_s
    source: str
    notes: tuple[str, ...] = ()


def bounds(trace: Trace, plan: Plan, network: Network) -> Bounds:
    """Compute lower bounds on the duration of a plan on a network."""

    everyone = np.arange(plan.world)
    each = np.zeros(len(plan))
    whole = np.zeros((plan.world, plan.world), np.int64)
    iterations_s = 0.0
    for at, number in _by_iterations(plan):
        part = _part(plan, at)
        sums = np.zeros((int(number.max()) + 1, *whole.shape), np.int64)
        for of, members, wire in operation_matrices(trace, part):
            for ranks in np.unique(members, axis=0):
                mine = np.flatnonzero((members == ranks).all(axis=1))
                each[at[of[mine]]] = lower_bounds(network, ranks, wire[mine])
                into = number[of[mine]][:, None, None]
                np.add.at(sums, (into, ranks[:, None], ranks), wire[mine])
        iterations_s += float(lower_bounds(network, everyone, sums).sum())
        whole += sums.sum(axis=0)
    return Bounds(
        operation_s=each,
        whole_s=float(lower_bounds(network, everyone, whole)),
        iterations_s=iterations_s,
        operations_s=max(serialized_time(plan, each), iterations_s),
        topology=network.topology.name,
    )


def serialized_time(plan: Plan, operation_s: Float64) -> float:
    """Compute the duration of a plan if operations of a stream do not overlap.

    Sum of :func:`serialized_times` over iterations.
    """
    return float(serialized_times(plan, operation_s).sum())


def serialized_times(plan: Plan, operation_s: Float64) -> Float64:
    """Compute the duration of each iteration if operations of a stream do not overlap.

    The largest sum over a rank's operations of one stream, ``[T]`` s, in the order of
    the iterations.  A message counts on its sender and receiver.  NaN counts as 0.
    """
    iterations, which = np.unique(plan.iteration, return_inverse=True)
    longest = np.zeros(len(iterations))
    took = np.nan_to_num(operation_s)
    member = np.zeros((plan.world, len(plan.groups)), bool)
    for group, ranks in enumerate(plan.groups):
        member[list(ranks), group] = True
    message = plan.kind == KINDS.index("send_recv")
    for rank in range(plan.world):
        ends = (plan.sender == rank) | (plan.receiver == rank)
        own = np.where(message, ends, member[rank, plan.group])
        for stream in np.unique(plan.stream[own]).tolist():
            mine = np.flatnonzero(own & (plan.stream == stream))
            sums = np.bincount(which[mine], took[mine], minlength=len(iterations))
            longest = np.maximum(longest, sums)
    return longest


def _by_iterations(plan: Plan) -> Iterator[tuple[Int64, Int64]]:
    """Yield blocks of iterations: operations, and their iteration in the block."""
    which = np.unique(plan.iteration, return_inverse=True)[1]
    step = max(1, _CELLS // plan.world**2)
    order = np.argsort(which, kind="stable")
    edges = np.searchsorted(
        which[order], np.arange(0, int(which.max()) + 1 + step, step)
    )
    for number, (begin, end) in enumerate(pairwise(edges.tolist())):
        at = np.sort(order[begin:end])
        if len(at):
            yield at, which[at] - number * step


def _part(plan: Plan, at: Int64) -> Plan:
    """Return a copy of a plan with the columns of some operations only."""
    columns = ("occurrence", "iteration", "site", "kind", "group", "stream")
    sizes = ("sender", "receiver", "size")
    return replace(
        plan, **{name: getattr(plan, name)[at] for name in (*columns, *sizes)}
    )


# ---- measurements ------------------------------------------------------------------


def parse_hockney(text: str) -> Hockney:
    """Parse alpha and beta of Hockney's model, such as ``10us,50GB/s``.

    Raises
    ------
    ReplayError
        If the text is not such a pair.
    """
    alpha, comma, beta = text.partition(",")
    if not comma:
        raise ReplayError(
            "Hockney's model needs a latency a round and a bandwidth, but --hockney is "
            f"{text[:40]!r}: give 10us,50GB/s"
        )
    return Hockney(alpha_s=seconds(alpha), beta_bytes_s=bytes_per_second(beta))


def by_hockney(plan: Plan, model: Hockney) -> Estimate:
    """Estimate operation times: alpha steps + (bytes of the busiest link) / beta.

    See :mod:`moetraffic.patterns.bandwidth.hockney` and, for the rounds of a
    collective on a ring, :mod:`moetraffic.patterns.bandwidth.collective`.
    """
    took = np.zeros(len(plan))
    width = np.array([len(g) for g in plan.groups], np.float64)[plan.group]
    for number, kind in enumerate(KINDS):
        at = np.flatnonzero((plan.kind == number) & (plan.bottleneck_bytes > 0))
        if len(at):
            rounds = convention(kind).steps(width[at])
            wire_s = plan.bottleneck_bytes[at] / model.beta_bytes_s
            took[at] = model.alpha_s * rounds + wire_s
    alpha, beta = duration(model.alpha_s), model.beta_bytes_s / 1e9
    return Estimate(
        operation_s=took,
        total_s=serialized_time(plan, took),
        source=f"Hockney, {alpha} a round and {beta:g} GB/s",
    )


def by_table(plan: Plan, table: BandwidthTable, source: str, hosts: Int64) -> Estimate:
    """Estimate operation times from a table of measured collectives.

    ``hosts`` ``[R]`` int64 is the host of each rank.
    """
    took, notes = modeled(plan, table, [str(host) for host in hosts.tolist()])
    known = np.where(plan.bottleneck_bytes > 0, took, 0.0)
    return Estimate(
        operation_s=known,
        total_s=serialized_time(plan, known),
        source=source,
        notes=notes,
    )
