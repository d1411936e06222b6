"""Synthetic runs with the usual traits, for the tests of validation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from moetraffic.arrays import Int64


def routed(
    seed: int,
    run: int = 0,
    *,
    iterations: int = 120,
    layers: int = 2,
    ranks: int = 4,
    experts: int = 6,
    persistence: float = 0.9,
    concentration: float = 20.0,
    tokens: int = 128,
) -> Int64:
    """Token counts ``[T, L, R, E]`` of one run of a process with the usual traits.

    Log shares wander about a mean of the seed's own, layers together; a rank's shares
    scatter about the layer's (Dirichlet), its counts about these.  Another ``run`` is
    a rerun: the mean is the same, all else is drawn again.
    """
    rng = np.random.default_rng(seed)
    mean = rng.permuted(
        np.linspace(-1, 1, experts) + rng.normal(0, 0.1, (layers, experts)), axis=1
    )
    drawn = np.random.default_rng((seed, run))
    state = np.zeros((layers, experts))
    counts = np.empty((iterations, layers, ranks, experts), np.int64)
    for step in range(-50, iterations):
        push = drawn.normal(size=(layers, experts))
        push[1:] = 0.7 * push[0] + np.sqrt(1 - 0.49) * push[1:]
        state = persistence * state + 0.5 * np.sqrt(1 - persistence**2) * push
        if step >= 0:
            share = np.exp(mean + state)
            share /= share.sum(axis=1, keepdims=True)
            rows = drawn.standard_gamma(
                np.repeat(concentration * share[:, None], ranks, axis=1)
            )
            rows /= rows.sum(axis=2, keepdims=True)
            counts[step] = drawn.multinomial(tokens, rows)
    return counts


@pytest.fixture(scope="session")
def simulated() -> Callable[..., Int64]:
    return routed
