"""Shares of log-weights, and whole counts of shares."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.generate.parametric.shares import log_weights, probabilities, rounded


@given(
    k=st.integers(1, 6),
    experts=st.integers(7, 40),
    spread=st.floats(0, 12),
    seed=st.integers(0, 1 << 30),
)
def test_shares_add_up_to_k_and_follow_the_log_weights(
    k: int, experts: int, spread: float, seed: int
) -> None:
    x = spread * np.random.default_rng(seed).standard_normal((3, experts))
    found = probabilities(x.astype(np.float32), k)
    assert found.sum(axis=1) == pytest.approx([k] * 3, rel=1e-4)
    assert found.min() >= 0
    assert found.max() <= 1
    order = np.argsort(x.astype(np.float32), axis=1)
    assert (np.diff(np.take_along_axis(found, order, axis=1), axis=1) >= 0).all()


@pytest.mark.parametrize("k", [1, 3])
def test_log_weights_give_back_their_shares(k: int) -> None:
    shares = probabilities(np.random.default_rng(1).standard_normal((5, 9)), k)
    again = probabilities(log_weights(shares, k, 1e-9), k)
    assert again == pytest.approx(shares, abs=3e-4)


@given(
    k=st.integers(1, 5),
    tokens=st.integers(1, 300),
    spread=st.floats(0, 15),
    seed=st.integers(0, 1 << 30),
)
def test_counts_are_those_of_tokens_with_k_distinct_experts(
    k: int, tokens: int, spread: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = (spread * rng.standard_normal((4, 6))).astype(np.float32)
    shares = probabilities(x, k)
    counts = rounded(shares, k * tokens, rng.random(4))
    assert (counts.sum(axis=1) == k * tokens).all()
    assert counts.min() >= 0
    assert counts.max() <= tokens
    # each differs from its share by less than one token copy
    assert np.abs(counts - tokens * shares).max() < 1 + 1e-3 * tokens


def test_rounding_keeps_the_mean() -> None:
    shares = np.array([0.31, 0.02, 0.47, 0.2])
    offset = (np.arange(1000) + 0.5) / 1000
    counts = rounded(np.broadcast_to(shares, (1000, 4)), 10, offset)
    assert counts.mean(axis=0) == pytest.approx(10 * shares, abs=2e-3)
