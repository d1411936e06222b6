"""Forecasting: known processes have the scores that theory says, and nothing cheats."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import lfilter

from moetraffic.analysis.forecast import candidates
from moetraffic.analysis.forecast.candidates import SeriesBlock
from moetraffic.analysis.forecast.forecasting import forecast
from moetraffic.analysis.forecast.origins import split
from moetraffic.analysis.forecast.usefulness import sentence
from moetraffic.analysis.noise.null_model import NullModel
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")


def ar1(phi, shape, seed=0):
    noise = np.random.default_rng(seed).normal(size=(shape[0] + 300, *shape[1:]))
    return lfilter([1], [1, -phi], noise, axis=0)[300:]


def test_an_ar1_is_as_predictable_as_theory_says():
    x = 100 + ar1(0.9, (24_000, 16))
    found = forecast(x, horizons=[1, 10], iteration_s=0.25)
    one, ten = found.horizons
    assert one.best == "ar"
    assert one.score().nmse == pytest.approx(0.19, rel=0.05)
    assert one.score("persistence").nmse == pytest.approx(0.20, rel=0.05)
    better = one.score().reduction
    assert better.value == pytest.approx(0.05, rel=0.05)
    assert better.low < 0.05 < better.high
    assert one.score("persistence").reduction.value == 0
    assert one.score().skill.value == pytest.approx(1 - one.score().nmse)
    assert ten.score().nmse == pytest.approx(1 - 0.9**20, rel=0.05)
    assert ten.score("persistence").nmse == pytest.approx(2 * (1 - 0.9**10), rel=0.05)
    assert one.verdict.lead_s == 0.25
    assert ten.verdict.lead_s == 2.5
    later = forecast(x[:60], horizons=[1], iteration_s=1, known_s=0.4, transfer_s=0.1)
    assert later.verdicts[0].lead_s == pytest.approx(0.7)
    assert np.isnan(forecast(x[:60], horizons=[1]).verdicts[0].lead_s)
    assert ten.origins == len(found.split.test(10))


def test_of_white_noise_the_mean_is_best():
    x = 50 + np.random.default_rng(1).normal(size=(6000, 16))
    found = forecast(x, horizons=[1, 10, 100])
    for at in found.horizons:
        assert at.score().nmse == pytest.approx(1, rel=0.05)
        assert at.score().reduction.value == pytest.approx(0.5, rel=0.05)
        assert at.score("persistence").hot_recall == pytest.approx(2 / 16, abs=0.03)
    assert found.random_recall == 2 / 16


def test_a_season_is_found_and_kept():
    rng = np.random.default_rng(2)
    week = rng.gamma(2, 50, size=(7, 12))
    x = np.tile(week, (60, 1)) + rng.normal(size=(420, 12))
    found = forecast(x, horizons=[1, 10])
    assert found.period == 7
    for at in found.horizons:
        assert at.best == "seasonal"
        assert at.score().skill.value > 0.95
        assert at.score().hot_recall > 0.9
    assert forecast(ar1(0.5, (420, 12)), horizons=[1]).horizons[0].best != "seasonal"


@pytest.mark.parametrize("k", [1, 2])
def test_who_knows_the_gate_has_the_floors(k):
    tokens, experts = 4096, 8
    x = NullModel(experts=experts, k=k).draw(np.full(400, tokens), draws=1, seed=3)[0]
    found = forecast(x, horizons=[1], tokens=tokens, k=k).horizons[0]
    assert abs(found.score().nmse - found.nmse_floor) < 4 * found.nmse_floor_error
    floor = float(np.sqrt(2 / np.pi * (experts - k) / (k * tokens)))
    assert found.mape_floor == pytest.approx(floor, rel=0.01)
    assert found.score().mape == pytest.approx(floor, rel=0.1)
    assert found.verdict.within == pytest.approx(found.verdict.oracle_bound, abs=0.03)
    assert found.verdict.unchanged[0] < found.verdict.within[0]


def test_shares_that_are_not_even_have_floors_too():
    q = 1 / np.arange(1.0, 17)
    x = np.random.default_rng(4).multinomial(300, q / q.sum(), size=2000)
    steps = np.full(2000, 300)
    for tokens in (300, steps, np.repeat(steps[:, None], 16, axis=1)):
        found = forecast(x, horizons=[1], tokens=tokens).horizons[0]
        assert found.score().nmse == pytest.approx(found.nmse_floor, rel=0.03)
        assert found.score().mape >= 0.98 * found.mape_floor
        for within, bound in zip(
            found.verdict.within, found.verdict.oracle_bound, strict=True
        ):
            assert within <= bound + 0.02


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.sampled_from([1, 3, 10]), st.floats(0.5, 1))
def test_changing_the_future_changes_no_forecast(seed, horizon, place):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 50, size=(96, 3)).astype(float)
    x[rng.random(x.shape) < 0.05] = np.nan
    cut = replace(split(len(x)), refit_every=5)
    change = max(int(place * len(x)), cut.train_end)
    other = x.copy()
    other[change:] = rng.integers(0, 10**6, size=other[change:].shape)
    tried = candidates.candidates(cut, period=6)
    blocks = [SeriesBlock(v, cut) for v in (x, other)]
    origins = np.concatenate((cut.validation(horizon), cut.test(horizon)))
    early = origins < change
    for candidate in tried:
        before, after = (b.forecast(candidate, origins, horizon) for b in blocks)
        assert np.array_equal(before[:, early], after[:, early], equal_nan=True), (
            candidate
        )
    if change >= cut.validation_end:  # then what was chosen is the same, too
        made = [forecast(v, horizons=[horizon]).horizons[0] for v in (x, other)]
        assert made[0].best == made[1].best
        settings = [[s.setting for s in m.scores] for m in made]
        assert settings[0] == settings[1]


def test_candidates_agree_with_pandas():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(80, 4)) + 10
    frame = pd.DataFrame(x)
    cut = split(80)
    block = SeriesBlock(x, cut)
    for horizon in (1, 4, 9):
        origins = cut.test(horizon)
        for c in candidates.candidates(cut, period=5):
            made = block.forecast(c, origins, horizon).T
            if c.family == "persistence":
                every = frame
            elif c.family == "mean":
                every = frame.expanding().mean()
            elif c.family == "ema":
                every = frame.ewm(alpha=c.alpha, adjust=False).mean()
            elif c.family == "seasonal" and c.cycles == 1:
                every = frame.shift(5 * -(-horizon // 5) - horizon)
            else:
                continue
            assert made == pytest.approx(every.to_numpy()[origins], rel=1e-9), c


def test_an_autoregression_is_refitted_from_what_is_known_by_then():
    x = 5 + ar1(0.8, (120, 3), seed=6)
    cut = replace(split(120), refit_every=7)
    block = SeriesBlock(x, cut)
    one = candidates.Candidate(family="ar", setting="", order=1)
    for origin in (59, 65, 66, 90, 110):
        last = max(r for r in cut.refits() if r <= origin + 1)
        made = block.forecast(one, np.array([origin]), 1)[:, 0]
        # from the first step that has all lags of the largest order
        first = candidates.MAX_ORDER
        rows = np.stack((np.ones(last - first), x[first - 1 : last - 1, 0]), axis=1)
        c, phi = np.linalg.lstsq(rows, x[first:last, 0], rcond=None)[0]
        assert made[0] == pytest.approx(c + phi * x[origin, 0], rel=1e-6)


def test_the_winner_is_not_picked_on_the_test_part():
    """Constant until the test part, where only the last value is any good."""
    rng = np.random.default_rng(7)
    x = 100 + rng.normal(size=(400, 4))
    x[300:] += 50 * np.cumsum(rng.normal(size=(100, 4)), axis=0)
    found = forecast(x, horizons=[1]).horizons[0]
    assert found.best in ("mean", "ema", "ar")
    assert found.score().reduction.value < 0
    assert "no evidence of a lower error than persistence" in sentence(found.verdict)


def test_weights_make_bytes_of_units():
    x = np.random.default_rng(9).poisson(40, size=(120, 6)).astype(float)
    plain, scaled = forecast(x, horizons=[1]), forecast(x, horizons=[1], weights=2048)
    a, b = plain.horizons[0].score(), scaled.horizons[0].score()
    assert b.mse == pytest.approx(2048**2 * a.mse)
    assert b.nmse == pytest.approx(a.nmse)
    assert b.within == pytest.approx(a.within)
    heavy = forecast(x, horizons=[1], weights=[1e9, 1, 1, 1, 1, 1]).horizons[0]
    alone = forecast(x[:, :1], horizons=[1]).horizons[0]
    assert heavy.score("ema").within == pytest.approx(
        alone.score("ema").within, abs=1e-6
    )


def test_too_short_a_series_gives_reasons():
    x = np.random.default_rng(0).poisson(9, size=(60, 4))
    assert [h.horizon for h in forecast(x).horizons] == [1, 2]
    found = forecast(x, horizons=[1, 10, 100, 1000])
    assert [bool(h.reason) for h in found.horizons] == [False, False, True, True]
    assert found.horizons[2].score() is None
    assert "of 60 iterations" in found.verdicts[3].reason
    for shape in ((0, 3), (1, 3), (5, 3), (40, 0), (0,)):
        found = forecast(np.ones(shape))
        assert all(h.reason for h in found.horizons)
        assert all("unavailable" in sentence(v) for v in found.verdicts)


def test_edges():
    still = forecast(np.full((60, 3), 8.0), horizons=[1], tokens=24).horizons[0]
    assert still.best == "persistence"
    assert still.score().within == (1, 1, 1, 1)
    assert np.isnan(still.score().skill.value)
    nothing = forecast(np.zeros((60, 3)), horizons=[1], tokens=0).horizons[0]
    assert np.isnan(nothing.score().within).all()
    unknown = forecast(np.full((60, 3), np.nan), horizons=[1]).horizons[0]
    assert unknown.reason == "no value of the test part is known"
    x = np.random.default_rng(1).poisson(50, size=(80, 4)).astype(float)
    x[:, 2] = np.nan
    x[70] = np.nan
    x[10:40, 1] = np.inf
    holes = forecast(x, horizons=[1, 5], tokens=200).horizons
    assert [h.values for h in holes] == [3 * 19, 3 * 15]
    assert np.isfinite(holes[0].score().nmse)


@pytest.mark.parametrize(
    "wrong",
    [
        {"horizons": [0]},
        {"tokens": np.ones(7)},
    ],
)
def test_what_cannot_be_asked_is_refused(wrong):
    with pytest.raises(AnalysisError):
        forecast(np.ones((30, 4)), **wrong)
