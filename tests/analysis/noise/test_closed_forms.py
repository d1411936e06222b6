"""The null model agrees with closed forms, and these with counts that are drawn."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.analysis.noise.null_model import NullModel
from moetraffic.analysis.skew import measures
from tests.analysis.noise.closed_forms import mean_entropy, mean_gini, std_cv_squared

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize(
    ("tokens", "experts", "k", "sources"),
    [(1, 8, 2, 1), (9, 8, 2, 3), (60, 16, 4, 1), (7, 2, 1, 2)],
)
def test_means_of_entropy_and_gini(tokens, experts, k, sources):
    model = NullModel(experts=experts, k=k)
    drawn = model.draw(np.full(sources, tokens), draws=6000, seed=5)
    for exact, measure in (
        (mean_entropy(tokens, experts, k, sources), measures.entropy),
        (mean_gini(tokens, experts, k, sources), measures.gini),
    ):
        values = measure(drawn, axis=(-2, -1))
        error = values.std() / np.sqrt(len(values))
        assert abs(exact - values.mean()) < 4 * error + 1e-12


@pytest.mark.parametrize(
    ("tokens", "experts", "k", "sources"), [(12, 6, 2, 3), (40, 8, 1, 1), (5, 16, 4, 2)]
)
def test_standard_deviation_of_cv_squared(tokens, experts, k, sources):
    model = NullModel(experts=experts, k=k)
    drawn = model.draw(np.full(sources, tokens), draws=30000, seed=6)
    values = measures.cv(drawn, axis=(-2, -1)) ** 2
    kurtosis = (((values - values.mean()) / values.std()) ** 4).mean()
    error = np.sqrt((kurtosis - 1) / 4 / len(values))
    exact = std_cv_squared(tokens, experts, k, sources)
    assert values.std() == pytest.approx(exact, rel=4 * error)


def test_with_all_experts_of_each_token_loads_are_even():
    assert mean_gini(50, 6, 6, 1) == pytest.approx(0, abs=1e-12)
    assert mean_entropy(50, 6, 6, 3) == pytest.approx(np.log2(18))


def test_the_entropy_deficit_of_many_tokens_is_half_the_cv_squared():
    deficit = np.log2(8) - mean_entropy(10**7, 8, 2, 1)
    assert deficit == pytest.approx(6 / (2 * 10**7) / (2 * np.log(2)), rel=1e-3)


@pytest.mark.parametrize(
    ("held", "sources", "diagonal"), [(1, 1, True), (2, 4, True), (2, 4, False)]
)
def test_moments_of_sparsity(held, sources, diagonal):
    model = NullModel(experts=8, k=2, ranks=8 // held)
    drawn = model.draw(np.full(sources, 5), draws=4000, seed=6)
    found = measures.sparsity(drawn, axis=(-2, -1), diagonal=diagonal)
    model = NullModel(experts=8, k=2, ranks=8 // held, sources=sources)
    mean, std = model.sparsity(5, diagonal=diagonal)
    assert found.mean() == pytest.approx(mean, abs=4 * std / 63)
    assert found.std() == pytest.approx(std, rel=0.05)
    single = NullModel(experts=8, k=2, ranks=1)
    assert np.isnan(single.sparsity(5, diagonal=False)).all()
