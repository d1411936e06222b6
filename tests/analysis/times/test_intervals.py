"""Intervals: merging, duty, bursts and gaps, series in bins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.analysis.rhythm.bins import amount_until, on_off_series
from moetraffic.analysis.times.intervals import (
    mean_and_cv,
    merge_intervals,
    observed_span,
)
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")

events = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=25)


def on_clock(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    start = np.array([s for s, _ in pairs], np.int64)
    return start, start + np.array([d for _, d in pairs], np.int64)


def painted(start: np.ndarray, end: np.ndarray, length: int = 80) -> np.ndarray:
    """On or off in each ns, painted one event after another."""
    on = np.zeros(length, dtype=bool)
    for first, last in zip(start, end, strict=True):
        on[first:last] = True
    return on


@given(events)
def test_merged_bursts_cover_what_the_events_cover(pairs):
    start, end = on_clock(pairs)
    first, last = merge_intervals(start, end)
    assert (painted(first, last) == painted(start, end)).all()
    assert (last > first).all()
    assert (first[1:] > last[:-1]).all()


@given(events, st.randoms())
def test_order_and_doubles_do_not_matter(pairs, random):
    start, end = on_clock(pairs)
    shuffled = pairs * 2
    random.shuffle(shuffled)
    again = merge_intervals(*on_clock(shuffled))
    for one, other in zip(merge_intervals(start, end), again, strict=True):
        assert one.tolist() == other.tolist()


@given(events, st.integers(1, 7))
def test_series_and_duty_are_those_of_painted_time(pairs, width):
    start, end = on_clock(pairs)
    on = painted(start, end)
    span = (4, 74)
    bins = 70 // width
    expected = on[4 : 4 + bins * width].reshape(bins, width).mean(axis=1)
    series = on_off_series(start, end, bin_ns=width, span=span)
    assert series == pytest.approx(expected, abs=1e-12)


def test_the_shift_to_a_late_clock_changes_nothing():
    late = 1_750_000_000_000_000_000
    start = np.arange(50) * 1000
    near = on_off_series(start, start + 300, bin_ns=70)
    far = on_off_series(start + late, start + 300 + late, bin_ns=70)
    assert far.tolist() == near.tolist()


def test_whole_cycles_are_observed_where_no_span_is_given():
    start = np.arange(7) * 100
    assert observed_span(start, start + 25) == (0, 600)


def test_bursts_and_gaps():
    events = [0, 100, 105, 300], [20, 110, 130, 340]
    start, end = merge_intervals(*events)
    assert (end - start).tolist() == [20, 30, 40]
    assert mean_and_cv(end - start) == pytest.approx((30, np.sqrt(200 / 3) / 30))


def test_exponential_gaps_have_a_cv_of_one():
    rng = np.random.default_rng(0)
    gaps = rng.exponential(1e6, 20000).astype(np.int64) + 1
    first, last = merge_intervals(np.cumsum(gaps + 1000), np.cumsum(gaps + 1000) + 1000)
    mean, cv = mean_and_cv(first[1:] - last[:-1])
    assert mean == pytest.approx(1e6, rel=0.05)
    assert cv == pytest.approx(1, rel=0.05)


def test_nothing_seen_gives_nothing():
    assert merge_intervals([], [])[0].size == 0
    assert observed_span([3], [9]) is None
    assert on_off_series([], [], bin_ns=2, span=(0, 6)).tolist() == [0, 0, 0]
    assert on_off_series([3], [9], bin_ns=2).size == 0
    assert np.isnan(mean_and_cv([])).all()


@pytest.mark.parametrize(
    ("start", "end", "says"),
    [
        ([5], [4], "ends after it starts"),
        ([1, 2], [3], "one start and one end"),
        ([0.5], [1.5], "integers in ns"),
        ([np.iinfo(np.int64).min], [5], "leave those events out"),
    ],
)
def test_what_are_no_events_is_refused(start, end, says):
    with pytest.raises(AnalysisError, match=says):
        merge_intervals(start, end)


def test_bins_and_sizes_must_fit():
    with pytest.raises(AnalysisError, match="longer than 0"):
        on_off_series([0, 9], [1, 10], bin_ns=0)
    with pytest.raises(AnalysisError, match="one size"):
        amount_until([5], [0, 9], [1, 10], [1])
