"""Bins: what has passed, and bursts read back from a series."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.analysis.rhythm.bins import (
    amount_until,
    bursts_of_series,
    on_off_series,
    rate_series,
    time_on_until,
)
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")

events = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 12), st.integers(0, 9)), max_size=20
)


@given(events)
def test_what_has_passed_ends_with_all_and_never_falls(rows):
    start = np.array([r[0] for r in rows], np.int64)
    end = start + np.array([r[1] for r in rows], np.int64)
    size = np.array([r[2] for r in rows], np.int64)
    at = np.arange(90)
    passed = amount_until(at, start, end, size)
    assert passed[0] == 0 or (start == 0).any()
    assert passed[-1] == pytest.approx(size.sum())
    assert (np.diff(passed) >= -1e-9).all()
    on = time_on_until(at, start, end)
    painted = np.zeros(90)
    for s, e in zip(start, end, strict=True):
        painted[s:e] = 1
    assert on.tolist() == np.concatenate(([0], np.cumsum(painted)[:-1])).tolist()


def test_times_since_1970_lose_nothing():
    origin = 1_763_740_800_123_456_789
    start = origin + np.arange(5) * 10
    since = np.arange(50)
    near = amount_until(since, start - origin, start - origin + 3, np.full(5, 6))
    far = amount_until(since, start, start + 3, np.full(5, 6), origin=origin)
    assert far.tolist() == near.tolist()
    series = rate_series(start, start + 3, np.full(5, 6), bin_ns=1)
    assert series[:12].tolist() == [2e9] * 3 + [0] * 7 + [2e9] * 2


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=2, max_size=9)
)
def test_bursts_come_back_from_their_series(runs):
    lengths = np.array(runs)
    start = np.cumsum(lengths.sum(axis=1)) - lengths.sum(axis=1)
    end = start + lengths[:, 0]
    span = (0, int(start[-1] + lengths[-1].sum()))
    series = on_off_series(start * 7, end * 7, bin_ns=7, span=(0, span[1] * 7))
    begin, finish = bursts_of_series(series, bin_ns=7)
    assert begin.tolist() == (start * 7).tolist()
    assert finish.tolist() == (end * 7).tolist()


def test_hysteresis_keeps_a_burst_whole_where_one_threshold_cuts_it():
    series = [0, 8, 10, 4, 9, 3, 10, 0, 2, 0]
    whole = bursts_of_series(series, bin_ns=1, rise=0.5, fall=0.25)
    assert [a.tolist() for a in whole] == [[1], [7]]
    cut = bursts_of_series(series, bin_ns=1, rise=0.5, fall=0.5)
    assert [a.tolist() for a in cut] == [[1, 4, 6], [3, 5, 7]]
    # a small burst never rises, however long it lasts
    assert bursts_of_series([10, 0, 2, 2, 2], bin_ns=1, rise=0.5)[0].tolist() == [0]


def test_the_reference_is_named():
    series = np.tile([0.0, 0, 0, 10], 50)
    series[7] = 1000  # an outlier
    assert len(bursts_of_series(series, bin_ns=1, of="peak")[0]) == 1
    assert len(bursts_of_series(series, bin_ns=1, of="top")[0]) == 50
    assert len(bursts_of_series(series, bin_ns=1, of="mean", rise=1.0)[0]) == 50


def test_a_bin_that_was_not_seen_is_off():
    at = bursts_of_series([5, np.nan, 5, 5, np.nan], bin_ns=2, start_ns=100)
    assert [a.tolist() for a in at] == [[100, 104], [102, 108]]


@pytest.mark.parametrize("series", [[], [0, 0], [np.nan, np.nan]])
def test_nothing_has_no_bursts(series):
    assert bursts_of_series(series, bin_ns=1)[0].size == 0


@pytest.mark.parametrize(
    "wrong", [{"rise": 0}, {"rise": 0.1, "fall": 0.2}, {"of": "median"}, {"bin_ns": 0}]
)
def test_thresholds_out_of_order_are_refused(wrong):
    with pytest.raises(AnalysisError):
        bursts_of_series([1, 0], **{"bin_ns": 1, **wrong})
