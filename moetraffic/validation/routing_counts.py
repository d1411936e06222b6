"""Token counts of a whole run as one array, with the placement of its experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from moetraffic.arrays import Int64, Integer
from moetraffic.errors import AnalysisError
from moetraffic.trace import ROUTING, Trace
from moetraffic.trace.panel import take
from moetraffic.trace.what_if.relocate import routed_layers


@dataclass(frozen=True, kw_only=True)
class RoutingCounts:
    """Routing of a run: T iterations, L layers, R ranks, E experts."""

    counts: Int64  # [T, L, R, E] token copies that a rank routes to an expert
    layers: tuple[int, ...]  # L global layers
    holder: Int64  # [L, E] rank of its group that holds an expert
    width: int  # W, ranks of the group that a layer's tokens are exchanged in
    k: int  # experts of a token; 0: unknown
    copy_bytes: int  # of a token copy, as sent


def routing_counts(
    trace: Trace,
    *,
    layers: Sequence[int] | None = None,
    iterations: range | None = None,
) -> RoutingCounts:
    """Read the routing of all ranks in common iterations.

    Parameters
    ----------
    trace
        Trace with the routing of every rank.
    layers, iterations
        None: all.  Micro-batches of an iteration are summed.

    Raises
    ------
    AnalysisError, TraceError
        If the trace does not hold the routing of all its ranks in common iterations.
    """
    routed = routed_layers(trace)
    chosen = sorted({r.layer for r in routed})
    if layers is not None:
        unknown = sorted(set(layers) - set(chosen))
        if unknown:
            raise AnalysisError(
                f"layers are among those that route, but {unknown} are none of "
                f"{chosen} in {trace.name}: choose others"
            )
        chosen = sorted(set(layers))
    routed = [r for r in routed if r.layer in chosen]
    when = reduce(np.intersect1d, (each.iteration for each in routed))
    if iterations is not None:
        when = when[(when >= iterations.start) & (when < iterations.stop)]
    experts = {r.demand.shape[2] for r in routed}
    if len(when) < 2 or len(experts) != 1:
        raise AnalysisError(
            "layers are compared over two or more common iterations and one number of "
            f"experts, but {trace.name} has {len(when)} and {sorted(experts)} experts: "
            "choose other layers or iterations"
        )
    shape = (len(when), len(chosen), trace.meta.world, experts.pop())
    counts = np.zeros(shape, np.int64)
    for each in routed:
        keep = np.flatnonzero(np.isin(each.iteration, when))
        counts[:, chosen.index(each.layer)] += take(each.demand, keep)
    router = {s.layer: s.group for s in trace.sites if s.operation == ROUTING}
    holder = [trace.holder(at, router[at], int(when[0])) for at in chosen]
    return RoutingCounts(
        counts=counts,
        layers=tuple(chosen),
        holder=np.stack(holder),
        width=max(len(trace.groups[router[at]].ranks) for at in chosen),
        k=trace.meta.k,
        copy_bytes=max(r.row_bytes for r in routed),
    )


def placed_counts(
    counts: Integer, holder: Int64 | None, width: int | None
) -> tuple[Integer, Int64, int]:
    """Complete the placement of counts ``[T, L, R, E]``: holder ``[L, E]``, width.

    None: experts are contiguous, all ranks are one group.  Raises AnalysisError if the
    counts are not of that shape, or of one iteration.
    """
    n = np.asarray(counts)
    if n.ndim != 4 or len(n) < 2 or 0 in n.shape:
        raise AnalysisError(
            f"counts are [T, L, R, E] of two iterations or more, but the shape is "
            f"{n.shape}: give those"
        )
    depth, ranks, experts = n.shape[1:]
    group = ranks if width is None else width
    own = np.arange(experts) * group // experts if holder is None else holder
    return n, np.broadcast_to(own, (depth, experts)), group
