"""Cycles: where they begin, what recurs in them, and what wanders."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.analysis.rhythm.cycles import Cycles, cycle_starts, cycles
from moetraffic.analysis.times.intervals import merge_intervals

pytestmark = pytest.mark.filterwarnings("error")

US = 1000


def training(seed: int, wander: float = 0.0, shake: float = 0.0, number: int = 400):
    """Cycles of 100 us with bursts at 10, 30 and 45 us; both errors in us."""
    rng = np.random.default_rng(seed)
    length = rng.normal(100, wander, number)
    begin = np.cumsum(length) - length
    at = begin[:, None] + np.array([10, 30, 45]) + rng.normal(0, shake, (number, 3))
    start = np.rint(at.ravel() * US).astype(np.int64)
    return start, start + 5 * US, np.rint(begin * US).astype(np.int64)


def variation(found: Cycles) -> float:
    return float(found.length_ns.std() / found.length_ns.mean())


def test_exact_cycles_have_exact_positions():
    start, end, marks = training(0)
    by_marks = cycles(start, end, period_ns=100 * US, marks=marks)
    assert by_marks.bursts == 3
    assert by_marks.regular == 1
    assert by_marks.position == pytest.approx([0.1, 0.3, 0.45])
    by_bursts = cycles(start, end, period_ns=100 * US)
    assert by_bursts.position == pytest.approx([0, 0.2, 0.35])
    for found in (by_marks, by_bursts):
        assert np.ptp(found.length_ns) == 0
        assert found.position_jitter == pytest.approx(np.zeros(3), abs=1e-12)
        assert found.likeness == pytest.approx(1)


def test_each_bursts_jitter_is_told_apart_from_the_cycles():
    start, end, marks = training(1, wander=6.0, shake=0.8)
    found = cycles(start, end, period_ns=100 * US, marks=marks)
    assert variation(found) == pytest.approx(0.06, rel=0.1)
    assert found.position_jitter == pytest.approx(np.full(3, 0.008), rel=0.1)


def test_without_marks_the_longest_gap_parts_cycles():
    start, end, _ = training(2, wander=5.0, shake=0.5)
    first, last = merge_intervals(start, end)
    borders = cycle_starts(first, last, period_ns=100 * US)
    # the first bursts of the cycles, whichever the run began with
    assert set(borders.tolist()) <= set(start[::3].tolist())
    assert len(borders) >= 398
    found = cycles(start, end, period_ns=100 * US)
    assert found.bursts == 3
    assert variation(found) == pytest.approx(0.05, rel=0.15)


def test_a_pause_is_no_cycle():
    start, end, marks = training(3)
    start[600:] += 730 * US
    end[600:] += 730 * US
    marks[200:] += 730 * US
    for found in (
        cycles(start, end, period_ns=100 * US),
        cycles(start, end, period_ns=100 * US, marks=marks),
    ):
        assert found.length_ns == pytest.approx(np.full(len(found.length_ns), 1e5))
        assert len(found.length_ns) >= 397
        assert found.regular == pytest.approx(1, abs=0.01)


def test_stretched_cycles_are_alike_though_their_lengths_differ():
    rng = np.random.default_rng(4)
    length = rng.uniform(70, 130, 300)
    begin = np.cumsum(length) - length
    start = np.rint((begin[:, None] + length[:, None] * [0.2, 0.6]).ravel() * US)
    end = start + np.rint(np.repeat(length, 2) * 0.1 * US)
    marks = np.rint(begin * US).astype(np.int64)
    found = cycles(
        start.astype(np.int64), end.astype(np.int64), period_ns=1e5, marks=marks
    )
    assert found.likeness > 0.98
    assert variation(found) > 0.15
    assert found.position == pytest.approx([0.2, 0.6], rel=0.02)


def test_random_bursts_are_not_alike():
    start = np.sort(np.random.default_rng(5).integers(0, 400 * 100 * US, 1200))
    marks = np.arange(400) * 100 * US
    found = cycles(start, start + 5 * US, period_ns=1e5, marks=marks)
    assert abs(found.likeness) < 0.03
    assert found.regular < 0.4


@pytest.mark.parametrize(
    ("start", "period"), [([], 10.0), ([1], 10.0), ([0, 10], 10.0), ([0, 5, 9], np.nan)]
)
def test_of_fewer_than_two_cycles_nothing_is_told(start, period):
    found = cycles(start, [s + 2 for s in start], period_ns=period)
    assert found.length_ns.size == found.position.size == found.bursts == 0
    assert np.isnan([found.regular, found.likeness]).all()
