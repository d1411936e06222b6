"""Rows have the mean, the variance and the sum that they are drawn for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.generate import TrafficModel
from moetraffic.generate.parametric.rows import squared_normal
from moetraffic.generate.parametric.shares import bounded

Make = Callable[..., TrafficModel]


@given(mean=st.floats(1e-4, 0.5), relative=st.floats(0.01, 4.0))
def test_a_squared_normal_has_its_moments(mean: float, relative: float) -> None:
    center, scale = squared_normal(np.array([mean]), np.array([(relative * mean) ** 2]))
    z, width = np.linspace(-10, 10, 40_001, retstep=True)
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * width
    shares = scale * np.maximum(center + z, 0) ** 2
    assert (shares * density).sum() == pytest.approx(mean, rel=1e-3)
    spread = ((shares - mean) ** 2 * density).sum() ** 0.5
    assert spread == pytest.approx(relative * mean, rel=5e-3)


@given(k=st.integers(1, 6), spread=st.floats(0, 8), seed=st.integers(0, 1 << 30))
def test_bounded_rows_are_probabilities_of_k_experts(
    k: int, spread: float, seed: int
) -> None:
    draws = np.random.default_rng(seed).standard_normal((5, 9))
    shares = np.exp(spread * draws)
    found = bounded(shares.copy(), k)
    assert found.sum(axis=1) == pytest.approx([k] * 5)
    assert found.min() >= 0
    assert found.max() <= 1 + 1e-12
    by_size = np.argsort(shares, axis=1)
    assert (np.diff(np.take_along_axis(found, by_size, axis=1), axis=1) >= 0).all()


@pytest.mark.parametrize("k", [1, 3])
def test_rows_have_the_mean_of_the_iteration(known_model: Make, k: int) -> None:
    model = known_model(k=k, sd=0.0, spread=1.0, variance=0.02, experts=12, tokens=4096)
    rows = model.rows.at(next(model.dynamics.states(0, k)), k)
    rng = np.random.default_rng(1)
    drawn = rows.draw(rng, rng.standard_normal((4_000, 3), np.float32), 0, k)
    assert drawn.sum(axis=1) == pytest.approx(np.full(4_000, k), rel=1e-4)
    # dividing rows by their sums moves the means a little
    assert drawn.mean(axis=0) == pytest.approx(rows.shares[0], rel=0.06)
    want = 0.02 * rows.shares[0] * (1 - rows.shares[0])
    assert drawn.var(axis=0).sum() == pytest.approx(want.sum(), rel=0.25)
