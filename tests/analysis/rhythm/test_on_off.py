"""Rhythm: one description of a square wave, of training, and of nothing."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.analysis.rhythm.on_off import (
    MOST_BINS,
    rhythm,
)

pytestmark = pytest.mark.filterwarnings("error")

MS = 1_000_000


@pytest.mark.parametrize("duty", [0.5, 0.25])
def test_a_square_wave(duty):
    start = np.arange(40) * 8 * MS
    found = rhythm(start, start + int(duty * 8 * MS))
    assert found.duty == pytest.approx(duty, abs=1e-9)
    assert found.period_ns == pytest.approx(8 * MS, rel=1e-9)
    assert found.acf == pytest.approx(1, abs=1e-9)
    assert found.peak_to_mean == pytest.approx(1 / duty)
    assert found.burst_ns == pytest.approx(duty * 8 * MS)
    assert found.gap_ns == pytest.approx((1 - duty) * 8 * MS)
    assert (found.burst_cv, found.gap_cv, found.jitter) == (0, 0, 0)
    assert found.bursts == 40


def test_neither_order_nor_overlap_matters():
    start = np.arange(200) * 10 * MS
    end = start + np.tile([5, 6, 4, 9], 50) * MS
    mixed = np.random.default_rng(0).permutation(start.size)
    halves = np.concatenate((start[mixed], (start + end)[mixed] // 2))
    ends = np.concatenate((end[mixed], end[mixed]))
    np.testing.assert_equal(asdict(rhythm(halves, ends)), asdict(rhythm(start, end)))


@pytest.mark.slow
def test_bins_stay_few_for_short_bursts_in_a_long_run():
    start = np.arange(3000) * 1000 * MS
    found = rhythm(start, start + 1000)
    assert found.bin_ns >= 2999 * 1000 * MS / MOST_BINS
    assert found.period_ns == pytest.approx(1000 * MS, rel=1e-3)


@pytest.mark.parametrize("events", [([], []), ([1], [4]), ([1, 8], [4, 9])])
def test_what_cannot_be_told_is_nan(events):
    found = rhythm(*events)
    assert np.isnan([found.period_ns, found.acf, found.jitter]).all()
    assert found.bursts == len(events[0])


def test_a_square_wave_in_full():
    start = np.arange(60) * 8 * MS
    found = rhythm(start, start + 2 * MS)
    assert found.step_time is not None
    assert found.step_time.steps == 59
    assert found.step_time.max_ns == 8 * MS
    assert found.acf == pytest.approx(1)
    assert (found.cycles, found.cycle_bursts, found.regular) == (59, 1, 1)
    assert found.likeness == pytest.approx(1)
    assert found.cycle_ns == 8 * MS
    assert found.burst_lengths is not None
    assert found.burst_lengths.quantiles_ns == pytest.approx(np.full(5, 2 * MS))
    assert found.gap_lengths is not None
    assert found.gap_lengths.mean_ns == 6 * MS
    assert found.length_stationarity is not None
    assert (found.length_stationarity.kpss, found.length_stationarity.p) == (0, 0.1)
    assert found.observed_ns == 59 * 8 * MS


def test_what_was_not_observed_is_neither_on_nor_off():
    start = np.arange(100) * 10 * MS
    start[50:] += 5003 * MS  # a long evaluation, out of step with the period
    end = start + 3 * MS
    pause = (int(start[49]) + 10 * MS, int(start[50]))
    span = (0, int(start[-1]) + 10 * MS)
    blind = rhythm(start, end, span=span)
    assert blind.duty == pytest.approx(0.3 * 1000 / 6003, rel=1e-6)
    assert blind.gap_cv > 1
    seen = rhythm(
        start, end, span=span, observed=([span[0], pause[1]], [pause[0], span[1]])
    )
    assert seen.duty == pytest.approx(0.3)
    assert seen.gap_cv == 0
    assert seen.observed_ns == 1000 * MS
    assert seen.period_ns == pytest.approx(10 * MS, rel=1e-3)
    assert seen.acf == pytest.approx(1, abs=0.1)  # bins fall unevenly after it


def test_marks_tell_the_cycles_where_no_lag_does():
    rng = np.random.default_rng(3)
    length = rng.uniform(60, 140, 150) * MS
    begin = np.cumsum(length) - length
    offsets = np.array([0.2, 0.5, 0.7])
    start = np.rint((begin[:, None] + length[:, None] * offsets).ravel())
    end = start + np.rint(np.repeat(length, 3) * 0.1)
    found = rhythm(
        start.astype(np.int64),
        end.astype(np.int64),
        marks=np.rint(begin).astype(np.int64),
    )
    assert found.likeness > 0.95
    assert found.cycle_ns == pytest.approx(100 * MS, rel=0.1)
    assert found.position == pytest.approx(offsets, rel=0.05)
    assert found.jitter == pytest.approx(0.8 / 12**0.5, rel=0.15)
    assert found.acf < 0.5
    assert found.step_time is not None
    assert found.step_time.cv == found.jitter


def test_bursts_at_random_places_of_steps_have_no_period_but_steps_do():
    rng = np.random.default_rng(7)
    marks = np.arange(101) * 8 * MS
    start = marks[:-1] + rng.integers(0, 8 * MS, 100)
    found = rhythm(start, start + MS, marks=marks)
    assert np.isnan(found.period_ns)
    assert abs(found.acf) < 0.3
    assert (found.cycle_ns, found.jitter) == (8 * MS, 0)
    unmarked = rhythm(start[:20], start[:20] + MS)
    assert np.isnan([unmarked.acf, unmarked.jitter]).all()
    assert unmarked.step_time is None


def test_slow_steps_are_part_of_the_jitter():
    length = np.full(400, 10 * MS)
    length[10::20] = 40 * MS
    marks = np.concatenate(([0], np.cumsum(length)))
    found = rhythm(marks[:-1], marks[:-1] + 2 * MS, marks=marks)
    assert found.period_ns == 10 * MS
    assert found.jitter == pytest.approx(length.std() / length.mean())
    times = found.step_time
    assert times is not None
    quantiles = (times.p50_ns, times.p90_ns, times.p99_ns, times.max_ns)
    assert quantiles == (10 * MS, 10 * MS, 40 * MS, 40 * MS)
    # an evaluation between two steps is none of them
    marks[200:] += 500 * MS
    pause = ([0, int(marks[200])], [int(marks[200]) - 500 * MS, int(marks[-1])])
    paused = rhythm(marks[:-1], marks[:-1] + 2 * MS, marks=marks, observed=pause)
    assert paused.step_time is not None
    assert paused.step_time.max_ns == 40 * MS


events = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 30)), max_size=40)
times = st.lists(st.integers(0, 450), max_size=12)


@given(events, times, times, st.booleans())
def test_whatever_happened_is_told_or_not_known(rows, marks, seen, by_marks):
    start = np.array([r[0] for r in rows], np.int64)
    seen = np.array(sorted(seen)[: len(seen) // 2 * 2], np.int64).reshape(-1, 2)
    found = rhythm(
        start,
        start + np.array([r[1] for r in rows], np.int64),
        marks=sorted(marks) if by_marks else None,
        observed=(seen[:, 0], seen[:, 1]) if seen.size else None,
    )
    for value, low, high in (
        (found.duty, 0, 1),
        (found.acf, -1, 1),
        (found.regular, 0, 1),
        (found.likeness, -1, 1),
    ):
        assert np.isnan(value) or low - 1e-9 <= value <= high + 1e-9
    assert len(found.position) == found.cycle_bursts
    assert found.jitter != found.jitter or found.jitter >= 0
