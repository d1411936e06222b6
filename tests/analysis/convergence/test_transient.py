"""Transients: decays that settle, drifts that do not, thirds."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.analysis.convergence.transient import settling, stage_means

pytestmark = pytest.mark.filterwarnings("error")


def test_thirds():
    x = np.array([[1.0, np.nan], [3, np.nan], [5, 4], [7, np.nan], [9, 1], [2, 2]])
    assert stage_means(x) == pytest.approx(
        np.array([[2, np.nan], [6, 4], [5.5, 1.5]]), nan_ok=True
    )
    assert np.isnan(stage_means([])).all()
    assert np.isnan(stage_means([1, 2])[2])


def test_a_decay_settles_where_it_has_died_away():
    t = np.arange(400)[:, None]
    noise = 0.02 * np.random.default_rng(5).normal(size=(400, 100))
    found = settling(0.5 + np.exp(-t / 30) + noise)
    assert found.settled.all()
    # by then the transient is below the noise
    assert (np.exp(-found.step / 30) < 0.1).all()
    assert (found.step < 200).all()
    assert found.mean.mean() == pytest.approx(0.5, rel=0.05)
    assert found.std.mean() == pytest.approx(0.02, rel=0.05)


def test_what_still_moves_has_not_settled():
    t = np.arange(400)[:, None]
    noise = 0.02 * np.random.default_rng(6).normal(size=(400, 100))
    assert settling(t / 400 + noise).settled.mean() < 0.1


def test_noise_is_settled_from_the_start():
    found = settling(np.random.default_rng(7).normal(size=(400, 100)))
    assert found.settled.all()
    assert np.median(found.step) == 0


def test_convergence_skips_what_is_missing_and_needs_four_steps():
    x = np.array([9, 5, np.nan, 1, 2, 1, np.nan, 2, 1, 2, 1, 2])
    found = settling(x)
    assert found.mean == pytest.approx(1.5)
    assert found.settled
    assert not settling([1, 1, 1]).settled
    assert np.isnan(settling(np.full(6, np.nan)).mean)
    assert not settling([]).settled
