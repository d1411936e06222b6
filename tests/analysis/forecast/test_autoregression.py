"""Autoregression: least squares as textbooks have it, of many series at once."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter

from moetraffic.analysis.forecast.autoregression import (
    Autoregression,
    ahead,
    fitting_order,
    moments,
    order_of,
    solve,
)

pytestmark = pytest.mark.filterwarnings("error")


def fit(series, *, order=None, max_order=8):
    """One fit to whole series ``[T, C]``."""
    x = np.asarray(series, np.float64)
    x = np.ascontiguousarray(x.reshape(len(x), int(np.prod(x.shape[1:]))).T)
    lags = fitting_order(x.shape[1], max_order) if order is None else order
    sums = moments(x, [0, x.shape[1]], max_order=lags)
    if order is None:
        order = order_of(sums)
    found = solve(sums, np.ones((1, 1)), order)
    return Autoregression(
        constant=found.constant[0],
        weights=found.weights[0],
        order=found.order[0],
        rows=found.rows[0],
        horizon=1,
    )


def ar(coefficients, shape, *, seed=0, start=0):
    noise = np.random.default_rng(seed).normal(size=(shape[0] + start, *shape[1:]))
    return lfilter([1], [1, *(-np.asarray(coefficients))], noise, axis=0)[start:]


def test_it_is_least_squares():
    x = 50 + 3 * ar([0.5, 0.2], (120, 4))
    found = fit(x, order=3)
    for c in range(4):
        rows = [[1, *x[t - 2 : t + 1, c][::-1]] for t in range(2, len(x) - 1)]
        target = x[3:, c]
        expected, *_ = np.linalg.lstsq(np.array(rows), target, rcond=None)
        assert found.constant[c] == pytest.approx(expected[0], rel=1e-6)
        assert found.weights[c] == pytest.approx(expected[1:], rel=1e-6, abs=1e-7)
        assert found.rows[c] == len(rows)


def test_known_coefficients_are_found_in_the_mean_of_many_series():
    x = 10 + ar([0.6, -0.3], (2000, 200), start=200)
    found = fit(x, order=2)
    assert found.weights.mean(axis=0) == pytest.approx([0.6, -0.3], rel=0.05)


def test_the_iterated_forecast_puts_forecasts_in_for_values():
    x = 5 + ar([0.5, 0.3, -0.2], (300, 3))
    model = fit(x, order=3)
    past = [list(x[-3:, c][::-1]) for c in range(3)]
    for _ in range(7):
        for c in range(3):
            new = model.constant[c] + np.dot(model.weights[c], past[c][:3])
            past[c].insert(0, new)
    jump = ahead(model, 7)
    made = jump.constant + (jump.weights * x[-3:][::-1].T).sum(axis=1)
    assert made == pytest.approx([p[0] for p in past], rel=1e-9)


@pytest.mark.parametrize("length", [0, 1, 2, 5])
def test_a_short_series_has_a_mean_at_most(length):
    found = fit(np.ones((length, 2)))
    assert (found.order == 0).all()
    assert found.rows.tolist() == [length, length]
