"""The typical iteration: a square wave is found as it is; bursts can be rescaled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moetraffic import Trace
from moetraffic.analysis.rhythm.typical_iteration import (
    BINS,
    find_typical_iteration,
    rescaled,
)
from moetraffic.errors import AnalysisError
from moetraffic.trace import ALL_TO_ALL, UNKNOWN_TIME
from tests.timed import with_times

MS = 1_000_000


def test_gaps_stay_and_bursts_take_as_long_as_their_bytes() -> None:
    first, last = np.array([0, 5, 50, 100]), np.array([10, 20, 60, 101])
    size = np.array([100, 100, 40, 1000])
    begun, ended, marks = rescaled(
        first, last, size, np.array([-7, 0, 10, 20, 30, 50, 101, 111]), bytes_s=10e9
    )
    assert (ended - begun).tolist() == [20, 4, 100]
    assert (begun[1:] - ended[:-1]).tolist() == [30, 40]  # as before
    assert marks.tolist() == [-7, 0, 10, 20, 30, 50, 194, 204]


def square(captured: Path) -> Trace:
    """A captured run with times of a square wave: 10 ms iterations, 2 ms bursts."""
    trace = Trace.open(captured)
    kept = trace.find(operation=ALL_TO_ALL, phase="dispatch", layer=1, slot=0)
    trace = trace.select(kept)
    start = timed(trace, (trace.occurrences.iteration * 10 + 3) * MS)
    steps = trace.steps
    marks = np.repeat(steps.iteration[:, None] * 10 * MS, 4, axis=1)
    return with_times(
        trace,
        {"issue": start, "start": start, "end": {4: start[4] + 2 * MS}},
        steps=replace(steps, start=marks, end=marks + 10 * MS),
        clocks=trace.clocks[:0],
    )


def timed(trace: Trace, at: np.ndarray) -> dict[int, np.ndarray]:
    """The same times of all calls for all four ranks."""
    return {4: np.repeat(at[:, None], 4, axis=1)}


def to_others(trace: Trace) -> np.ndarray:
    """Bytes that each rank sends to others in each dispatch, ``[n, 4]``."""
    sent = trace.wire(trace.find(operation=ALL_TO_ALL))
    return np.asarray(sent.sum(axis=2) - np.diagonal(sent, axis1=1, axis2=2))


def test_a_square_wave_is_its_own_typical_iteration(captured: Path) -> None:
    trace = square(captured)
    found = find_typical_iteration(trace)
    assert found.period_ns == pytest.approx(10 * MS)
    at = (np.arange(BINS) + 0.5) / BINS
    assert (found.on > 0.5).tolist() == ((at > 0.3) & (at < 0.5)).tolist()
    assert found.on.mean() == pytest.approx(0.2)
    sent = to_others(trace)[:, found.rank]
    # the bytes of one iteration, in 2 of its 10 ms
    assert sent.min() - 1 <= found.bytes_s.mean() * 0.01 <= sent.max() + 1
    assert (found.bytes_s[found.on == 0] < 1e-3).all()


def test_a_faster_link_shortens_bursts_alone(captured: Path) -> None:
    trace = square(captured)
    sent = to_others(trace)
    rate = float(sent[:, sent.sum(axis=0).argmax()].mean()) / 1e-3  # 1 ms a burst
    found = find_typical_iteration(trace, link_bytes_s=rate)
    assert found.period_ns == pytest.approx(9 * MS, rel=0.05)
    assert found.on.mean() == pytest.approx(1 / 9, rel=0.1)


def test_real_runs_have_a_cadence(captured: Path) -> None:
    with Trace.open(captured) as trace:
        found = find_typical_iteration(trace)
        steps = np.diff(trace.steps.start[:, found.rank])
    assert 0.5 * np.median(steps) <= found.period_ns <= 2 * np.median(steps)
    assert 0 < found.on.mean() < 1
    assert found.bytes_s.mean() > 0
    assert found.iterations > 10
    assert "phase" in found.about


def test_without_times_there_is_none(captured: Path) -> None:
    with Trace.open(captured) as trace:
        silent = trace.select(trace.find(operation=ALL_TO_ALL))
        never = timed(silent, np.full(len(silent.occurrences), UNKNOWN_TIME))
        silent = with_times(silent, dict.fromkeys(("issue", "start", "end"), never))
        with pytest.raises(AnalysisError, match="whose times are known"):
            find_typical_iteration(silent)
