"""States in balance: what one swings up by, those that swing as well go down by."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.generate import Dynamics

EXPERTS = 6
SIZE = np.array([1.0, 1.0, 0.5, 0.01, 0.01, 0.01])


def states(balance: np.ndarray) -> Dynamics:
    shape = (1, 1, EXPERTS)
    return Dynamics(
        start=np.zeros((1, EXPERTS)),
        level=np.zeros((1, EXPERTS)),
        tau=np.ones(1),
        coupling=np.zeros(1),
        knots=np.zeros(1),
        shift=np.zeros(shape),
        phi=np.full((1, 1, 1), 0.5),
        sd=np.ones((1, 1, 1)),
        scale=SIZE.reshape(shape),
        balance=balance,
    )


@pytest.fixture
def units() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((1, 1, EXPERTS, 20_000))


def test_without_a_balance_each_moves_by_itself(units: np.ndarray) -> None:
    d = states(np.zeros((1, 1, 1))).deviation(units, 0)
    assert np.array_equal(d[0], units[0, 0] * SIZE[:, None])


def test_deviations_in_balance_add_up_to_nothing_and_calm_experts_stay_calm(
    units: np.ndarray,
) -> None:
    c = np.array([0.1, 0.3, 0.2, 0.2, 0.1, 0.1])
    d = states(c.reshape(1, 1, -1)).deviation(units, 0)[0]
    assert c @ d == pytest.approx(0, abs=1e-12)
    # of independent normals given that their weighted sum is 0
    v = np.diag(SIZE**2)
    given = v - v @ np.outer(c, c) @ v / (c @ v @ c)
    assert np.cov(d) == pytest.approx(given, abs=0.02)
    assert d[3:].std(axis=1) == pytest.approx(SIZE[3:], rel=0.02)


def test_a_path_is_in_balance_in_each_iteration(units: np.ndarray) -> None:
    c = np.full((1, 1, EXPERTS), 1 / EXPERTS)
    path = states(c).paths(seed=3)
    moved = np.array([next(path)[0] for _ in range(50)])
    assert moved.mean(axis=1) == pytest.approx(0, abs=1e-12)
    assert moved[:, 0].std() > 0.3
