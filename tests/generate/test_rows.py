"""Rows around an iteration's mean: they differ as told, and their mean stays."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from moetraffic.generate.inclusion import counts
from moetraffic.generate.rows import middle, row_weights

SHARES = np.array([1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.3])


def rows(shares: np.ndarray, deviation: float) -> np.ndarray:
    around = middle(np.log(shares), np.full(len(shares), deviation), k=1)
    # every quantile in its turn: hardly any rank needs the coldest experts
    normal = norm.ppf((np.arange(200_000) + 0.5) / 200_000)
    return row_weights(
        np.random.default_rng(0),
        normal[:, None],
        np.full((len(shares), 1), deviation),
        np.zeros(len(shares)),
        around,
        k=1,
    )


@pytest.mark.parametrize("deviation", [0.06, 0.2, 0.4, 0.8])
def test_ranks_hold_on_average_what_the_iteration_does(deviation: float) -> None:
    shares = np.r_[SHARES, 1 - SHARES.sum()]
    assert rows(shares, deviation).mean(axis=0) == pytest.approx(shares, rel=0.03)


def test_shares_of_any_size_vary_alike() -> None:
    shares = np.array([0.05, 0.15, 0.3, 0.5])
    apart = rows(shares, 0.05).std(axis=0)
    assert apart == pytest.approx(0.05 * np.sqrt(shares * (1 - shares)), rel=0.02)


def test_factors_of_no_layer_change_nothing() -> None:
    shares = np.full(4, 0.25)
    around = middle(np.log(shares), np.full(4, 0.1), k=1)

    def drawn(factors: np.ndarray) -> np.ndarray:
        rng = np.random.default_rng(1)
        shared = np.random.default_rng(2).standard_normal((5, factors.shape[1]))
        return row_weights(rng, shared, factors, np.full(4, 0.1), around, k=1)

    assert np.array_equal(drawn(np.zeros((4, 3))), drawn(np.zeros((4, 0))))


def test_where_two_experts_hold_every_token_no_other_gets_any() -> None:
    """Layers that collapse send nothing at all to the rest for tens of iterations."""
    rng = np.random.default_rng(0)
    state = np.array([0.0, 0.2, -40.0, -40.0, -40.0, -40.0])
    around = middle(state, np.full(6, 0.3), k=2)
    shared = rng.standard_normal((4000, 2))
    weights = row_weights(
        rng, shared, np.full((6, 2), 0.2), np.full(6, 0.1), around, k=2
    )
    weights /= weights.sum(axis=1, keepdims=True)
    drawn = counts(rng, weights, 2, 256)
    assert (drawn[:, :2] == 256).all(axis=1).mean() > 0.99
