"""Transition: a known map is found again, and the constraints hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import minimize

from moetraffic.analysis.forecast.transition import fit_transition, simplex

pytestmark = pytest.mark.filterwarnings("error")


def stochastic(rng, size, concentration=0.3):
    return rng.dirichlet(np.full(size, concentration), size=size).T


@given(
    hnp.arrays(
        np.float64,
        st.tuples(st.integers(1, 6), st.integers(1, 4)),
        elements=st.floats(-5, 5),
    )
)
def test_the_simplex_is_reached_and_no_point_of_it_is_nearer(v):
    found = simplex(v)
    assert (found >= 0).all()
    assert found.sum(axis=0) == pytest.approx(1)
    rng = np.random.default_rng(0)
    for other in rng.dirichlet(np.ones(len(v)), size=20):
        away = ((v - other[:, None]) ** 2).sum(axis=0)
        assert (((v - found) ** 2).sum(axis=0) <= away + 1e-9).all()


@pytest.mark.parametrize("size", [1, 2, 8, 24])
def test_a_known_map_is_recovered_exactly(size):
    rng = np.random.default_rng(size)
    permutation = np.eye(size)[:, rng.permutation(size)]
    for known in (permutation, stochastic(rng, size), stochastic(rng, size)):
        before = rng.dirichlet(np.ones(size), size=10 * size) * 4096
        found = fit_transition(before, before @ known.T, ridge=0)
        assert np.abs(found - known).max() < 1e-6


def test_from_counts_it_is_recovered_better_the_longer_the_run():
    rng = np.random.default_rng(1)
    known = stochastic(rng, 8)
    missed = []
    for steps in (100, 1600):
        p = rng.dirichlet(np.ones(8), size=steps)
        x = rng.multinomial(8192, p)
        y = np.stack([rng.multinomial(8192, row) for row in p @ known.T])
        missed.append(np.abs(fit_transition(x, y, ridge=0) - known).mean())
    assert missed[1] < 0.5 * missed[0] < 0.01


@pytest.mark.parametrize("ridge", [0, 0.01, 1.0])
@pytest.mark.parametrize(("steps", "before", "after"), [(5, 12, 7), (60, 6, 6)])
def test_columns_are_distributions_whatever_the_loads(ridge, steps, before, after):
    rng = np.random.default_rng(steps)
    x = rng.dirichlet(np.full(before, 50.0), size=steps)
    y = rng.dirichlet(np.full(after, 0.5), size=steps)
    found = fit_transition(x, y, ridge=ridge)
    assert found.shape == (after, before)
    assert (found >= 0).all()
    assert found.sum(axis=0) == pytest.approx(1, abs=1e-9)


def test_it_is_the_constrained_optimum():
    rng = np.random.default_rng(3)
    x = rng.dirichlet(np.full(4, 5.0), size=30)
    y = rng.dirichlet(np.full(4, 2.0), size=30)

    def cost(flat):
        return ((y - x @ flat.reshape(4, 4).T) ** 2).sum()

    found = fit_transition(x, y, ridge=0)
    other = minimize(
        cost,
        np.full(16, 0.25),
        method="SLSQP",
        bounds=[(0, 1)] * 16,
        constraints=[{"type": "eq", "fun": lambda f: f.reshape(4, 4).sum(axis=0) - 1}],
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert (found == 0).any()  # the constraints bind
    assert cost(found.ravel()) == pytest.approx(other.fun, rel=1e-7)
    assert found.ravel() == pytest.approx(other.x, abs=1e-5)


def test_a_heavy_ridge_forgets_the_layer_before():
    rng = np.random.default_rng(4)
    x, y = rng.dirichlet(np.ones(5), size=40), rng.dirichlet(np.ones(3), size=40)
    found = fit_transition(x, y, ridge=1e9)
    assert found == pytest.approx(np.repeat(y.mean(axis=0)[:, None], 5, axis=1))


def test_steps_that_are_not_known_are_left_out():
    rng = np.random.default_rng(5)
    known = stochastic(rng, 4)
    x = rng.dirichlet(np.ones(4), size=60)
    y = x @ known.T
    y[7], x[9], y[11] = np.nan, 0.0, 0.0
    found = fit_transition(x, y, ridge=0)
    assert found == pytest.approx(known, abs=1e-6)
    assert np.isnan(fit_transition(np.zeros((3, 2)), np.zeros((3, 2)))).all()
