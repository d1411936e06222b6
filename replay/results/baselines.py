"""Baselines: captured, minimal and modeled durations of a replay's operations.

Each is ``[n]`` float64 seconds, one per operation of the plan, NaN if unknown:

``captured``
    duration of the same operation in the trace that is replayed;
``bound``
    lower bound on its duration on a network (:mod:`.lower_bound`);
``model``
    duration of a collective of its size in a table of measurements, interpolated by
    Hockney's model (:mod:`moetraffic.patterns.bandwidth`), or by Hockney's alpha and
    beta.

Estimates of a whole replay from times of operations take those of a stream one after
another (:func:`serialized_time`); they are no bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moetraffic.analysis.times.completion import completion
from moetraffic.arrays import Float64, Int64
from moetraffic.errors import AnalysisError, ReplayError
from moetraffic.patterns.bandwidth import BandwidthTable, Hockney
from moetraffic.patterns.collectives import (
    COLLECTIVES,
    UNEVEN,
    convention,
    wire_bytes,
)
from moetraffic.replay.plan.program import KINDS, Plan
from moetraffic.trace.model import ALL_TO_ALL
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
    pass_bound_s: float = float("nan")  # of all operations of a pass together
    ports_s: Float64 | None = None
    model_s: Float64 | None = None
    bound_of: str = ""  # description of the network
    bound_exceeded: bool = False  # by measured ports
    bound_hosts_match: bool = True  # same ranks on each host
    model_of: str = ""  # the table
    model_beyond: str = ""  # how many sizes are outside its range
    notes: tuple[str, ...] = ()


def captured_times(trace: Trace, plan: Plan) -> tuple[Float64, Float64]:
    """Return captured call and transfer times of operations, ``[n]`` s each."""
    calls = completion(trace, kind=None)
    row = np.full(len(trace.occurrences), -1, np.int64)
    row[calls["occurrence"]] = np.arange(len(calls))
    at = np.where(plan.occurrence >= 0, row[plan.occurrence], -1)
    found = []
    for values in (calls["call_s"], calls["transfer_s"]):
        out = np.full(len(plan), np.nan)
        out[at >= 0] = values[at[at >= 0]]
        found.append(out)
    return found[0], found[1]


@dataclass(frozen=True, kw_only=True)
class Modeled:
    """Times of operations that a table of measurements gives."""

    operation_s: Float64  # [n]; NaN: unknown
    beyond: tuple[str, ...]  # how many operations are outside the measured range
    lacking: tuple[str, ...]  # what is not in the table


def modeled(plan: Plan, table: BandwidthTable, nodes: Sequence[str]) -> Modeled:
    """Estimate operation times from a table of measurements.

    An uneven all-to-all is looked up by the bytes of its busiest link, among uneven
    ones if these were measured, otherwise among even ones.
    """
    out = np.full(len(plan), np.nan)
    measured = {key[0] for key in table.curves}
    beyond: list[str] = []
    lacking: list[str] = []
    width = np.array([len(g) for g in plan.groups], np.int64)
    span = np.array([len({nodes[r] for r in g}) for g in plan.groups], np.int64)
    keys = np.stack([plan.kind.astype(np.int64), span[plan.group]], axis=1)
    moved = plan.bottleneck_bytes > 0
    for number, hosts in np.unique(keys[moved], axis=0).tolist():
        kind = KINDS[number]
        at = np.flatnonzero((keys == [number, hosts]).all(axis=1) & moved)
        name = UNEVEN if kind == ALL_TO_ALL and UNEVEN in measured else kind
        if name not in COLLECTIVES or name not in measured:
            lacking.append(f"{kind}: not in the table")
            continue
        ranks = width[plan.group[at]]
        if kind == ALL_TO_ALL:
            size = plan.bottleneck_bytes[at] / wire_bytes(name, ranks, 1.0)
        else:
            size = (plan.size[at] * np.where(kind in _WHOLE, ranks, 1)).astype(float)
        spans = sorted({key[3] for key in table.curves if key[0] == name})
        if hosts not in spans:
            lacking.append(
                f"{kind} over {hosts} hosts: not in the table, estimated from those "
                f"over {spans[0]}"
            )
        try:
            found = table.effective(
                name, ranks, size, span=hosts if hosts in spans else spans[0]
            )
        except AnalysisError as error:
            lacking.append(str(error))
            continue
        out[at] = found.time_s
        outside = int((~found.inside).sum())
        if outside:
            beyond.append(
                f"{kind}: {outside} of {len(at)} sizes or ranks lie outside the "
                "measured range"
            )
    return Modeled(operation_s=out, beyond=tuple(beyond), lacking=tuple(lacking))


# ---- the whole replay ------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Estimated durations from measurements of the network."""

    operation_s: Float64  # [n]; 0 where no byte crosses the network, NaN: unknown
    total_s: float  # of the known operations
    source: str
    notes: tuple[str, ...] = ()


def serialized_time(plan: Plan, operation_s: Float64) -> float:
    """Estimate the duration of a plan if operations of a stream do not overlap, s.

    In each iteration the largest sum over a rank's operations of one stream.  A message
    counts on its sender and receiver.  NaN counts as 0.
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
    return float(longest.sum())


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

    See :mod:`moetraffic.patterns.bandwidth` and, for the rounds of a
    collective on a ring, :mod:`moetraffic.patterns.collectives`.
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
    found = modeled(plan, table, [str(host) for host in hosts.tolist()])
    known = np.where(plan.bottleneck_bytes > 0, found.operation_s, 0.0)
    return Estimate(
        operation_s=known,
        total_s=serialized_time(plan, known),
        source=source,
        notes=(*found.beyond, *found.lacking),
    )
