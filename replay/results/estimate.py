"""Lower bounds and estimates of the duration of a planned replay.

Lower bounds follow from the network: no NIC sends faster than its capacity, and traffic
that leaves a set of hosts does not cross its uplinks faster than theirs
(:mod:`moetraffic.fabric.bounds`).  All-to-alls have the matrices of the plan, other
collectives use the ring algorithm.  There is a bound for each operation, and three for
the whole replay, each at least the one before it:

``whole``
    Every NIC and every cut carries all bytes of the replay, in any order.
``iterations``
    No byte of an iteration is sent before all bytes of the previous one.  Ranks wait
    only for their own operations, so they may run slightly ahead of each other: the
    bound holds if in an iteration every rank exchanges bytes with every other.
``operations``
    No operation of a stream begins on any of its members before the previous one has
    ended on all of its own: in each iteration the largest sum over a rank's operations
    of a stream.

Estimates use measurements: Hockney's alpha and beta, or a table of effective
bandwidths.  They are summed as ``operations``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from moetraffic.errors import ReplayError
from moetraffic.fabric.named import Network
from moetraffic.patterns.bandwidth import BandwidthTable
from moetraffic.patterns.collective import convention
from moetraffic.patterns.hockney import Hockney
from moetraffic.replay.plan.matrices import operation_matrices
from moetraffic.replay.plan.program import KINDS, Plan
from moetraffic.replay.scale.rescaling import Scale
from moetraffic.trace.model import Float64, Int64
from moetraffic.trace.trace import Trace
from moetraffic.units import bytes_per_second, duration, seconds

from .baselines import lower_bounds, modeled

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


def bounds(
    trace: Trace, plan: Plan, network: Network, scale: Scale | None = None
) -> Bounds:
    """Compute lower bounds on the duration of a plan on a network.

    Parameters
    ----------
    trace
        Trace of the plan.
    plan
        Plan with the programs of all ranks.
    network
        Network with a slot for each rank.
    scale
        Converts ranks and bytes of the trace; None leaves them.
    """

    everyone = np.arange(plan.world)
    each = np.zeros(len(plan))
    whole = np.zeros((plan.world, plan.world), np.int64)
    iterations_s = 0.0
    for at, number in _by_iterations(plan):
        part = _part(plan, at)
        sums = np.zeros((int(number.max()) + 1, *whole.shape), np.int64)
        for of, members, wire in operation_matrices(trace, part, scale):
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

    In each iteration the largest sum over a rank's operations of one stream; summed
    over iterations.  NaN counts as 0.
    """
    iterations, which = np.unique(plan.iteration, return_inverse=True)
    longest = np.zeros(len(iterations))
    for program in plan.programs.values():
        took = np.nan_to_num(operation_s[program.operation])
        for stream in np.unique(program.stream).tolist():
            mine = program.stream == stream
            sums = np.bincount(
                which[program.operation[mine]],
                weights=took[mine],
                minlength=len(iterations),
            )
            longest = np.maximum(longest, sums)
    return float(longest.sum())


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

    See :mod:`moetraffic.patterns.hockney` and, for the rounds of a collective on a
    ring, :mod:`moetraffic.patterns.collective`.
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

    Parameters
    ----------
    plan
        Plan of the replay.
    table
        Measured collectives.
    source
        Name of the table.
    hosts
        ``[R]`` int64 host of each rank.
    """
    took, notes = modeled(plan, table, [str(host) for host in hosts.tolist()])
    known = np.where(plan.bottleneck_bytes > 0, took, 0.0)
    return Estimate(
        operation_s=known,
        total_s=serialized_time(plan, known),
        source=source,
        notes=notes,
    )
