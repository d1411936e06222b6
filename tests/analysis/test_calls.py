"""Events merged into bursts, the time that they cover, and the times of steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.analysis.times.calls import (
    covered_ns,
    merge_intervals,
    observed_steps,
    on_the_wire,
    step_ns,
    step_starts,
    timed,
)
from moetraffic.errors import AnalysisError
from moetraffic.trace import UNKNOWN_TIME, Trace

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


@given(events, st.integers(0, 40), st.integers(0, 40))
def test_merged_bursts_cover_what_the_events_cover(pairs, low, length):
    start, end = on_clock(pairs)
    bursts = first, last = merge_intervals(start, end)
    on = painted(start, end)
    assert (painted(first, last) == on).all()
    assert (last > first).all()
    assert (first[1:] > last[:-1]).all()
    covered = covered_ns(bursts, np.array([low]), np.array([low + length]))
    assert covered.tolist() == [on[low : low + length].sum()]


@given(events, st.randoms())
def test_order_and_doubles_do_not_matter(pairs, random):
    shuffled = pairs * 2
    random.shuffle(shuffled)
    once, twice = (merge_intervals(*on_clock(some)) for some in (pairs, shuffled))
    assert np.array_equal(once, twice)


def test_bursts_and_gaps():
    start, end = merge_intervals([0, 100, 105, 300], [20, 110, 130, 340])
    assert (end - start).tolist() == [20, 30, 40]
    assert (start[1:] - end[:-1]).tolist() == [80, 170]
    nothing = merge_intervals([], [])
    assert [len(times) for times in nothing] == [0, 0]
    assert covered_ns(nothing, np.array([0]), np.array([9])).tolist() == [0]


@pytest.mark.parametrize(("start", "end"), [([5], [4]), ([UNKNOWN_TIME], [5])])
def test_what_are_no_events_is_refused(start, end):
    with pytest.raises(AnalysisError, match="known start and a later end"):
        merge_intervals(start, end)


def test_all_to_alls_begin_with_the_last_issue_and_steps_follow_each_other(
    captured: Path,
) -> None:
    with Trace.open(captured) as trace:
        calls, about = on_the_wire(trace, trace.layers, range(3, 5))
        assert about.startswith("all-to-alls with a phase, layers")
        issue, start, _ = trace.times(calls)
        (block,) = timed(trace, calls)
        assert (block.own == (start != UNKNOWN_TIME)).all()
        latest = np.minimum(issue.max(axis=1, keepdims=True), block.end)
        assert (block.begin == np.where(block.own, start, latest)).all()
        assert (block.wire == trace.wire(calls)).all()
        starts = step_starts(trace, 0)
        assert len(starts) == len(trace.iterations)
        assert step_ns(trace, 0) == pytest.approx(np.median(np.diff(starts)), rel=0.5)
        assert observed_steps(trace, 0) is None
        train = list(trace.steps.kind)
        train[5] = "evaluation"
        steps = replace(trace.steps, kind=tuple(train))
        first, last = observed_steps(trace.replaced(steps=steps), 0)
        assert first.tolist() == [starts[0], starts[6]]
        assert last[0] == trace.steps.end[4, 0]
