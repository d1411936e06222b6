"""Samples of a fitted model have the moments of what it was fitted to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from moetraffic.generate import TrafficModel, generate_trace
from moetraffic.generate.parametric.calibration import moments
from moetraffic.trace import Trace

Make = Callable[..., TrafficModel]


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 3])
def test_samples_have_the_moments_of_the_capture(
    known_model: Make, tmp_path: Path, k: int
) -> None:
    model = known_model(k=k, kept=0.7, sd=0.5, experts=12, layers=3, variance=0.1)
    trace = generate_trace(model, tmp_path / "run.h5", iterations=200, seed=5)
    fitted = TrafficModel.fit(trace)

    def of(model: TrafficModel, seed: int) -> dict[str, float]:
        demand = model.sample(iterations=200, seed=seed)
        counts = np.concatenate([block for _, block in demand.blocks()])
        return {name: float(v.mean()) for name, v in moments(counts).items()}

    want, got = of(model, 5), of(fitted, 1)
    for name, tolerance in {
        "skew": 0.15,
        "peak": 0.08,
        "change": 0.06,
        "change 10": 0.06,
        "rows": 0.06,
    }.items():
        assert got[name] == pytest.approx(want[name], rel=tolerance), name
    assert Trace.open(tmp_path / "run.h5").meta.world == 8
