"""Waiting apart from transfer: exact cases of three ranks, and invariants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.replay.plan.operations import operations
from moetraffic.replay.results.durations import durations, parts, start_up
from moetraffic.trace.model import CLOCK
from tests.replay.results.timed import back_to_back, times_of

ISSUES = [[0, 70, 100], [10, 60, 120], [40, 90, 200]]
ENDS = [[70, 100, 150], [60, 120, 210], [90, 110, 220]]
"""Times of three ranks (rows) in three calls, us: transfers of 50, 30 and 20 us."""


@pytest.fixture
def plan(toy):
    made = operations(toy(world=3, iterations=(0,), layers=(0,)), dense=False)
    assert len(made) == 3
    return made


def test_waiting_ends_and_transfer_begins_with_the_last_call(plan):
    own = durations(plan, times_of(plan, ISSUES, ENDS))
    np.testing.assert_allclose(own.transfer_s * 1e6, [50, 30, 20])
    np.testing.assert_allclose(own.call_s * 1e6, [70, 60, 90])
    # a member that ends before the last one calls has waited until its own end
    np.testing.assert_allclose(own.wait_s * 1e6, [70, 50, 130])
    np.testing.assert_allclose(own.inside_s * 1e6, [170, 110, 160])
    np.testing.assert_allclose(own.rank_wait_s * 1e6, [110, 140, 0])
    np.testing.assert_allclose(own.rank_inside_s * 1e6, [150, 200, 90])
    assert own.waiting() == pytest.approx(250 / 440)
    assert own.waiting(np.array([1])) == pytest.approx(50 / 110)
    assert own.last.tolist() == [2, 2, 2]
    # calls add up to more than the wall time, transfers do not
    assert own.call_s.sum() * 1e6 == pytest.approx(220)
    assert own.transfer_s.sum() < own.wall_s[0] == pytest.approx(200e-6)
    assert own.pass_s == pytest.approx(220e-6)


def test_clock_offsets_change_no_duration_and_their_errors_add_up(toy):
    plan = operations(toy(world=3, iterations=range(3), groups=[(0, 1), (1, 2)]))
    times = back_to_back(plan, lambda r, o: 1000 + 13 * r + o, skew=200)
    clocks = np.zeros(3, CLOCK)
    clocks["rank"], clocks["offset_ns"] = range(3), [0, 10_000_000, -999_999]
    clocks["error_ns"] = [0, 40, 90]
    shifted = {
        rank: replace(
            timing,
            **{
                name: getattr(timing, name) - clocks["offset_ns"][rank]
                for name in ("issue", "end")
            },
        )
        for rank, timing in times.items()
    }
    one = durations(plan, times)
    other = durations(plan, shifted, clocks, ["a", "b", "c"])
    for name in ("call_s", "transfer_s", "last", "wall_s", "pass_s"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert not one.error_s.any()
    for number, error in ((0, 40e-9), (1, 130e-9), (2, 130e-9)):
        # of ranks 0 and 1, 1 and 2, and all: the two least exact clocks
        assert other.error_s[plan.group == number] == pytest.approx(error)
    # ranks of one host share its clock
    same = durations(plan, shifted, clocks, ["a", "b", "b"])
    assert not same.error_s[plan.group == 1].any()
    assert same.error_s[plan.group == 0] == pytest.approx(90e-9)


@given(
    late=st.lists(st.integers(0, 500), min_size=9, max_size=9),
    moves=st.lists(st.integers(1, 300), min_size=3, max_size=3),
)
def test_transfers_of_a_chain_never_exceed_the_wall_time(toy, late, moves):
    """Each rank computes before each call; all end ``moves`` after the last call."""
    plan = operations(toy(world=3, iterations=(0,), layers=(0,)), dense=False)
    now = np.zeros(3, np.int64)
    issues, ends = np.zeros((2, 3, 3), np.int64)
    for n in range(3):
        issues[:, n] = now + np.reshape(late, (3, 3))[n]
        now = ends[:, n] = np.full(3, issues[:, n].max() + moves[n])
    own = durations(plan, times_of(plan, issues, ends))
    np.testing.assert_allclose(own.transfer_s * 1e6, moves)
    waits = (issues.max(axis=0) - issues).sum()
    assert own.wait_s.sum() * 1e6 == pytest.approx(waits)
    assert own.transfer_s.sum() <= own.wall_s[0] + 1e-12
    assert 0 <= own.waiting() < 1


def test_operations_of_the_first_iteration_alone_are_start_up(toy):
    trace = toy(world=2, iterations=range(4))
    rows = trace.occurrences
    gradient = np.array([s.label == "gradient_sync" for s in trace.sites])[rows.site]
    some = trace.select(np.flatnonzero(~gradient | (rows.iteration == 0)))
    plan = operations(some)
    early = np.flatnonzero(start_up(plan))
    assert [plan.name(n) for n in early] == ["iteration 0, gradient_sync, call 0"]
    found = {(by, label): at for by, label, at in parts(plan)}
    assert found["start-up", ""].tolist() == early.tolist()
    assert not set(found["all", ""]) & set(early)
    assert ("operation", "all_reduce") not in found
    # two iterations do not distinguish a broadcast at the start from one that is rare
    assert not start_up(operations(some, iterations=range(2))).any()
    # of a part of the run, whose first iteration is not that of the run
    alone = trace.select(np.flatnonzero(~gradient | (rows.iteration == 1)))
    assert not start_up(operations(alone, iterations=range(1, 4))).any()
