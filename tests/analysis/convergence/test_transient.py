"""Transients: decays that settle, drifts that do not, thirds."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.analysis.convergence.transient import (
    half_life,
    initial_transient,
    stage_means,
)

pytestmark = pytest.mark.filterwarnings("error")


def each(curves):
    """Step, ended, mean and std of each curve ``[T, n]``."""
    found = [initial_transient(curve) for curve in np.transpose(curves)]
    return (
        np.array([getattr(f, n) for f in found])
        for n in ("step", "ended", "mean", "std")
    )


def test_thirds():
    assert stage_means([1.0, 3, 5, 7, 9, 2]) == pytest.approx([2, 6, 5.5])
    holed = [np.nan, np.nan, 4, np.nan, 1, 2]
    assert stage_means(holed) == pytest.approx([np.nan, 4, 1.5], nan_ok=True)
    assert np.isnan(stage_means([])).all()
    assert np.isnan(stage_means([1, 2])[2])


def test_a_decay_settles_where_it_has_died_away():
    t = np.arange(400)[:, None]
    noise = 0.02 * np.random.default_rng(5).normal(size=(400, 100))
    step, ended, mean, std = each(0.5 + np.exp(-t / 30) + noise)
    assert ended.all()
    # by then the transient is below the noise
    assert (np.exp(-step / 30) < 0.1).all()
    assert (step < 200).all()
    assert mean.mean() == pytest.approx(0.5, rel=0.05)
    assert std.mean() == pytest.approx(0.02, rel=0.05)


def test_a_transient_through_the_run_does_not_end():
    t = np.arange(400)[:, None]
    noise = 0.02 * np.random.default_rng(6).normal(size=(400, 100))
    _, ended, _, _ = each(t / 400 + noise)
    assert ended.mean() < 0.1


def test_noise_has_no_transient():
    step, ended, _, _ = each(np.random.default_rng(7).normal(size=(400, 100)))
    assert ended.all()
    assert np.median(step) == 0


def test_convergence_skips_what_is_missing_and_needs_four_steps():
    x = np.array([9, 5, np.nan, 1, 2, 1, np.nan, 2, 1, 2, 1, 2])
    found = initial_transient(x)
    assert found.mean == pytest.approx(1.5)
    assert found.ended
    assert not initial_transient([1, 1, 1]).ended
    assert np.isnan(initial_transient(np.full(6, np.nan)).mean)
    assert not initial_transient([]).ended


def test_the_half_life_of_an_exact_approach_in_any_unit_of_steps():
    t = np.arange(0, 300, 3)
    x = [1, 2, 5] + np.exp(-t / 40)[:, None] * [3, -1, 0]
    x += 1e-6 * np.random.default_rng(0).normal(size=x.shape)
    assert half_life(x, t) == pytest.approx(40 * np.log(2), rel=1e-3)
    assert half_life(x, 500 + 7 * t) == pytest.approx(280 * np.log(2), rel=1e-3)
    x[::7] = np.nan
    assert half_life(x, t) == pytest.approx(40 * np.log(2), rel=1e-3)


def test_the_half_life_under_noise():
    t = np.arange(120)
    wave = 5 * np.exp(-t / 15)[:, None] * [1, -1, 1, -1]
    noise = np.random.default_rng(1).normal(size=(50, 120, 4))
    found = [half_life(wave + one, t) for one in noise]
    assert np.median(found) == pytest.approx(15 * np.log(2), rel=0.05)


@pytest.mark.parametrize(
    "x", [np.zeros((0, 2)), np.ones((40, 2)), np.full((9, 1), np.nan), np.zeros((9, 0))]
)
def test_nothing_has_no_half_life(x):
    assert np.isnan(half_life(x, np.arange(len(x))))


def test_a_ramp_has_no_half_life():
    t = np.arange(60)
    assert np.isnan(half_life(t[:, None] / 60, t))
