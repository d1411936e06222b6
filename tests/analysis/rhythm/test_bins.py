"""Bins: amounts and on-time up to given times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.analysis.rhythm.bins import amount_until, time_on_until

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
