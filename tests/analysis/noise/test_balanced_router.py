"""The balanced gate: its counts have the law of drawing experts token by token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.analysis.noise.balanced_router import (
    balanced_counts,
    balanced_tokens,
    mean_entropy,
    mean_gini,
)
from moetraffic.analysis.skew import measures
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")


def token_by_token(tokens: int, experts: int, k: int, draws: int) -> np.ndarray:
    """Counts ``[draws, E]`` of k distinct experts a token, drawn token by token."""
    rng = np.random.default_rng(7)
    order = rng.random((draws, tokens, experts)).argpartition(k - 1, axis=-1)[..., :k]
    return np.stack([np.bincount(d.ravel(), minlength=experts) for d in order])


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=3),
    st.integers(1, 6),
    st.data(),
)
def test_each_source_sends_k_copies_a_token_and_no_expert_two(tokens, experts, data):
    k = data.draw(st.integers(1, experts))
    counts = balanced_counts(tokens, experts=experts, k=k, draws=4, seed=1)
    assert counts.shape == (4, len(tokens), experts)
    assert (counts.sum(axis=-1) == k * np.array(tokens)).all()
    assert (counts <= np.array(tokens)[:, None]).all()
    assert (counts >= 0).all()


@pytest.mark.parametrize(("experts", "k"), [(8, 2), (6, 5), (5, 1)])
def test_means_and_covariances_are_those_of_tokens(experts, k):
    drawn = balanced_counts(40, experts=experts, k=k, draws=20000, seed=3)
    p = k / experts
    joint = k * (k - 1) / (experts * (experts - 1))
    covariance = np.full((experts, experts), 40 * (joint - p * p))
    np.fill_diagonal(covariance, 40 * p * (1 - p))
    assert drawn.mean(axis=0) == pytest.approx(np.full(experts, 40 * p), rel=0.01)
    assert np.cov(drawn.T) == pytest.approx(covariance, abs=0.05 * covariance[0, 0])


def test_the_largest_load_has_the_law_of_drawing_token_by_token():
    fast = balanced_counts(30, experts=8, k=3, draws=6000, seed=4).max(axis=-1)
    slow = token_by_token(30, 8, 3, 6000).max(axis=-1)
    values = np.arange(31)
    distance = np.abs(
        (fast[:, None] <= values).mean(axis=0) - (slow[:, None] <= values).mean(axis=0)
    ).max()
    assert distance < 1.63 * np.sqrt(2 / 6000)  # Kolmogorov-Smirnov at 1 %


@pytest.mark.parametrize(
    ("tokens", "experts", "k"), [(1, 8, 2), (9, 8, 2), (60, 16, 4), (7, 2, 1)]
)
def test_closed_forms_of_entropy_and_gini_meet_draws(tokens, experts, k):
    drawn = token_by_token(tokens, experts, k, 6000)
    for exact, values in (
        (mean_entropy(tokens, experts, k, 1), measures.entropy(drawn)),
        (mean_gini(tokens, experts, k, 1), measures.gini(drawn)),
    ):
        error = values.std() / np.sqrt(len(values))
        assert abs(exact - values.mean()) < 4 * error + 1e-12


def test_an_expert_each_is_even():
    assert mean_gini(50, 6, 6, 1) == pytest.approx(0, abs=1e-12)
    assert mean_entropy(50, 6, 6, 3) == pytest.approx(np.log2(18))


def test_the_entropy_deficit_of_many_tokens_is_half_the_cv_squared():
    deficit = np.log2(8) - mean_entropy(10**7, 8, 2, 1)
    assert deficit == pytest.approx(6 / (2 * 10**7) / (2 * np.log(2)), rel=1e-3)


@pytest.mark.parametrize(
    ("tokens", "experts", "k", "ranks", "sources"),
    [
        (5, 4, 5, None, 1),
        (5, 4, 0, None, 1),
        (5, 4, 1, 3, 1),
        (5, 4, 1, None, 0),
        (-1, 4, 1, None, 1),
        (2.5, 4, 1, None, 1),
        ([3, np.nan], 4, 1, None, 1),
    ],
)
def test_what_no_gate_can_be_is_refused(tokens, experts, k, ranks, sources):
    with pytest.raises(AnalysisError):
        balanced_tokens(tokens, experts, k, ranks, sources)
