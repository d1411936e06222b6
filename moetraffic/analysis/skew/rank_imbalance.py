"""Imbalance of expert-parallel ranks at any EP degree, from a capture."""

from __future__ import annotations

import numpy as np

from moetraffic.errors import AnalysisError
from moetraffic.trace import Trace
from moetraffic.trace.relocation import routed_layers

from .measures import max_over_mean


def rank_imbalance(trace: Trace, ep: int) -> float:
    """Compute the load of the busiest expert-parallel rank relative to the mean.

    Rank i of ``ep`` holds the i-th of as many equal parts of the experts, in order.
    The ratio is taken for each layer, micro-batch and iteration, and averaged: a layer
    waits for its busiest rank.

    Parameters
    ----------
    trace
        With routing.
    ep
        Expert-parallel ranks, a divisor of the experts.

    Returns
    -------
    float
        From 1 (balanced) to ``ep`` (one rank has all).

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
        found.append(max_over_mean(load.reshape(len(load), ep, -1).sum(axis=2)))
    return float(np.nanmean(np.concatenate(found)))
