"""Imbalance of expert-parallel ranks at any EP degree, from a capture."""

from __future__ import annotations

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import AnalysisError
from moetraffic.trace import Trace
from moetraffic.trace.relocation import routed_layers

from .measures import max_over_mean


def rank_loads(trace: Trace, ep: int) -> Int64:
    """Count the token copies of each expert-parallel rank.

    Rank i of ``ep``, a divisor of the experts, holds the i-th of as many equal parts of
    them, in order.

    ``[n, ep]`` int64 of each layer, micro-batch and iteration.

    Raises
    ------
    TraceError
        If the trace has no routing.
    AnalysisError
        If ``ep`` does not divide the experts of a layer.
    """
    found = []
    for layer in routed_layers(trace):
        experts = layer.demand.shape[2]
        if ep < 1 or experts % ep:
            raise AnalysisError(
                f"ep divides the experts, but layer {layer.layer} of {trace.name} has "
                f"{experts} for ep {ep}: change --ep, or generate a trace with more "
                "experts"
            )
        load = layer.demand.sum(axis=1, dtype=np.int64)
        found.append(load.reshape(len(load), ep, -1).sum(axis=2))
    return np.concatenate(found)


def rank_imbalance(trace: Trace, ep: int) -> float:
    """Compute the load of the busiest expert-parallel rank relative to the mean.

    The ratio of :func:`rank_loads` is taken for each layer, micro-batch and iteration,
    and averaged: a layer waits for its busiest rank.

    From 1 (balanced) to ``ep`` (one rank has all).
    """
    return float(np.nanmean(max_over_mean(rank_loads(trace, ep))))


def load_shares(trace: Trace, ep: int) -> tuple[float, ...]:
    """Compute each expert-parallel rank's share of all token copies of a run."""
    sums = rank_loads(trace, ep).sum(axis=0)
    return tuple((sums / max(sums.sum(), 1)).tolist())
