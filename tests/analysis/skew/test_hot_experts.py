"""The hot set: exact overlaps, random and sampling-noise references, half-life."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moetraffic.analysis.noise.null_model import NullModel
from moetraffic.analysis.skew.hot_experts import hot_set
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")


def test_overlaps_of_sets_told_by_hand():
    # hot: {0,1} {0,1} {1,2} {1,2}
    x = [[9, 5, 1], [8, 6, 1], [1, 6, 8], [1, 5, 9]]
    found = hot_set(x, k=2)
    assert found.lags.tolist() == [1, 2]
    assert found.overlap == pytest.approx([(1 + 0.5 + 1) / 3, 0.5])
    assert found.churn == pytest.approx(1 / 6)
    assert found.random_overlap == pytest.approx(2 / 3)


@given(st.integers(1, 6), st.integers(0, 4))
@settings(max_examples=10)
def test_what_is_random_overlaps_as_the_reference_says(k, more):
    x = np.random.default_rng(k).random((4000, k + more))
    found = hot_set(x, k=k)
    assert found.random_overlap == k / (k + more)
    assert found.overlap == pytest.approx(k / (k + more), abs=0.03)


@pytest.mark.parametrize(("k", "experts_per_token"), [(3, 1), (4, 2)])
def test_counting_alone_moves_an_even_or_a_skewed_hot_set(k, experts_per_token):
    # a step a draw
    even = NullModel(experts=16, k=experts_per_token).draw(500, draws=2000)
    found = hot_set(even, k=k, experts_per_token=experts_per_token)
    assert found.overlap.mean() == pytest.approx(k / 16, rel=0.05)
    assert found.counting_overlap == pytest.approx(k / 16, rel=0.05)
    rng = np.random.default_rng(0)
    p = 1 / np.arange(1, 17) ** 0.2
    skewed = rng.multinomial(500, p / p.sum(), 3000)
    found = hot_set(skewed, k=k)
    assert found.counting_overlap == pytest.approx(found.overlap.mean(), rel=0.05)


def test_a_router_that_stays_is_told_from_counting():
    state = np.zeros((600, 16))
    rng = np.random.default_rng(2)
    for t in range(1, 600):
        state[t] = 0.97 * state[t - 1] + 0.25 * rng.normal(size=16)
    found = hot_set(np.rint(1000 * np.exp(state)), k=4)
    assert found.overlap[0] > 0.8
    assert found.overlap[0] > found.overlap[20] > found.overlap[100]
    # AR(1) with .97 is at a half after 23 steps; an overlap falls earlier
    assert 5 < found.half_life < 25


def test_half_life_of_an_exact_decay():
    # one set in blocks of 8, then the other: overlap(l) = 1 - l/8 within the blocks
    block = np.repeat(np.tile([0, 1], 40), 8)
    x = np.eye(2)[block] + 1
    found = hot_set(x, k=1)
    assert found.overlap[:8] == pytest.approx(1 - found.lags[:8] / 8, abs=0.01)
    # above random, 1/2, it is 3/8 at lag 1 and a half of that at lag 2.5
    assert found.half_life == pytest.approx(2.5, abs=0.05)


def test_a_set_that_never_changes():
    found = hot_set(np.tile([9, 3, 2, 1], (50, 1)) * 1000, k=2)
    assert found.overlap.min() == 1
    assert found.counting_overlap == 1
    assert np.isnan(found.half_life)  # not below the search bound
    assert found.churn == 0


def test_steps_without_a_hot_set_are_left_out():
    x = np.array([[2.0, 1], [0, 0], [1, 2], [np.nan, 1], [1, 2], [1, 2]])
    found = hot_set(x, k=1)
    assert found.steps == 4
    assert found.overlap[:2].tolist() == [1, 0.5]


@pytest.mark.parametrize(
    "x", [np.zeros((0, 3)), np.zeros((5, 3)), np.full((4, 2), np.nan), np.ones((1, 1))]
)
def test_nothing_to_compare(x):
    found = hot_set(x, k=1)
    assert np.isnan(found.overlap).all()
    assert np.isnan([found.half_life, found.churn]).all()
    assert found.steps == int(x.size == 1)


def test_all_of_all_are_always_hot():
    found = hot_set(np.random.default_rng(3).random((20, 3)), k=3)
    assert found.random_overlap == found.overlap.min() == 1


def test_it_is_drawn_once_for_all():
    x = np.random.default_rng(4).poisson(40, (60, 8))
    one, two = hot_set(x, k=2), hot_set(x, k=2)
    assert one.counting_overlap == two.counting_overlap


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "choose K"),
        ({"k": 4}, "choose K"),
        ({"k": 1, "experts_per_token": 0}, "expert or more"),
    ],
)
def test_what_a_hot_set_needs(arguments, message):
    with pytest.raises(AnalysisError, match=message):
        hot_set(np.ones((4, 3)), **arguments)
