from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.generate.inclusion import (
    capped,
    counts,
    inclusion,
    spread,
    tails,
    token_draws,
    weights_of,
)


def test_pairs_of_three_experts_are_those_that_can_be_counted() -> None:
    # pairs 01, 02, 12 have the products 1/8, 1/8, 1/16
    assert inclusion(np.array([0.5, 0.25, 0.25]), 2) == pytest.approx([0.8, 0.6, 0.6])
    assert tails(np.array([0.5, 0.25, 0.25]), 2)[0].tolist() == [1.0, 1.0, 0.3125]


@given(
    st.integers(1, 4),
    st.lists(st.floats(0.01, 20.0), min_size=5, max_size=9),
)
def test_weights_give_back_the_inclusion_that_they_were_made_of(
    k: int, sizes: list[float]
) -> None:
    want = capped(np.array(sizes), k)
    assert want.sum() == pytest.approx(k)
    assert want.max() < 1
    assert inclusion(weights_of(want, k), k) == pytest.approx(want, abs=1e-6)


@given(st.integers(0, 1000), st.integers(1, 6), st.integers(0, 60))
def test_rows_hold_k_times_their_tokens_and_none_twice(
    seed: int, k: int, tokens: int
) -> None:
    rng = np.random.default_rng(seed)
    drawn = counts(rng, rng.dirichlet(np.full(6, 0.3), size=4), k, tokens)
    assert (drawn.sum(axis=1) == k * tokens).all()
    assert drawn.min() >= 0
    assert drawn.max(initial=0) <= max(tokens, 0 if k > 1 else k * tokens)


def test_counts_are_distributed_as_single_tokens() -> None:
    rng = np.random.default_rng(1)
    weights = rng.dirichlet(np.full(6, 0.7))
    k, tokens, rows = 3, 5, 4000
    single = token_draws(rng, weights, k, tokens * rows).reshape(rows, -1)
    slow = np.array([np.bincount(r, minlength=6) for r in single])
    fast = counts(rng, np.tile(weights, (rows, 1)), k, tokens)
    # the whole law of each cell, and how cells hang together
    for e in range(6):
        a = np.bincount(slow[:, e], minlength=tokens + 1) / rows
        b = np.bincount(fast[:, e], minlength=tokens + 1) / rows
        assert np.abs(a - b).max() < 4.5 * np.sqrt(0.5 / rows)
    assert np.cov(fast.T) == pytest.approx(np.cov(slow.T), abs=0.08)
    assert fast.mean(axis=0) / tokens == pytest.approx(inclusion(weights, k), abs=0.02)


def test_gumbel_top_k_would_not_reproduce_the_shares() -> None:
    # Zipf-1 over 8, two experts a token: the favorite has .316 of the copies, not .368
    zipf = 1 / np.arange(1, 9)
    zipf /= zipf.sum()
    drawn = np.argsort(
        np.log(zipf) + np.random.default_rng(0).gumbel(size=(20000, 8)), axis=1
    )[:, -2:]
    assert np.bincount(drawn.ravel())[0] / 40000 == pytest.approx(0.316, abs=0.005)
    assert inclusion(weights_of(2 * zipf, 2), 2)[0] / 2 == pytest.approx(zipf[0])


def test_spread_is_the_covariance_of_what_a_token_holds() -> None:
    p = np.array([0.5, 0.3, 0.2])
    assert spread(p) == pytest.approx(p, rel=1e-3)
    weights = np.random.default_rng(0).dirichlet(np.full(12, 3.0))
    holds = inclusion(weights, 4)
    d = spread(holds)
    assert d * (1 - d / d.sum()) == pytest.approx(holds * (1 - holds), rel=1e-6)
