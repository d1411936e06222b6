"""Drift: noise floors against draws from known routers."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.analysis.convergence.drift import distance_floor, step_change_floor
from moetraffic.analysis.distances import total_variation
from moetraffic.analysis.noise.null_model import NullModel

pytestmark = pytest.mark.filterwarnings("error")


def moves(x):
    """Distances of successive steps, from the second step on."""
    return total_variation(x[1:], x[:-1])


def test_the_floor_of_few_tokens_is_exact():
    # N = 3, p = 1/2: |X - 1.5| is 1.5 or .5 with 1/4 and 3/4
    assert distance_floor([3], [1, 1]) == pytest.approx(0.75 / 3)
    assert distance_floor([1], [1, 1, 1, 1]) == pytest.approx(0.75)
    assert distance_floor([7, 0], [1, 0]) == pytest.approx([0, np.nan], nan_ok=True)


@pytest.mark.parametrize("tokens", [3, 40, 3000])
@pytest.mark.parametrize("cells", [4, 64])
def test_floors_are_what_draws_show(tokens, cells):
    p = 1 / np.arange(1, cells + 1)
    p /= p.sum()
    drawn = np.random.default_rng(0).multinomial(tokens, p, 4000)
    floor = distance_floor([tokens], p)[0]
    assert total_variation(drawn, p).mean() == pytest.approx(floor, rel=0.02)
    moved = moves(drawn).mean()
    floor = step_change_floor(drawn)[1:].mean()
    assert floor == pytest.approx(moved, rel=0.05 if tokens > 3 else 0.12)


def test_distinct_experts_of_a_token_count_less():
    drawn = NullModel(experts=8, k=2).draw(400, draws=3000)
    floor = distance_floor([800], np.ones(8), experts_per_token=2)
    assert total_variation(drawn, np.ones(8)).mean() == pytest.approx(
        floor[0], rel=0.03
    )
    floor = step_change_floor(drawn, experts_per_token=2)[1:]
    assert moves(drawn).mean() == pytest.approx(floor.mean(), rel=0.05)
    assert step_change_floor(drawn)[1:].mean() > 1.05 * floor.mean()


def test_steps_of_unequal_size():
    rng = np.random.default_rng(1)
    n = np.tile([300, 3000], 1000)
    drawn = np.array([rng.multinomial(t, [0.4, 0.3, 0.2, 0.1]) for t in n])
    floor = step_change_floor(drawn)[1:]
    assert moves(drawn).mean() == pytest.approx(floor.mean(), rel=0.05)


def test_many_different_sizes_are_close_enough():
    n = np.arange(500, 10_500)
    few = distance_floor(n[::100], [3, 2, 1])
    assert distance_floor(n, [3, 2, 1])[::100] == pytest.approx(few, rel=0.003)


def test_nothing():
    assert np.isnan(step_change_floor(np.zeros((3, 2)))).all()
