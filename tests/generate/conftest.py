"""Small runs whose truth is known, and a capture of real text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from moetraffic.generate import (
    Dynamics,
    Exchange,
    RowSpread,
    Scenario,
    TrafficModel,
)
from moetraffic.trace import Trace


def known(
    *,
    phi: float = 0.9,
    sd: float = 0.3,
    coupling: float = 0.5,
    tau: float = 100.0,
    variance: float = 0.015,
    k: int = 1,
    layers: int = 2,
    experts: int = 8,
    ranks: int = 8,
    tokens: int = 128,
    capacity: int = 0,
    slots: int = 1,
    far: float = 2.0,
    seed: int = 0,
) -> TrafficModel:
    rng = np.random.default_rng(seed)
    shape = (layers, experts)
    level = 0.4 * rng.standard_normal(shape)
    factors = rng.standard_normal((1, *shape, 3))
    factors *= np.sqrt(0.7 * variance / (factors**2).sum(axis=3, keepdims=True))
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
            ep=ranks,
            router="known",
            dispatch="dropped" if capacity else "dropless",
        ),
        dynamics=Dynamics(
            start=level + far * rng.standard_normal(shape),
            level=level,
            tau=np.full(layers, tau),
            coupling=np.r_[0.0, np.full(layers - 1, coupling)],
            knots=np.zeros(1),
            shift=np.zeros((1, *shape)),
            phi=np.full((1, layers, 1), phi),
            sd=np.full((1, layers, 1), sd),
            scale=np.ones((1, *shape)),
        ),
        rows=RowSpread(
            knots=np.zeros(1),
            factors=factors,
            variance=np.full((1, *shape), variance),
            offset=np.zeros((1, *shape)),
        ),
        fitted=100,
    )


@pytest.fixture(scope="session")
def known_model() -> Callable[..., TrafficModel]:
    return known


@pytest.fixture(scope="session")
def golden() -> Path:
    """A capture of real text over gloo: 2 ranks, 4 experts, top-2 with capacity."""
    return Path(__file__).parents[2] / "data" / "golden-v1.h5"


@pytest.fixture
def golden_trace(golden: Path) -> Trace:
    return Trace.open(golden)
