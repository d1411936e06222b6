"""The typical iteration: a square wave is found as it is; bursts can be rescaled."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.analysis.typical import (
    BINS,
    bytes_until,
    rescaled,
    typical_iteration,
)
from moetraffic.data import path
from moetraffic.errors import AnalysisError
from moetraffic.trace import ALL_TO_ALL, Trace
from tests.analysis.clocked import MS, clocked, silent

pytestmark = pytest.mark.filterwarnings("error")


def test_gaps_stay_and_bursts_take_as_long_as_their_bytes() -> None:
    first, last = np.array([0, 5, 50, 100]), np.array([10, 20, 60, 101])
    size = np.array([100, 100, 40, 1000])
    given = np.array([-7, 0, 10, 20, 30, 50, 101, 111])
    begin, end, amount, marks = rescaled(first, last, size, given, bytes_s=10e9)
    assert (end - begin).tolist() == [20, 4, 100]
    assert (begin[1:] - end[:-1]).tolist() == [30, 40]  # as before
    assert amount.tolist() == [200, 40, 1000]
    assert marks.tolist() == [-7, 0, 10, 20, 30, 50, 194, 204]


def sent(trace: Trace, rank: int) -> np.ndarray:
    """Bytes that a rank sends to the other in each iteration."""
    wire = trace.wire(trace.find(operation=ALL_TO_ALL))
    return np.asarray(wire[:, rank, 1 - rank].reshape(-1, 2).sum(axis=1))


def test_a_square_wave_is_its_own_typical_iteration() -> None:
    trace = clocked()
    found = typical_iteration(trace)
    assert (found.period_ns, found.jitter) == (10 * MS, 0)
    at = (np.arange(BINS) + 0.5) / BINS
    expected = ((at > 0.3) & (at < 0.5)) | ((at > 0.6) & (at < 0.8))
    assert (found.on > 0.5).tolist() == expected.tolist()
    assert found.on.mean() == pytest.approx(0.4)
    # the bytes of one iteration, in 4 of its 10 ms
    bytes_sent = sent(trace, found.rank)
    assert bytes_sent.min() - 1 <= found.bytes_s.mean() * 0.01 <= bytes_sent.max() + 1
    assert (found.bytes_s[found.on == 0] < 1e-3).all()


def test_a_faster_link_shortens_bursts_alone() -> None:
    trace = clocked()
    rank = typical_iteration(trace).rank
    rate = float(sent(trace, rank).mean()) / 2e-3  # 1 ms a burst
    found = typical_iteration(trace, link_bytes_s=rate)
    assert found.period_ns == pytest.approx(8 * MS, rel=0.05)
    assert found.on.mean() == pytest.approx(2 / 8, rel=0.1)


def test_a_captured_run_has_a_typical_iteration() -> None:
    with Trace.open(path("golden.h5")) as trace:
        found = typical_iteration(trace)
        steps = np.diff(trace.steps.start[:, found.rank])
    assert 0.5 * np.median(steps) <= found.period_ns <= 2 * np.median(steps)
    assert 0 < found.on.mean() < 1
    assert found.bytes_s.mean() > 0
    assert found.iterations > 5
    assert "phase" in found.about


def test_without_times_there_is_none() -> None:
    with silent() as trace, pytest.raises(AnalysisError, match="times are known"):
        typical_iteration(trace)


def test_bytes_sent_grow_to_their_sum() -> None:
    rng = np.random.default_rng(0)
    first = rng.integers(0, 60, 20)
    last, size = first + rng.integers(0, 12, 20), rng.integers(0, 9, 20)
    passed = bytes_until(np.arange(90), first, last, size)
    assert passed[-1] == pytest.approx(size.sum())
    assert (np.diff(passed) >= -1e-9).all()
