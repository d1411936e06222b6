"""Token counts of a whole run as one array."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import AnalysisError
from moetraffic.trace import Trace
from moetraffic.trace.panel import take
from moetraffic.trace.what_if.relocate import routed_layers


def routing_counts(
    trace: Trace,
    *,
    layers: Sequence[int] | None = None,
    iterations: range | None = None,
) -> Int64:
    """Read the token copies ``[T, L, R, E]`` that each rank routes to each expert.

    Iterations are those that all layers have; micro-batches of one are summed.

    Raises
    ------
    AnalysisError, TraceError
        If there are no such iterations, layers or counts of all ranks.
    """
    routed = [r for r in routed_layers(trace) if layers is None or r.layer in layers]
    chosen = sorted({r.layer for r in routed})
    when = reduce(np.intersect1d, [r.iteration for r in routed] or [np.array([])])
    if iterations is not None:
        when = when[(when >= iterations.start) & (when < iterations.stop)]
    experts = {r.demand.shape[2] for r in routed}
    if not len(when) or len(experts) != 1 or not set(layers or ()) <= set(chosen):
        raise AnalysisError(
            "layers are compared over common iterations and one number of experts, but "
            f"layers {chosen} of {trace.name} have {len(when)} iterations and "
            f"{sorted(experts)} experts: choose other layers or iterations"
        )
    counts = np.zeros((len(when), len(chosen), trace.meta.world, *experts), np.int64)
    for r in routed:
        keep = np.flatnonzero(np.isin(r.iteration, when))
        counts[:, chosen.index(r.layer)] += take(r.demand, keep)
    return counts
