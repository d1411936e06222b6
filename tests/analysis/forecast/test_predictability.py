"""Predictability: scores of processes whose predictability is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.signal import lfilter

from moetraffic.analysis.forecast.forecasters import FORECASTERS, persistence
from moetraffic.analysis.forecast.predictability import (
    BEST,
    evaluate,
    mape_floor,
    score,
)
from moetraffic.analysis.noise.balanced_router import balanced_counts
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")


def ar1(phi: float, shape: tuple[int, ...]) -> np.ndarray:
    noise = np.random.default_rng(0).normal(size=shape)
    return lfilter([1], [1, -phi], noise, axis=0)


def known_phi(series, *, horizon):
    return 0.9**horizon * persistence(series, horizon=horizon)


def test_an_ar1_is_as_predictable_as_theory_says():
    x = ar1(0.9, (60_000, 4))
    found = evaluate(
        x,
        forecasters={**FORECASTERS, "known": known_phi},
        warm_up=100,
        axis=(0, 1),
    )
    assert found["persistence"].nmse == pytest.approx(0.20, rel=0.05)
    assert found["persistence"].skill == 0
    assert found["known"].nmse == pytest.approx(0.19, rel=0.05)
    assert found["known"].skill == pytest.approx(0.05, rel=0.05)
    assert found["known"].mse == pytest.approx(1, rel=0.05)
    assert found[BEST].nmse == pytest.approx(0.19, rel=0.05)


@pytest.mark.parametrize("horizon", [1, 10])
def test_persistence_of_an_ar1_at_a_horizon(horizon):
    x = ar1(0.9, (60_000, 4))
    found = score(
        x,
        persistence(x, horizon=horizon),
        warm_up=100,
        horizon=horizon,
        axis=(0, 1),
    )
    assert found.nmse == pytest.approx(2 * (1 - 0.9**horizon), rel=0.05)
    assert found.skill == 0


def test_of_white_noise_the_mean_is_better_than_the_last_value():
    x = np.random.default_rng(1).normal(size=40_000)
    found = evaluate(x)
    assert found["persistence"].nmse == pytest.approx(2, rel=0.05)
    assert found["window_mean"].nmse == pytest.approx(1 + 1 / 8, rel=0.05)
    assert found["ema"].nmse == pytest.approx(2 / (2 - 0.3), rel=0.05)
    assert found["window_mean"].skill == pytest.approx(1 - 1.125 / 2, rel=0.05)
    assert found[BEST].nmse == pytest.approx(1.125, rel=0.05)


def test_the_mape_of_who_knows_the_gate_is_its_floor():
    counts = balanced_counts(4096, experts=8, k=2, draws=20_000)
    known = np.full(counts.shape, 4096 * 2 / 8)
    found = score(counts, known, axis=(0, 1))
    assert found.mape == pytest.approx(
        float(mape_floor(4096, experts=8, k=2)), rel=0.05
    )
    assert mape_floor(4096, experts=8, k=2) == pytest.approx(
        np.sqrt(2 / np.pi * 6 / (2 * 4096)), abs=1e-12
    )


def test_the_floor_of_no_tokens_and_of_all_experts():
    assert np.isnan(mape_floor(0, experts=8, k=2))
    assert mape_floor([10, 20], experts=4, k=4).tolist() == [0, 0]
    with pytest.raises(AnalysisError, match="distinct"):
        mape_floor(10, experts=4, k=5)


def test_pooling_adds_up_errors_before_it_divides():
    x = np.random.default_rng(2).normal(size=(200, 3, 4)) * np.array([1, 2, 3, 4])
    made = FORECASTERS["window_mean"](x, horizon=1)
    each, layer = score(x, made), score(x, made, axis=(0, -1))
    assert each.nmse.shape == (3, 4)
    assert layer.nmse.shape == (3,)
    weight = x[8:].var(axis=0)
    pooled = (each.nmse * weight).sum(axis=1) / weight.sum(axis=1)
    assert layer.nmse == pytest.approx(pooled)
    assert layer.count.tolist() == [192 * 4] * 3


@given(
    hnp.arrays(np.float64, st.tuples(st.integers(4, 30)), elements=st.integers(1, 99)),
    st.sampled_from([0.25, 2.0, 1024.0]),
)
def test_the_unit_does_not_matter(x, factor):
    once, again = evaluate(x, warm_up=2), evaluate(x * factor, warm_up=2)
    for name in once:
        for figure in ("nmse", "mape", "skill"):
            assert getattr(again[name], figure) == pytest.approx(
                getattr(once[name], figure), rel=1e-6, nan_ok=True
            )


def test_unknown_steps_are_left_out_for_all_alike():
    x = ar1(0.5, (3000,)) + 10
    x[::7] = np.nan
    found = evaluate(x)
    counts = {int(s.count) for s in found.values()}
    assert len(counts) == 1
    assert counts.pop() < 3000 * 6 / 7
    assert found["persistence"].skill == 0


def test_what_never_changes_has_no_variance_to_explain():
    found = evaluate(np.full((30, 2), 0.1))
    assert np.isnan(found["persistence"].nmse).all()
    assert np.isnan(found["window_mean"].skill).all()
    assert found["ema"].mape == pytest.approx([0, 0], abs=1e-12)


def test_zero_targets_are_left_out_of_the_mape():
    found = score([0, 4, 0, 4], [1, 1, 1, 1], warm_up=1)
    assert found.mape == 0.75
    assert np.isnan(score(np.zeros(9), np.ones(9), warm_up=1).mape)


def test_too_short_a_series_scores_nothing():
    found = evaluate(np.arange(5.0), warm_up=8)
    assert found[BEST].count == 0
    assert np.isnan([found[BEST].mse, found[BEST].nmse, found[BEST].mape]).all()
    assert evaluate(np.arange(5.0), forecasters={}) == {}


@pytest.mark.parametrize(
    ("shape", "other", "axis"), [((5, 2), (5, 3), 0), ((5, 2), (5, 2), 1), ((), (), 0)]
)
def test_scores_are_over_time(shape, other, axis):
    with pytest.raises(AnalysisError, match="time"):
        score(np.ones(shape), np.ones(other), axis=axis)
