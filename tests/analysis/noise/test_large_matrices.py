"""Floors of large matrices: closed forms, and exact draws of matrices."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from moetraffic.analysis.noise.floors import matrix_floors, skew_floors
from moetraffic.analysis.noise.normal_counts import count_distribution
from moetraffic.analysis.noise.null_model import NullModel
from moetraffic.analysis.noise.oracle import count_variance
from moetraffic.analysis.observation import MEASURED, SKEW
from moetraffic.analysis.skew.kernels import matrix_statistics
from tests.analysis.noise import closed_forms

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize(("k", "tokens"), [(1, 100), (4, 350)])
def test_moments_that_have_a_closed_form(k, tokens):
    """Of experts, at exact draws and at draws from normal variates."""
    law = (tokens, 64, k, 64)
    model = NullModel(experts=64, k=k, sources=64)
    names = ("cv_squared", "entropy", "gini", "sparsity", "max_over_mean")
    names += ("max_violation",)
    found = skew_floors(names, np.array([tokens]), model, draws=1 << 15)
    exact = {
        "cv_squared": (64 - k) / (k * tokens),
        "entropy": closed_forms.mean_entropy(*law),
        "gini": closed_forms.mean_gini(*law),
        "sparsity": (1 - k / 64) ** tokens,
    }
    for name, mean in exact.items():
        # a hundredth of what differs from draw to draw
        floor = found[name]
        assert floor.mean[0] == pytest.approx(mean, abs=0.012 * floor.std[0]), name
    assert found["cv_squared"].std[0] == pytest.approx(
        closed_forms.std_cv_squared(*law), rel=0.006
    )
    # a constant less: the same draws, and the same deviation
    largest, violation = found["max_over_mean"], found["max_violation"]
    assert violation.mean[0] == pytest.approx(largest.mean[0] - 1, rel=1e-9)
    assert violation.std[0] == pytest.approx(largest.std[0], rel=1e-9)


@pytest.mark.parametrize(("k", "held"), [(1, 4), (3, 2), (4, 4), (5, 3)])
def test_the_deviation_of_cv_squared_of_ranks_is_exact(k, held):
    """Of two tokens, whose sets of experts are all equally likely."""
    experts = 12
    sets = np.array(list(combinations(range(experts), k))) // held
    copies = (sets[:, :, None] == np.arange(experts // held)).sum(axis=1)
    counts = (copies[:, None] + copies).reshape(-1, experts // held)
    of = counts.var(axis=1) / counts.mean(axis=1) ** 2
    exact = closed_forms.std_cv_squared(2, experts, k, 1, held=held)
    assert exact == pytest.approx(of.std(), rel=1e-9)


@pytest.mark.parametrize(
    ("router", "tokens"),
    [
        ({"experts": 64, "k": 2, "sources": 32, "ranks": 32}, 120),
        ({"experts": 64, "k": 2, "sources": 32}, 30),
    ],
)
def test_exact_draws_have_z_scores_of_mean_0_and_deviation_1(router, tokens):
    model, diagonal = NullModel(**router), "ranks" not in router
    received = () if diagonal else SKEW
    found = matrix_floors(MEASURED, np.array([tokens]), model, received=received)
    counts = model.draw(np.full(32, tokens), draws=1000, seed=5)
    of = matrix_statistics(counts, diagonal=diagonal)
    sums = matrix_statistics(of.received[:, None, :])
    assert set(found) == {*MEASURED, *(f"received.{name}" for name in received)}
    for name, floor in found.items():
        plain = name.removeprefix("received.")
        values = np.asarray(getattr(of if plain == name else sums, plain), float)
        if plain == "sparsity" and not values.any():
            continue
        z = (values - floor.mean) / floor.std
        assert abs(z.mean()) < 4 / np.sqrt(1000) + 0.015, name
        kurtosis = float((z**4).mean()) / float((z**2).mean()) ** 2
        assert z.std() == pytest.approx(
            1, abs=0.015 + 2 * np.sqrt((kurtosis - 1) / 1000)
        ), name


def test_floors_of_large_matrices_have_every_measure():
    model = NullModel(experts=128, k=2, sources=128, ranks=128)
    found = matrix_floors(("cv", "sparsity"), np.array([40]), model, received=("gini",))
    # of an expert a rank: 40 tokens that each miss one, or two, of 128 with 2 copies
    one, two = (126 / 128) ** 40, (126 / 128 * 125 / 127) ** 40
    variance = (one * (1 - one) + 126 * (two - one**2)) / (127 * 128)
    assert found["sparsity"].mean[0] == pytest.approx(one)
    assert found["sparsity"].std[0] == pytest.approx(np.sqrt(variance))
    assert found["received.gini"].mean[0] == pytest.approx(
        # of normal variates, whose mean distance is 2 sigma / sqrt(pi)
        np.sqrt(count_variance(40 * 127 / 64, 40 * 127) / np.pi) / (2 * 40 * 127 / 128),
        rel=0.01,
    )


@pytest.mark.parametrize(
    ("tokens", "of"),
    [
        (900, {"experts": 64, "k": 3, "held": 2}),
        (3 << 20, {"experts": 64, "k": 3, "held": 2}),
        (7, {"experts": 8, "k": 8}),
    ],
)
def test_the_distribution_of_a_count(tokens, of):
    count, chance = count_distribution(tokens, **of)
    assert chance.sum() == pytest.approx(1, abs=1e-8)
    mean = tokens * of["k"] * of.get("held", 1) / of["experts"]
    assert chance @ count == pytest.approx(mean, rel=1e-7)
    variance = count_variance(mean, tokens, **of)
    assert chance @ (count - mean) ** 2 == pytest.approx(variance, rel=1e-3)
    assert (np.diff(count) > 0).all()
