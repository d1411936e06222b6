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


def test_the_order_is_at_least_the_true_one():
    found = fit(ar([0.5, 0, 0.3], (3000, 100), start=200)).order
    assert (found >= 3).all()
    # of white noise AIC overfits three in ten series
    assert (fit(ar([], (3000, 100))).order == 0).mean() > 0.6


def test_series_do_not_touch_each_other():
    x = ar([0.7], (200, 6))
    x[:, 3] = 4.0
    x[50:60, 4] = np.nan
    together = fit(x)
    for c in range(6):
        alone = fit(x[:, c])
        assert together.order[c] == alone.order[0]
        assert together.weights[c] == pytest.approx(alone.weights[0], rel=1e-9)
        assert together.constant[c] == pytest.approx(alone.constant[0], rel=1e-9)


def test_what_never_changes_is_forecast_to_stay():
    found = fit(np.full((40, 2), 7.5))
    assert (found.order == 0).all()
    assert found.constant == pytest.approx([7.5, 7.5])
    assert np.isnan(fit(np.full(40, np.nan)).constant).all()


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


def test_far_ahead_it_is_the_mean_and_never_runs_away():
    x = 5 + ar([0.9], (500, 4))
    far = ahead(fit(x, order=1), 10_000)
    assert np.abs(far.weights).max() < 1e-12
    assert far.constant == pytest.approx(x.mean(axis=0), rel=0.05)
    growing = 1.1 ** np.arange(60.0)[:, None] * np.ones(3)
    model = fit(growing, order=2)
    roots = [np.abs(np.roots([1, *(-w)])).max() for w in model.weights]
    assert max(roots) <= 1 + 1e-9
    jump = ahead(model, 1000)
    made = jump.constant + (jump.weights * growing[-2:][::-1].T).sum(axis=1)
    assert (np.abs(made) < 1e4 * growing.max()).all()


def test_a_sine_is_an_autoregression_of_order_two():
    wave = np.sin(2 * np.pi * np.arange(64) / 9)[:, None]
    model = fit(wave, order=2)
    jump = ahead(model, 18)
    made = jump.constant + (jump.weights * wave[-2:][::-1].T).sum(axis=1)
    assert made == pytest.approx(wave[-1], abs=1e-4)


def test_stretches_add_up_to_the_whole():
    x = np.ascontiguousarray(ar([0.6], (200, 5)).T)
    whole = moments(x, [0, 200], max_order=3, known_until=100)
    parts = moments(x, [0, 30, 31, 100, 200], max_order=3, known_until=100)
    assert parts.products.sum(axis=0) == pytest.approx(whole.products[0])
    found = solve(parts, [[1, 1, 1, 0], [1, 1, 1, 1]], 3)
    early = fit(x[:, :100].T, order=3)
    late = fit(x.T, order=3)
    assert found.weights[0] == pytest.approx(early.weights, rel=1e-6)
    assert found.weights[1] == pytest.approx(late.weights, rel=1e-6)
    assert order_of(whole).shape == (5,)


@pytest.mark.parametrize("length", [0, 1, 2, 5])
def test_a_short_series_has_a_mean_at_most(length):
    found = fit(np.ones((length, 2)))
    assert (found.order == 0).all()
    assert found.rows.tolist() == [length, length]
