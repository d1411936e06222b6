"""Course and movement of the load have the moments of their parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from moetraffic.generate import TrafficModel
from moetraffic.generate.parametric.fitting import (
    _components,
    _grid,
    fit_dynamics,
    fit_rows,
)

Make = Callable[..., TrafficModel]


def states(model: TrafficModel, count: int, seed: int = 0) -> np.ndarray:
    return np.stack(list(islice(model.dynamics.states(seed, model.scenario.k), count)))


def drawn(model: TrafficModel, iterations: int, seed: int) -> np.ndarray:
    demand = model.sample(iterations=iterations, seed=seed)
    return np.concatenate([counts for _, counts in demand.blocks()])


def test_a_component_has_its_variance_and_autocorrelation(known_model: Make) -> None:
    model = known_model(spread=0.0, decay=5.0, sd=0.5, experts=64)
    x = states(model, 1500)
    assert x.var() == pytest.approx(0.25, rel=0.05)
    for lag in (1, 5):
        found = (x[lag:] * x[:-lag]).mean() / x.var()
        assert found == pytest.approx(np.exp(-lag / 5), abs=0.03)


def test_a_swinging_component_has_its_period(known_model: Make) -> None:
    model = known_model(spread=0.0, experts=64)
    d = replace(
        model.dynamics, damping=np.array([0.95]), frequency=np.array([np.pi / 4])
    )
    x = states(replace(model, dynamics=d), 1200)
    assert (x[4:] * x[:-4]).mean() / x.var() == pytest.approx(-(0.95**4), abs=0.04)


def test_a_course_keeps_its_levels_and_starts_as_captured(known_model: Make) -> None:
    model = known_model(kept=0.3, sd=0.0, experts=16)
    level = model.dynamics.level[0]
    one, other = (states(model, 301, seed) for seed in (1, 2))
    # the first knot has the captured order; every knot has the captured levels
    assert one[0] == pytest.approx(level)
    for at in (100, 200, 300):
        assert np.sort(one[at]) == pytest.approx(np.sort(level))
        assert not np.allclose(one[at], other[at])
    # past the last knot which expert has the load goes on to change
    assert not np.allclose(one[200], one[300])


@pytest.mark.parametrize("drift", [0.5, 3.0])
def test_drift_changes_orders_at_its_speed_and_keeps_levels(
    known_model: Make, drift: float
) -> None:
    model = known_model(kept=1.0, sd=0.0, experts=16)
    d = model.dynamics
    level = np.stack([d.level[0], 2 * np.roll(d.level[0], 3, axis=1)])
    d = replace(d, level=level, kept=np.ones(2), adjacent=np.ones(2))
    plain = list(islice(d.states(0, 1), 101))
    drifted = list(islice(d.states(0, 1, drift=drift), 101))
    # at a knot of both: the levels of then, in the order of another time
    found, one = drifted[100], plain[100]
    assert np.sort(found) == pytest.approx(np.sort(one))
    share = min(drift, 1.0)
    order = (1 - share) * level[0] + share * level[1]
    assert (np.argsort(found) == np.argsort(order)).all()


def test_components_of_a_variogram_add_up_to_it() -> None:
    grid, lags = _grid(), np.arange(1, 31)
    want = 2 * 0.3 * (1 - np.exp(-lags / 7.0)) + 2 * 0.1
    found = _components(grid, lags, want)
    got = (
        2 * (1 - grid[:, 0] ** lags[:, None] * np.cos(np.outer(lags, grid[:, 1])))
    ) @ (found)
    assert (found >= 0).all()
    assert got == pytest.approx(want, rel=0.05)


@pytest.mark.parametrize("k", [1, 2])
def test_a_fit_finds_size_and_speed_of_the_movement(known_model: Make, k: int) -> None:
    model = known_model(k=k, kept=1.0, decay=10.0, sd=0.3, experts=16)
    counts = drawn(model, 300, 1)
    d = fit_dynamics(counts, k=k, tokens=128)
    lags = np.array([1, 4])
    turn = d.damping ** lags[:, None] * np.cos(np.outer(lags, d.frequency))
    found = (2 * (1 - turn)) @ d.variance[3:].mean(axis=(0, 1))
    want = 2 * 0.3**2 * (1 - np.exp(-lags / 10))
    assert found == pytest.approx(want, rel=0.35)
    level = d.level[2:].mean(axis=0).std()
    assert level == pytest.approx(model.dynamics.level[0].std(), rel=0.25)
    assert d.kept.min() > 0.8  # one order throughout, as reruns of such a run have


def test_a_fit_finds_the_variance_of_rows_and_its_coupling(known_model: Make) -> None:
    model = known_model(sd=0.0, spread=0.0, variance=0.02, kept=1.0)
    counts = drawn(model, 200, 2)
    rows = fit_rows(counts, tokens=128)
    total = (rows.factors**2).sum(axis=2) + rows.own**2
    # shares add up to one: an eighth of the log-weights' variance is lost
    assert total.mean() == pytest.approx(0.02 * 7 / 8, rel=0.2)
    first, second = rows.factors
    true = model.rows.factors
    across = true[0] @ true[1].T
    across -= across.mean(axis=0) + across.mean(axis=1)[:, None] - across.mean()
    found = first @ second.T
    assert np.corrcoef(found.ravel(), across.ravel())[0, 1] > 0.9
