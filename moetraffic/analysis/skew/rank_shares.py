"""Shares of expert-parallel ranks at any EP degree, from a capture."""

from __future__ import annotations

import numpy as np

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import AnalysisError
from moetraffic.trace import Trace
from moetraffic.trace.what_if.relocate import routed_layers


def rank_loads(trace: Trace, ep: int) -> list[Int64]:
    """Count the token copies of each expert-parallel rank.

    Rank i of ``ep``, a divisor of the experts, holds the i-th of as many equal parts of
    them, in order.

    ``[n, ep]`` int64 of each layer, its micro-batches and iterations.

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
        counts = layer.demand.read(0, layer.demand.shape[0])
        load = counts.sum(axis=1, dtype=np.int64)
        found.append(load.reshape(len(load), ep, -1).sum(axis=2))
    return found


def rank_shares(trace: Trace, ep: int) -> Float64:
    """Compute the shares of expert-parallel ranks in an exchange, by layer.

    The ranks of a layer are ordered by their copies in the whole run.  The i-th busiest
    has the share that the i-th busiest rank of an exchange has in the mean of all
    layers, micro-batches and iterations, so that each layer's busiest rank is as busy
    as that of a mean exchange, whichever rank that is.

    ``[layers, ep]`` float64; each row sums to 1.
    """
    layers = rank_loads(trace, ep)
    every = np.sort(np.concatenate(layers), axis=1)
    total = every.sum(axis=1, keepdims=True)
    if not total.any():
        raise AnalysisError(
            "shares of ranks are those of routed token copies, but the routers of "
            f"{trace.name} routed none: give another trace"
        )
    shares = (every / np.maximum(total, 1))[total[:, 0] > 0].mean(axis=0)
    places = [np.argsort(np.argsort(load.sum(axis=0))) for load in layers]
    return np.asarray(shares[np.array(places)])
