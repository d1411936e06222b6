"""Noise floors: exact values, agreement with simulation, and z-scores that mean it."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.analysis.noise.balanced_router import balanced_counts
from moetraffic.analysis.noise.noise_floors import (
    NoiseFloor,
    cv_squared_floor,
    noise_floor,
    simulated_floor,
)
from moetraffic.analysis.skew import measures
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")


def test_cv_squared_of_experts_is_exact():
    floor = cv_squared_floor([4096, 1024], experts=8, k=1)
    assert floor.mean[0] == pytest.approx(0.00170898, abs=1e-8)
    assert cv_squared_floor(1024, experts=8, k=2).mean == pytest.approx(
        0.0029297, abs=1e-7
    )


@pytest.mark.parametrize(("experts", "k", "ranks"), [(8, 2, 4), (16, 3, 2), (64, 8, 8)])
def test_cv_squared_of_ranks_is_exact(experts, k, ranks):
    floor = cv_squared_floor(500, experts=experts, k=k, ranks=ranks)
    exact = (ranks - 1) * (experts - k) / ((experts - 1) * k * 500)
    assert floor.mean == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(
    "gate",
    [
        {"experts": 8, "k": 1},
        {"experts": 8, "k": 3},
        {"experts": 8, "k": 2, "ranks": 4},
        {"experts": 12, "k": 5, "ranks": 3},
    ],
)
@pytest.mark.parametrize("tokens", [2, 40])
def test_both_moments_of_cv_squared_meet_draws(gate, tokens):
    exact = cv_squared_floor(tokens, **gate)
    drawn = simulated_floor(measures.cv_squared, tokens, draws=40000, seed=5, **gate)
    assert exact.mean == pytest.approx(float(drawn.mean), rel=0.03)
    assert exact.std == pytest.approx(float(drawn.std), rel=0.05)


def test_a_matrix_of_many_sources_varies_less():
    one = cv_squared_floor(100, experts=8, k=2)
    sixteen = cv_squared_floor(100, experts=8, k=2, sources=16)
    assert sixteen.mean == one.mean
    assert sixteen.std == pytest.approx(one.std / 4)


@pytest.mark.parametrize("measure", sorted(measures.MEASURES))
@pytest.mark.parametrize(
    "gate",
    [
        {"experts": 8, "k": 2},
        {"experts": 8, "k": 2, "sources": 4},
        {"experts": 8, "k": 2, "sources": 4, "ranks": 4},
        {"experts": 8, "k": 2, "sources": 4, "ranks": 4, "diagonal": False},
    ],
)
def test_a_balanced_gate_has_a_z_score_of_mean_0_and_deviation_1(measure, gate):
    # of many tokens no cell stays empty
    tokens = 5 if measure == "sparsity" else 256
    floor = noise_floor(measure, tokens, draws=4000, **gate)
    counts = balanced_counts(
        np.full(gate.get("sources", 1), tokens), experts=8, k=2, draws=4000, seed=99
    )
    if "ranks" in gate:
        counts = counts.reshape(4000, -1, gate["ranks"], 2).sum(axis=-1)
    measured = measures.MEASURES[measure](
        counts, axis=(-2, -1), diagonal=gate.get("diagonal", True)
    )
    z = floor.z_score(measured)
    assert abs(z.mean()) < 0.1
    assert z.std() == pytest.approx(1, abs=0.08)


def test_a_skewed_gate_stands_out():
    skewed = np.array([300, 200, 100, 100, 100, 100, 62, 62])
    of = {"experts": 8, "k": 2}
    assert noise_floor("gini", 512, **of).z_score(measures.gini(skewed)) > 10
    assert (
        noise_floor("normalized_entropy", 512, **of).z_score(
            measures.normalized_entropy(skewed)
        )
        < -10
    )


def test_each_token_count_has_its_own_floor_and_none_has_none():
    floor = noise_floor("max_over_mean", [[0, 10], [1000, 10]], experts=4, k=1)
    assert np.isnan(floor.mean[0, 0])
    assert np.isnan(floor.std[0, 0])
    assert floor.mean[0, 1] == floor.mean[1, 1] > floor.mean[1, 0] > 1


def test_the_same_seed_gives_the_same_floor_and_another_another():
    of = {"experts": 8, "k": 2, "draws": 50}
    first = simulated_floor(measures.gini, 77, seed=1, **of)
    assert simulated_floor(measures.gini, 77, seed=1, **of).mean == first.mean
    assert simulated_floor(measures.gini, 77, seed=2, **of).mean != first.mean


def test_sources_may_have_token_counts_of_their_own():
    floor = simulated_floor(
        lambda c: c.sum(axis=(-2, -1)), [3, 0, 9], experts=4, k=2, draws=20
    )
    assert floor == NoiseFloor(mean=np.float64(24), std=np.float64(0))


def test_where_every_expert_is_taken_nothing_varies_and_nothing_scores():
    floor = noise_floor("gini", 10, experts=4, k=4)
    assert floor.mean == pytest.approx(0, abs=1e-12)
    assert np.isnan(floor.z_score(0.5))
    assert np.isnan(cv_squared_floor(10, experts=8, k=3, ranks=1).z_score(0.5))


def test_unknown_measures_and_crooked_diagonals_are_refused():
    with pytest.raises(AnalysisError, match="simulated_floor"):
        noise_floor("loss", 10, experts=4, k=1)
    with pytest.raises(AnalysisError, match="square"):
        noise_floor("gini", 10, experts=4, k=1, sources=3, diagonal=False)
