"""Forecasts: known processes have the scores of theory, and gaps count as time."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.signal import lfilter

from moetraffic import Trace
from moetraffic.analysis.exchange import exchanges
from moetraffic.analysis.forecast import (
    FEWEST,
    Forecaster,
    Split,
    candidates,
    default_horizons,
    find_period,
    forecast_tables,
    forecasts,
    gain,
    score,
    split,
)
from moetraffic.analysis.rows import rows
from moetraffic.columns import COLUMNS
from moetraffic.data import path
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")


def ar1(phi, shape, seed=0):
    noise = np.random.default_rng(seed).normal(size=(shape[0] + 300, *shape[1:]))
    return lfilter([1], [1, -phi], noise, axis=0)[300:]


def row_of(scores, method=""):
    """Scores of a method, or of the chosen one."""
    (row,) = (
        row
        for row in scores.rows
        if row["method"] == method or (row["chosen"] and not method)
    )
    return row


# ---- parts ---------------------------------------------------------------------------


@given(st.integers(0, 5000), st.integers(1, 1200), st.integers(1, 300))
def test_parts_follow_each_other(steps, horizon, most):
    parts = split(np.arange(steps), max_origins=most)
    validation, of_validation = parts.validation(horizon)
    test, of_test = parts.test(horizon)
    if not parts.testable(horizon):
        assert min(len(validation), len(test)) < FEWEST or parts.train_end < 2
        return
    assert (of_validation - validation == horizon).all()
    assert (of_test - test == horizon).all()
    assert validation[0] == parts.train_end - 1
    assert test[0] == parts.validation_end - 1
    assert of_validation[-1] < parts.validation_end
    assert of_test[-1] < steps
    assert max(len(validation), len(test)) <= most


def test_targets_are_as_many_steps_later_as_the_horizon_says():
    times = np.array([0, 1, 2, 3, 5, 6, 7, 10, 11, 12, 13, 14])
    parts = Split(times=times, train_end=2, validation_end=5)
    origins, targets = parts.test(3)
    assert list(zip(times[origins], times[targets], strict=True)) == [
        *((7, 10), (10, 13), (11, 14))
    ]
    assert [times[rows].tolist() for rows in parts.validation(1)] == [[1, 2], [2, 3]]


# ---- forecasters ---------------------------------------------------------------------


def test_forecasts_are_those_of_pandas():
    x = np.random.default_rng(3).normal(size=(80, 4)) + 10
    frame, times, origins = pd.DataFrame(x), np.arange(80), np.arange(50, 70)
    for horizon in (1, 4, 9):
        for one in candidates(split(times), period=5):
            expected = {
                "persistence": lambda: frame,
                "mean": lambda: frame.expanding().mean(),
                "ema": lambda a=one.alpha: frame.ewm(alpha=a, adjust=False).mean(),
                "seasonal": lambda c=one.cycles, h=horizon: (
                    sum(frame.shift(5 * (-(-h // 5) + n) - h) for n in range(c)) / c
                ),
            }[one.method]()
            (made,) = forecasts(x, times, one, {horizon: origins})
            assert made == pytest.approx(expected.to_numpy()[origins]), one


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.sampled_from([1, 3, 10]), st.floats(0.5, 1))
def test_changing_the_future_changes_no_forecast(seed, horizon, place):
    rng = np.random.default_rng(seed)
    times = np.flatnonzero(rng.random(120) < 0.9)
    x = rng.integers(0, 50, size=(len(times), 3)).astype(float)
    parts = split(times)
    change = max(int(place * len(x)), parts.train_end)
    other = x.copy()
    other[change:] = rng.integers(0, 10**6, size=other[change:].shape)
    origins = np.arange(1, change)
    for one in candidates(parts, period=6):
        a, b = (list(forecasts(v, times, one, {horizon: origins})) for v in (x, other))
        assert np.array_equal(a, b)
    settings_ = [
        [(r["method"], r["setting"]) for r in score(v, times, horizons=[1])[0].rows]
        for v in (x, other)
    ]
    if change >= parts.validation_end:  # tuned before
        assert settings_[0] == settings_[1]


def test_a_seasonal_forecast_uses_the_periods_that_were_recorded():
    times = np.array([0, 1, 2, 4, 5, 6, 8])
    x = (10.0 * np.arange(7))[:, None]
    one = Forecaster("seasonal", period=3, cycles=2)
    (made,) = forecasts(x, times, one, {1: np.array([4, 5, 6])})
    # for step 6: steps 3 (missing) and 0; for 7: 4 and 1; for 9: 6 and 3 (missing)
    assert made[:, 0].tolist() == [0, (30 + 10) / 2, 50]


@pytest.mark.parametrize("period", [2, 7, 24])
def test_a_period_is_found_under_noise_and_none_in_noise(period):
    rng = np.random.default_rng(period)
    wave = np.tile(rng.normal(size=(period, 6)), (300 // period + 1, 1))[:300]
    assert find_period(wave + rng.normal(size=wave.shape)) == period
    assert find_period(rng.normal(size=(300, 6))) == 0
    assert find_period(rng.normal(size=(300, 6)).cumsum(axis=0)) == 0
    assert find_period(np.ones((300, 6))) == find_period(np.ones((3, 0))) == 0


# ---- scores --------------------------------------------------------------------------


def test_an_autoregression_is_as_predictable_as_theory_says():
    one, ten = score(100 + ar1(0.9, (24_000, 16)), horizons=[1, 10])
    last = row_of(one, "persistence")
    assert last["nmse"] == pytest.approx(0.20, rel=0.05)
    assert last["below_mean"] == pytest.approx(1 - last["nmse"])
    assert last["below_last"] == 0
    assert np.isnan(last["below_last_low"])
    assert row_of(ten, "persistence")["nmse"] == pytest.approx(
        2 * (1 - 0.9**10), rel=0.05
    )
    assert row_of(ten)["below_last_low"] > 0


def test_of_white_noise_the_mean_is_best():
    for scores in score(50 + np.random.default_rng(1).normal(size=(6000, 16))):
        best = row_of(scores)
        assert best["nmse"] == pytest.approx(1, rel=0.05)
        assert best["below_last"] == pytest.approx(0.5, rel=0.05)
        assert best["below_last_low"] < 0.5 < best["below_last_high"]


@pytest.mark.parametrize("missing", [0, 0.1])
def test_a_season_is_kept_across_missing_iterations(missing):
    rng = np.random.default_rng(2)
    x = np.tile(rng.gamma(2, 50, size=(7, 12)), (60, 1)) + rng.normal(size=(420, 12))
    there = np.flatnonzero(rng.random(420) >= missing)
    for scores in score(x[there], there, horizons=[1, 10]):
        best = row_of(scores)
        assert best["setting"].startswith("period 7")
        assert best["below_mean"] > 0.95


def test_of_every_fifth_iteration_the_shortest_horizon_is_five():
    x = 100 + ar1(0.98, (3000, 8))[::5]
    times = 5 * np.arange(600)
    found = score(x, times, spacing=5)
    assert [scores.horizon for scores in found] == [5, 10, 25, 50, 100]
    assert default_horizons(600) == (1, 2, 5, 10, 20)
    rows_apart = score(x, horizons=[1])[0]
    assert (
        row_of(found[0], "persistence")["mse"]
        == row_of(rows_apart, "persistence")["mse"]
    )
    with pytest.raises(AnalysisError, match="5 iterations or a multiple"):
        score(x, times, spacing=5, horizons=[1])


def test_persistence_replaces_a_choice_that_the_test_part_contradicts():
    """Still until the test part, where only the last value is any good."""
    rng = np.random.default_rng(7)
    x = 100 + rng.normal(size=(400, 4))
    x[300:] += 50 * np.cumsum(rng.normal(size=(100, 4)), axis=0)
    (scores,) = score(x, horizons=[1])
    assert row_of(scores)["method"] == "persistence"
    assert row_of(scores, "ema")["below_last_high"] < 0
    errors, of_last, _ = scores.errors
    assert np.array_equal(errors, of_last)


@pytest.mark.parametrize("run", ["run-top2-balanced.h5", "run-top8-balanced.h5"])
def test_no_choice_is_worse_than_persistence_in_a_real_run(run):
    """Loads of these runs move less in the last quarter than in that before."""
    with Trace.open(path(run)) as trace:
        for exchange in exchanges(trace, []):
            table, _ = forecast_tables(exchange, rows(trace, exchange))
            for row in table:
                if row["chosen"]:
                    assert not row["below_last"] < 0


def test_shares_within_a_tolerance_are_of_the_sum():
    x = np.tile([[100.0, 300.0]], (40, 1))
    x[31::2] = [125, 370]  # the test part alternates, from its second row on
    (scores,) = score(x, horizons=[1], period=0)
    last = row_of(scores, "persistence")
    targets = x[30:]
    wrong = np.abs(np.diff(x[29:], axis=0)) > 0.2 * targets
    assert last["within_20"] == pytest.approx(targets[~wrong].sum() / targets.sum())
    assert last["mape"] == pytest.approx(
        (np.abs(np.diff(x[29:], axis=0)) / targets).mean()
    )
    assert last["mse"] == pytest.approx((np.diff(x[29:], axis=0) ** 2).mean())


def test_the_true_probabilities_have_the_oracle_error():
    q = 1 / np.arange(1.0, 17)
    x = np.random.default_rng(4).multinomial(300, q / q.sum(), size=2000)
    for tokens in (300, np.full(2000, 300)):
        (scores,) = score(x, horizons=[1], tokens=tokens)
        assert row_of(scores)["nmse"] == pytest.approx(
            row_of(scores)["oracle_nmse"], rel=0.03
        )
    assert np.isnan(row_of(score(x, horizons=[1])[0])["oracle_nmse"])


def test_edges():
    for shape in ((0, 3), (1, 3), (5, 3), (40, 0)):
        assert not any(scores.rows for scores in score(np.ones(shape)))
    short = score(np.random.default_rng(0).poisson(9, (60, 4)), horizons=[1, 10, 100])
    assert [bool(scores.rows) for scores in short] == [True, True, False]
    still = row_of(score(np.full((60, 3), 8.0))[0])
    assert (still["method"], still["mse"], still["within_20"]) == ("persistence", 0, 1)
    assert np.isnan(still["below_mean"])
    nothing = row_of(score(np.zeros((60, 1)))[0])
    assert np.isnan([nothing["within_20"], nothing["mape"]]).all()
    with pytest.raises(AnalysisError, match="one is 0"):
        score(np.ones((60, 3)), horizons=[0])


# ---- intervals -----------------------------------------------------------------------


def test_the_interval_of_a_gain_covers_it():
    """Errors alike for several steps, of a forecast that is better by a fifth."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(400):
        level = np.exp(0.3 * lfilter([1], [1, -0.7], rng.normal(size=(2, 400))))
        found.append(gain(0.8 * level[0], level[1]))
    assert 0.9 <= np.mean([one.low <= 0.2 <= one.high for one in found]) <= 0.99
    assert np.mean([one.value for one in found]) == pytest.approx(0.2, abs=0.01)


@given(
    rates=arrays(float, (2, 24), elements=st.floats(1e-6, 1e6)),
    scale=st.floats(1e-9, 1e3),
)
def test_the_interval_of_a_gain_is_below_1(rates, scale):
    found = gain(scale * rates[0], rates[1])
    assert found.low - 1e-9 <= found.value <= found.high + 1e-9 <= 1 + 1e-9


def test_few_origins_and_no_errors_have_no_interval():
    exact = gain(np.zeros(24), np.ones(24))
    assert (exact.value, exact.low, exact.high) == (1, 1, 1)
    few = gain(np.ones(8), 2 * np.ones(8), span=4)
    assert few.value == 0.5
    alone = np.concatenate(([1.0], np.zeros(99)))
    for found in (few, gain(alone, 2 * alone), gain(alone, alone)):
        assert np.isnan([found.low, found.high]).all()
    assert np.isnan(gain(np.zeros(9), np.zeros(9)).value)
    assert np.isnan(gain(np.zeros(0), np.zeros(0)).value)


# ---- tables --------------------------------------------------------------------------


def tables(demand, **options):
    horizons = options.pop("horizons", None)
    trace = Trace.from_arrays(demand, k=1, row_bytes=1024, **options)
    (exchange,) = exchanges(trace, [])
    return forecast_tables(exchange, rows(trace, exchange), horizons=horizons)


def test_tokens_are_forecast_apart_from_shares():
    total = np.random.default_rng(0).permutation(np.arange(100, 180))
    demand = np.multiply.outer(total, np.tile([[1, 2, 3, 4]], (2, 1)))[:, None]
    table, claims = tables(demand)
    by = {row["subject"]: row for row in table if row["chosen"] and row["horizon"] == 1}
    assert list(by) == [
        *("expert_load", "load_shares", "total_load", "demand", "wire", "received")
    ]
    assert by["load_shares"]["mse"] < 1e-30
    assert by["total_load"]["mse"] > 100
    assert by["total_load"]["nmse"] == pytest.approx(by["expert_load"]["nmse"])
    assert table[0].keys() <= COLUMNS.keys()
    assert [claim.subject for claim in claims] == ["expert_load"] * 2 + ["wire"] * 2
    assert {(claim.layer, claim.horizon) for claim in claims} == {(0, 1), (0, 2)}
    table, _ = tables(np.broadcast_to(demand[:1], demand.shape))
    assert "total_load" not in {row["subject"] for row in table}


def test_a_short_run_says_what_it_needs():
    demand = np.random.default_rng(1).poisson(50, (60, 1, 2, 4))
    table, claims = tables(demand, horizons=[1, 20])
    assert {row["horizon"] for row in table} == {1}
    assert claims[1].outcome.value == "too short"
    assert claims[1].needs == 4 * (4 * 20 + 19)


def test_numbers_of_iterations_are_time():
    walk = np.random.default_rng(2).normal(0, 0.1, (300, 1, 1, 8)).cumsum(axis=0)
    p = np.exp(walk) / np.exp(walk).sum(axis=3, keepdims=True)
    demand = np.random.default_rng(3).multinomial(2000, np.repeat(p, 4, axis=2))
    table, claims = tables(demand, iterations=5 * np.arange(300))
    assert sorted({row["horizon"] for row in table}) == [5, 10, 25, 50]
    assert {claim.horizon for claim in claims} == {5, 10, 25, 50}
    there = np.flatnonzero(np.random.default_rng(4).random(300) >= 0.1)
    some, _ = tables(demand[there], iterations=there, horizons=[1])
    every, _ = tables(demand, horizons=[1])
    for gap, whole in zip(some, every, strict=True):
        assert gap["origins"] < whole["origins"]
        if gap["method"] == "persistence":
            assert gap["mse"] == pytest.approx(whole["mse"], rel=0.1)
