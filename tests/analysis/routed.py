"""Traces of given demand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moetraffic.trace import Group, Meta, Steps, Trace
from moetraffic.trace.model import PLACEMENT
from moetraffic.trace.panel import ArrayPanel
from moetraffic.trace.routed import RoutedLayer, trace_of_routing


def routed(
    demand: np.ndarray, *, k: int = 1, layers: Sequence[int] = (0,), groups: int = 1
) -> Trace:
    """Make a trace of demand ``[T, R, E]``, the same in every layer, on groups."""
    steps, ranks, experts = demand.shape
    ep = ranks // groups
    placements = np.zeros(groups * len(layers) * experts, PLACEMENT)
    placements["group"] = np.repeat(np.arange(groups), len(layers) * experts)
    placements["layer"] = np.tile(np.repeat(layers, experts), groups)
    placements["expert"] = np.tile(np.arange(experts), groups * len(layers))
    placements["rank"] = placements["expert"] * ep // experts + ep * placements["group"]
    return trace_of_routing(
        [
            RoutedLayer(
                layer=layer,
                slot=0,
                iteration=np.arange(steps),
                demand=ArrayPanel(demand.astype(np.int32)),
                dropped=None,
                row_bytes=64,
                dtype="float32",
            )
            for layer in layers
        ],
        groups=[
            Group(kind="ep", ranks=tuple(range(first, first + ep)))
            for first in range(0, ranks, ep)
        ],
        placements=placements,
        meta=Meta(world=ranks, ep=ep, experts=experts, k=k, dispatch="dropless"),
        steps=Steps.of_training(np.arange(steps), ranks),
    )


def drawn(steps: int, ranks: int, experts: int, tokens: int = 200) -> np.ndarray:
    """Draw demand ``[T, R, E]`` of a constant skewed router."""
    rng = np.random.default_rng(steps * 1000 + ranks * 10 + experts)
    shares = rng.dirichlet(np.ones(experts) * 3, size=ranks)
    return np.stack([rng.multinomial(tokens, shares) for _ in range(steps)])


def evening(steps: int = 160, seed: int = 5) -> np.ndarray:
    """Draw demand ``[T, 4, 8]`` whose shares go on a line from skewed to even."""
    rng = np.random.default_rng(seed)
    skewed = np.array([8, 4, 2, 1, 1, 1, 1, 1]) / 19
    weights = np.linspace(1, 0, steps)[:, None]
    shares = weights * skewed + (1 - weights) / 8
    return np.stack([rng.multinomial(512, shares) for _ in range(4)], axis=1)
