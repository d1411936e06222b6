"""The null model: the law of its draws, and the floors' means and deviations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare, hypergeom

from moetraffic.analysis.noise import null_model
from moetraffic.analysis.noise.floors import (
    matrix_floors,
    noise_floor,
    skew_floors,
)
from moetraffic.analysis.noise.normal_counts import normal_counts
from moetraffic.analysis.noise.null_model import NullModel
from moetraffic.analysis.noise.oracle import count_variance
from moetraffic.analysis.skew import measures
from moetraffic.analysis.skew.kernels import matrix_statistics
from moetraffic.errors import AnalysisError
from tests.analysis.noise.closed_forms import std_cv_squared

pytestmark = pytest.mark.filterwarnings("error")


def token_by_token(tokens, experts, k, draws, sources=1):
    """Counts ``[draws, W, E]`` of k distinct experts a token, drawn token by token."""
    rng = np.random.default_rng(7)
    out = np.zeros((draws, sources, experts), np.int64)
    for draw in range(draws):
        order = rng.random((sources, tokens, experts)).argpartition(k - 1, axis=-1)
        chosen = order[..., :k].reshape(sources, -1)
        for source in range(sources):
            out[draw, source] = np.bincount(chosen[source], minlength=experts)
    return out


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=3),
    st.integers(1, 6),
    st.data(),
)
def test_each_source_sends_k_copies_a_token_and_no_expert_two(tokens, experts, data):
    k = data.draw(st.integers(1, experts))
    counts = NullModel(experts=experts, k=k).draw(tokens, draws=4, seed=1)
    assert counts.shape == (4, len(tokens), experts)
    assert (counts.sum(axis=-1) == k * np.array(tokens)).all()
    assert (counts <= np.array(tokens)[:, None]).all()
    assert (counts >= 0).all()


@pytest.mark.parametrize(("experts", "k"), [(8, 2), (6, 5), (5, 1)])
def test_means_and_covariances_are_those_of_tokens(experts, k):
    drawn = NullModel(experts=experts, k=k).draw(40, draws=20000, seed=3)
    p = k / experts
    joint = k * (k - 1) / (experts * (experts - 1))
    covariance = np.full((experts, experts), 40 * (joint - p * p))
    np.fill_diagonal(covariance, 40 * p * (1 - p))
    assert drawn.mean(axis=0) == pytest.approx(np.full(experts, 40 * p), rel=0.01)
    assert np.cov(drawn.T) == pytest.approx(covariance, abs=0.05 * covariance[0, 0])


def test_the_largest_load_has_the_law_of_drawing_token_by_token():
    fast = NullModel(experts=8, k=3).draw(30, draws=6000, seed=4).max(axis=-1)
    slow = token_by_token(30, 8, 3, 6000).max(axis=(1, 2))
    values = np.arange(31)
    distance = np.abs(
        (fast[:, None] <= values).mean(axis=0) - (slow[:, None] <= values).mean(axis=0)
    ).max()
    assert distance < 1.63 * np.sqrt(2 / 6000)  # Kolmogorov-Smirnov at 1 %


@pytest.mark.parametrize(
    ("experts", "k", "ranks"), [(8, 2, None), (8, 3, None), (16, 3, 4), (12, 5, 3)]
)
def test_moments_of_cv_squared_are_the_closed_forms(experts, k, ranks):
    cells, tokens, draws = ranks or experts, 40, 20000
    floor = noise_floor(
        "cv_squared", tokens, experts=experts, k=k, ranks=ranks, draws=draws
    )
    exact = (cells - 1) * (experts - k) / ((experts - 1) * k * tokens)
    assert floor.mean == pytest.approx(exact, abs=4 * floor.std / np.sqrt(draws))
    exact = std_cv_squared(tokens, experts, k, 1, held=experts // cells)
    assert floor.std == pytest.approx(exact, rel=0.03)


@pytest.mark.parametrize("tokens", [6, 80])
@pytest.mark.parametrize("ranks", [None, 4])
def test_information_of_a_balanced_router_is_at_its_floor(tokens, ranks):
    counts = token_by_token(tokens, 8, 2, 700, sources=8)
    if ranks:
        counts = counts.reshape(700, 8, ranks, -1).sum(axis=-1)
    found = matrix_statistics(counts)
    names = ("mutual_information", "conditional_entropy", "entropy")
    model = NullModel(experts=8, k=2, sources=8, ranks=ranks)

    def statistics(drawn):
        of = matrix_statistics(drawn)
        return {name: getattr(of, name) for name in names}

    moments = model.moments(statistics, tokens, draws=4000)
    for name in names:
        mean, std = moments[name]
        z = (getattr(found, name) - mean) / std
        assert abs(z.mean()) < 4.5 / np.sqrt(700), name
        assert z.std() == pytest.approx(1, abs=3.5 / np.sqrt(700) + 0.04), name
    if tokens * 2 / (ranks or 8) >= 5:  # chi-square law of Wilks
        wide, degrees = 6 / 7, 7 * ((ranks or 8) - 1)
        unit = wide / (2 * np.log(2) * tokens * 2 * 8)
        assert moments["mutual_information"] == pytest.approx(
            (degrees * unit, np.sqrt(2 * degrees) * unit), rel=0.06
        )


@pytest.mark.parametrize("measure", sorted(measures.MEASURES))
@pytest.mark.parametrize(
    "router",
    [
        {"experts": 8, "k": 2},
        {"experts": 8, "k": 2, "sources": 4},
        {"experts": 8, "k": 2, "sources": 4, "ranks": 4},
        {"experts": 8, "k": 2, "sources": 4, "ranks": 4, "diagonal": False},
    ],
)
def test_floors_are_the_mean_and_deviation_of_a_balanced_router(measure, router):
    # of many tokens no cell stays empty
    tokens = 5 if measure == "sparsity" else 256
    floor = noise_floor(measure, tokens, draws=4000, **router)
    of = {name: value for name, value in router.items() if name != "diagonal"}
    counts = NullModel(**of).draw(
        np.full(router.get("sources", 1), tokens), draws=4000, seed=99
    )
    measured = measures.MEASURES[measure](
        counts, axis=(-2, -1), diagonal=router.get("diagonal", True)
    )
    z = (measured - floor.mean) / floor.std
    assert abs(z.mean()) < 0.1
    assert z.std() == pytest.approx(1, abs=0.08)


def test_a_skewed_router_exceeds_the_floor():
    skewed = np.array([300, 200, 100, 100, 100, 100, 62, 62])
    of = {"experts": 8, "k": 2}
    gini = noise_floor("gini", 512, **of)
    assert measures.gini(skewed) > gini.mean + 10 * gini.std
    entropy = noise_floor("normalized_entropy", 512, **of)
    assert measures.normalized_entropy(skewed) < entropy.mean - 10 * entropy.std


def test_each_token_count_has_its_own_floor_and_zero_tokens_have_none():
    floor = noise_floor("max_over_mean", [[0, 10], [1000, 10]], experts=4, k=1)
    assert np.isnan(floor.mean[0, 0])
    assert np.isnan(floor.std[0, 0])
    assert floor.mean[0, 1] == floor.mean[1, 1] > floor.mean[1, 0] > 1
    assert np.isnan(noise_floor("sparsity", 0, experts=4, k=1).mean)


def test_the_same_seed_gives_the_same_moments():
    model = NullModel(experts=8, k=2)

    def of(seed):
        return model.moments(lambda c: {"gini": measures.gini(c)[:, 0]}, 77, seed=seed)

    assert of(1) == of(1) != of(2)


def test_a_token_with_every_expert_is_balanced():
    floor = noise_floor("gini", 10, experts=4, k=4)
    assert floor.mean == pytest.approx(0, abs=1e-12)


def test_floors_of_many_token_counts_are_interpolated():
    tokens = np.arange(100, 400, 10)
    model = NullModel(experts=8, k=2)
    coarse = skew_floors(("gini",), tokens, model, most=8)["gini"]
    fine = noise_floor("gini", tokens, experts=8, k=2)
    assert coarse.mean == pytest.approx(fine.mean, rel=0.01)
    none = skew_floors(("gini",), np.append(tokens, 0), model, most=8)["gini"]
    assert np.isnan(none.mean[-1])


def test_floors_of_matrices_and_of_their_column_sums(monkeypatch):
    of = {"experts": 8, "k": 2, "sources": 4}
    tokens = np.array([64, 0, 128])
    model = NullModel(ranks=4, **of)
    found = matrix_floors(("gini",), tokens, model, received=("cv",))
    assert list(found) == ["gini", "received.cv"]
    assert np.isnan(found["gini"].mean).tolist() == [False, True, False]
    alone = noise_floor("gini", 64, ranks=4, diagonal=False, draws=4000, **of)
    assert found["gini"].mean[0] == pytest.approx(float(alone.mean), rel=0.03)
    # parts have seeds of their own
    monkeypatch.setattr(null_model, "AT_ONCE", 320)
    monkeypatch.setattr(null_model, "MOST", 399)
    parts = matrix_floors(("gini",), np.array([65]), NullModel(**of))["gini"]
    assert parts.std[0] > 0


@pytest.mark.parametrize(
    ("experts", "k", "held", "tokens"), [(8, 2, 1, 43), (32, 1, 1, 265), (16, 3, 4, 17)]
)
def test_counts_from_normal_variates_have_the_law_of_exact_ones(
    experts, k, held, tokens
):
    """At the smallest variance at which they are used, and the sum of a source."""
    cells = experts // held
    mean = tokens * k * held / experts
    variance = count_variance(mean, tokens, k=k, experts=experts, held=held)
    assert variance == pytest.approx(8, rel=0.15)
    near = normal_counts((8000, 1, cells), tokens=tokens, k=k, held=held, seed=3)[:, 0]
    # copies of a token in a cell are hypergeometric; of N tokens they add up
    single = hypergeom(experts, held, k).pmf(np.arange(min(k, held) + 1))
    exact = np.ones(1)
    for _ in range(tokens):
        exact = np.convolve(exact, single)
    values = np.arange(len(exact))
    for cell in (0, cells - 1):
        below = (near[:, cell, None] <= values).mean(axis=0)
        assert np.abs(below - exact.cumsum()).max() < 1.63 / np.sqrt(8000)
    assert near.var() == pytest.approx(variance, rel=0.03)
    assert np.cov(near[:, 0], near[:, 1])[0, 1] == pytest.approx(
        -variance / (cells - 1), abs=0.05 * variance
    )
    sums = near.sum(axis=1) - k * tokens
    assert abs(sums.mean()) < 0.1
    assert sums.std() < 2 * np.sqrt(cells / 12)


def test_the_experts_of_tokens_drawn_one_by_one_are_distinct_and_equally_likely():
    router = NullModel(experts=5, k=3)
    one = router.matrices(1, draws=20000, seed=1)[:, 0]
    assert (one.sum(axis=1) == 3).all()
    assert one.max() == 1
    sets, often = np.unique(one, axis=0, return_counts=True)
    assert len(sets) == 10
    assert chisquare(often).pvalue > 1e-3
    merged = NullModel(experts=6, k=2, ranks=3, sources=2).matrices(7, draws=50, seed=1)
    assert (merged.sum(axis=-1) == 14).all()


@pytest.mark.parametrize("tokens", [20, 2000])
def test_floors_between_simulated_numbers_of_tokens(tokens):
    """Interpolation adds no error that matters, whatever the measure."""
    numbers = np.arange(tokens, tokens + tokens // 2, max(tokens // 40, 1))
    model = NullModel(experts=8, k=2, sources=4)
    names = ("cv", "entropy", "max_over_mean", "gini")
    names += ("sparsity",) if tokens == 20 else ()  # of many tokens no cell is empty
    coarse = skew_floors(names, numbers, model, most=8, draws=4000)
    fine = skew_floors(names, numbers[::5], model, draws=4000)
    for name in names:
        error = (coarse[name].mean[::5] - fine[name].mean) / fine[name].std
        assert np.abs(error).max() < 0.05, name
        assert coarse[name].std[::5] == pytest.approx(fine[name].std, rel=0.05), name


@pytest.mark.parametrize(
    "model",
    [
        {"experts": 4, "k": 5},
        {"experts": 4, "k": 0},
        {"experts": 4, "k": 1, "ranks": 3},
        {"experts": 4, "k": 1, "sources": 0},
    ],
)
def test_impossible_routers_are_rejected(model):
    with pytest.raises(AnalysisError):
        NullModel(**model)


@pytest.mark.parametrize("tokens", [-1, 2.5, [3, np.nan]])
def test_impossible_token_counts_are_rejected(tokens):
    with pytest.raises(AnalysisError, match="numbers of tokens"):
        NullModel(experts=4, k=1).draw(tokens, draws=2)


def test_unknown_measures_and_rectangles_without_diagonal_are_rejected():
    with pytest.raises(AnalysisError, match="NullModel"):
        noise_floor("loss", 10, experts=4, k=1)
    with pytest.raises(AnalysisError, match="square"):
        noise_floor("gini", 10, experts=4, k=1, sources=3, diagonal=False)
