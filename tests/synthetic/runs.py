"""Simulated routing: counts whose rows scatter about a load that wanders."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.trace import Group, Meta, Steps
from moetraffic.trace.model import PLACEMENT
from moetraffic.trace.panel import ArrayPanel
from moetraffic.trace.routed import RoutedLayer, trace_of_routing

LAYERS, RANKS, EXPERTS, TOKENS = 2, 4, 8, 256


def simulated(seed: int, iterations: int = 80) -> Int64:
    """Token copies ``[T, L, R, E]``; seeds are reruns of one initialization."""
    rng = np.random.default_rng(seed)
    start = np.linspace(-0.8, 0.8, EXPERTS)
    steps = rng.normal(0, 0.1, (iterations, LAYERS, EXPERTS))
    share = np.exp(start + np.cumsum(steps, axis=0))
    share /= share.sum(axis=2, keepdims=True)
    rows = rng.standard_gamma(20 * share[:, :, None].repeat(RANKS, axis=2)) + 1e-9
    counts: Int64 = rng.multinomial(TOKENS, rows / rows.sum(axis=3, keepdims=True))
    return counts


def write(path: Path, counts: Int64) -> None:
    """Write a virtual top-1 trace of counts, experts contiguous in one group."""
    total, layers, ranks, experts = counts.shape
    routed = [
        RoutedLayer(
            layer=layer,
            slot=0,
            iteration=np.arange(total),
            demand=ArrayPanel(counts[:, layer].astype(np.int32)),
            dropped=None,
            row_bytes=64,
            dtype="float32",
        )
        for layer in range(layers)
    ]
    held = [
        (0, layer, expert, 0, expert * ranks // experts, 0)
        for layer in range(layers)
        for expert in range(experts)
    ]
    trace_of_routing(
        routed,
        groups=[Group(kind="ep", ranks=tuple(range(ranks)))],
        placements=np.array(held, PLACEMENT),
        meta=Meta(world=ranks, dp=ranks, ep=ranks, experts=experts, k=1, virtual=True),
        steps=Steps.of_training(np.arange(total), ranks, tokens=TOKENS),
    ).save(path)
