"""Small runs whose truth is known, and a capture of real text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from moetraffic.generate import (
    Dynamics,
    Exchange,
    RowVariation,
    Scenario,
    TrafficModel,
)
from moetraffic.trace import Trace


def known(
    *,
    decay: float = 10.0,
    sd: float = 0.3,
    spread: float = 0.4,
    variance: float = 0.03,
    kept: float = 0.0,
    k: int = 1,
    layers: int = 2,
    experts: int = 8,
    ranks: int = 8,
    tokens: int = 128,
    capacity: int = 0,
    slots: int = 1,
    seed: int = 0,
) -> TrafficModel:
    """Levels of one spread, one component of a time constant, three row factors."""
    rng = np.random.default_rng(seed)
    shape = (2, layers, experts)
    level = np.repeat(spread * rng.standard_normal((1, *shape[1:])), 2, axis=0)
    level -= level.mean(axis=2, keepdims=True)
    factors = rng.standard_normal((layers, experts, 3))
    factors *= np.sqrt(0.7 * variance / (factors**2).sum(axis=2, keepdims=True))
    return TrafficModel(
        scenario=Scenario(
            exchanges=tuple(
                Exchange(layer=layer, slot=slot, row_bytes=64, dtype="float32")
                for slot in range(slots)
                for layer in range(layers)
            ),
            ranks=ranks,
            experts=experts,
            k=k,
            tokens=tokens,
            capacity=capacity,
            ep=int(np.gcd(ranks, experts)),
            router="known",
            dispatch="dropped" if capacity else "dropless",
        ),
        dynamics=Dynamics(
            knots=np.array([0.0, 100.0]),
            level=level,
            kept=np.array([1.0, kept]),
            adjacent=np.array([1.0, kept]),
            damping=np.exp([-1 / decay]),
            frequency=np.zeros(1),
            variance=np.full((2, layers, 1), sd**2),
            saturation=np.zeros((2, layers)),
        ),
        rows=RowVariation(
            factors=factors,
            own=np.full((layers, experts), np.sqrt(0.3 * variance)),
        ),
        fitted=100,
    )


@pytest.fixture(scope="session")
def known_model() -> Callable[..., TrafficModel]:
    return known


@pytest.fixture(scope="session")
def golden() -> Path:
    """A capture of real text over gloo: 2 ranks, 4 experts, top-2 with capacity."""
    return Path(__file__).parents[2] / "data" / "golden.h5"


@pytest.fixture
def golden_trace(golden: Path) -> Trace:
    return Trace.open(golden)
