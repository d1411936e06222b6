"""Rhythm: one description of a square wave, of training, and of nothing."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from moetraffic.analysis.rhythm import MOST_BINS, peak_to_mean, rhythm

pytestmark = pytest.mark.filterwarnings("error")

MS = 1_000_000


@pytest.mark.parametrize(("duty", "share"), [(0.5, 0.810569), (0.25, 0.540380)])
def test_a_square_wave(duty, share):
    start = np.arange(40) * 8 * MS
    found = rhythm(start, start + int(duty * 8 * MS))
    assert found.duty == pytest.approx(duty, abs=1e-9)
    assert found.period_ns == pytest.approx(8 * MS, rel=1e-9)
    assert found.strength == pytest.approx(1, abs=1e-9)
    assert found.fundamental_share == pytest.approx(share, abs=1e-6)
    assert found.peak_to_mean == pytest.approx(1 / duty)
    assert found.burst_ns == pytest.approx(duty * 8 * MS)
    assert found.gap_ns == pytest.approx((1 - duty) * 8 * MS)
    assert (found.burst_cv, found.gap_cv, found.jitter) == (0, 0, 0)
    assert found.bursts == 40


def training(seed: int, wander: float):
    """200 iterations of 250 ms whose length wanders, with eight bursts each."""
    rng = np.random.default_rng(seed)
    offset = np.array([10, 25, 50, 70, 110, 140, 170, 200]) * MS
    length = np.array([5, 6, 4, 9, 6, 5, 8, 7]) * MS
    step = np.cumsum(rng.normal(250 * MS, wander * 250 * MS, 200)).astype(np.int64)
    start = (step[:, None] + offset).ravel()
    return start, start + np.tile(length, 200)


def test_the_iteration_is_found_among_its_bursts():
    start, end = training(0, 0.002)
    found = rhythm(start, end)
    assert found.period_ns == pytest.approx(250 * MS, rel=0.005)
    assert found.jitter == pytest.approx(0.002, rel=0.2)
    assert found.duty == pytest.approx(0.2, rel=0.05)
    assert found.bursts == 1600


def test_wide_bins_and_a_range_find_it_though_it_wanders():
    start, end = training(1, 0.03)
    around = (125.0 * MS, 500.0 * MS)
    found = rhythm(start, end, bin_ns=8 * MS, period_range_ns=around)
    assert found.period_ns == pytest.approx(250 * MS, rel=0.02)
    assert found.jitter == pytest.approx(0.03, rel=0.2)


def test_neither_order_nor_overlap_matters():
    start, end = training(2, 0.01)
    mixed = np.random.default_rng(0).permutation(start.size)
    halves = np.concatenate((start[mixed], (start + end)[mixed] // 2))
    ends = np.concatenate((end[mixed], end[mixed]))
    np.testing.assert_equal(asdict(rhythm(halves, ends)), asdict(rhythm(start, end)))


def test_bins_stay_few_for_short_bursts_in_a_long_run():
    start = np.arange(3000) * 1000 * MS
    found = rhythm(start, start + 1000)
    assert found.bin_ns >= 2999 * 1000 * MS / MOST_BINS
    assert found.period_ns == pytest.approx(1000 * MS, rel=1e-3)


def test_short_gaps_can_be_bridged():
    start = np.sort(np.concatenate((np.arange(20) * 100, np.arange(20) * 100 + 12)))
    assert rhythm(start, start + 10).bursts == 40
    bridged = rhythm(start, start + 10, bridge_ns=2)
    assert (bridged.bursts, bridged.duty) == (20, 0.22)


@pytest.mark.parametrize("events", [([], []), ([1], [4]), ([1, 8], [4, 9])])
def test_what_cannot_be_told_is_nan(events):
    found = rhythm(*events)
    assert np.isnan([found.period_ns, found.strength, found.jitter]).all()
    assert found.bursts == len(events[0])


def test_peak_to_mean_of_many_series():
    series = np.array([[1.0, 0, 2], [3, 0, 2]])
    assert peak_to_mean(series) == pytest.approx([1.5, np.nan, 1], nan_ok=True)
    assert np.isnan(peak_to_mean([]))
