"""How long a replay takes at the least, and about how long, before anything is sent.

Lower bounds follow from what the network can carry: no NIC passes its bytes faster than
its capacity, and what leaves a set of hosts does not cross its uplinks faster
(:mod:`moetraffic.fabric.bounds`).  All-to-alls have the plan's matrices, other
collectives travel as rings.  There is one of each operation, and three of the whole,
each at least the one before it:

``whole``
    Every NIC and every cut passes all bytes of the replay, whatever the order.
``iterations``
    No byte of an iteration is sent before all of the iteration before.  Ranks wait for
    their own operations alone, so that they may run ahead of each other by a little:
    this holds where in an iteration every rank exchanges something with every other.
``operations``
    No operation of a stream begins on any of its members before the one before has
    ended on all of its own: in each iteration the largest sum over a rank's operations
    of a stream.

Estimates come from measurements, of each operation: Hockney's alpha and beta, or a
table of effective bandwidths.  They are summed as ``operations``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from moetraffic.errors import ReplayError
from moetraffic.fabric import cut_bounds, port_bound
from moetraffic.fabric.named import Network
from moetraffic.patterns.bandwidth import BandwidthTable
from moetraffic.patterns.collective import convention
from moetraffic.patterns.hockney import Hockney
from moetraffic.replay.plan.matrices import Scaled, operation_matrices
from moetraffic.replay.plan.program import KINDS, Plan
from moetraffic.trace.model import Float64, Int64
from moetraffic.trace.trace import Trace
from moetraffic.units import bytes_per_second, duration, seconds

from .baselines import modeled

_CELLS = 1 << 22  # of matrices over the world, one an iteration, at a time


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Lower bounds, s."""

    operation_s: Float64  # [n] of each operation
    whole_s: float
    iterations_s: float
    operations_s: float
    topology: str


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What measurements of the network say."""

    operation_s: Float64  # [n]; 0 where nothing crosses the network, NaN: not told
    total_s: float  # of those that are told, summed as Bounds.operations_s
    source: str
    notes: tuple[str, ...] = ()


def bounds(
    trace: Trace, plan: Plan, network: Network, scale: Scaled | None = None
) -> Bounds:
    """Lower bounds of a plan on a network.

    Parameters
    ----------
    trace
        What the plan was made of.
    plan
        With the programs of all ranks.
    network
        With a slot for each rank.
    scale
        The one that the plan was made with.
    """

    def least(ranks: Int64, matrices: Int64) -> Float64:
        slots = network.slots[ranks]
        of_cuts = cut_bounds(network.topology, slots, matrices).values()
        port = port_bound(network.topology, slots, matrices)
        return np.asarray(np.max([port, *of_cuts], axis=0), np.float64)

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
                each[at[of[mine]]] = least(ranks, wire[mine])
                into = number[of[mine]][:, None, None]
                np.add.at(sums, (into, ranks[:, None], ranks), wire[mine])
        iterations_s += float(least(everyone, sums).sum())
        whole += sums.sum(axis=0)
    return Bounds(
        operation_s=each,
        whole_s=float(least(everyone, whole)),
        iterations_s=iterations_s,
        operations_s=max(serialized_time(plan, each), iterations_s),
        topology=network.topology.name,
    )


def serialized_time(plan: Plan, operation_s: Float64) -> float:
    """Time of all operations where those of a stream take turns on every rank.

    In each iteration the largest sum over a rank's operations of one stream; summed
    over iterations.  What is NaN counts nothing.
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
    """Operations of some iterations at a time, and which of these each is of."""
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
    """The columns of some operations, without programs."""
    columns = ("occurrence", "iteration", "site", "kind", "group", "stream")
    sizes = ("sender", "receiver", "size")
    return replace(
        plan, **{name: getattr(plan, name)[at] for name in (*columns, *sizes)}
    )


# ---- what measurements say ---------------------------------------------------------


def parse_hockney(text: str) -> Hockney:
    """Alpha and beta as people write them: ``10us,50GB/s``.

    Raises
    ------
    ReplayError
        If the text is no such pair.
    """
    alpha, comma, beta = text.partition(",")
    if not comma:
        raise ReplayError(
            "Hockney's model has a time a round and a bandwidth, but --hockney is "
            f"{text[:40]!r}: give 10us,50GB/s"
        )
    return Hockney(alpha_s=seconds(alpha), beta_bytes_s=bytes_per_second(beta))


def by_hockney(plan: Plan, model: Hockney) -> Estimate:
    """T = alpha steps + (bytes of the busiest link) / beta, of each operation.

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
    """Measured times of collectives of as many ranks and bytes, and between them.

    Parameters
    ----------
    plan
        Any.
    table
        Measured collectives.
    source
        Its name.
    hosts
        ``[R]`` int64 the host of each rank.
    """
    took, notes = modeled(plan, table, [str(host) for host in hosts.tolist()])
    told = np.where(plan.bottleneck_bytes > 0, took, 0.0)
    return Estimate(
        operation_s=told,
        total_s=serialized_time(plan, told),
        source=source,
        notes=notes,
    )
