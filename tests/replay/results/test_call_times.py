"""Waiting apart from transfer: exact cases of three ranks, and invariants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.replay import make_plan
from moetraffic.replay.plan.program import Timing
from moetraffic.replay.results.audit import audit
from moetraffic.replay.results.baselines import Baselines, serialized_time
from moetraffic.replay.results.call_times import START_UP, measure, parts, start_up
from moetraffic.replay.results.result import summarize
from moetraffic.trace.model import UNKNOWN_TIME

ISSUES = [[0, 70, 100], [10, 60, 120], [40, 90, 200]]
ENDS = [[70, 100, 150], [60, 120, 210], [90, 110, 220]]
"""Times of three ranks (rows) in three calls, us: transfers of 50, 30 and 20 us."""


def times_of(plan, issues, ends, starts=None) -> dict[int, Timing]:
    """Times of all ranks, given in us by rank and operation."""
    found = {}
    for rank, program in plan.programs.items():
        order = program.operation
        issue, end = (np.array(t, np.int64)[rank][order] * 1000 for t in (issues, ends))
        start = issue
        if starts is not None:
            start = np.array(starts, np.int64)[rank][order] * 1000
        due = np.full(len(order), UNKNOWN_TIME, np.int64)
        found[rank] = Timing(
            operation=order, issue=issue, start=start, end=end, due=due
        )
    return found


@pytest.fixture
def plan(toy):
    made = make_plan(toy(world=3, iterations=(0,), layers=(0,)), dense=False)
    assert len(made) == 3
    return made


def test_waiting_ends_and_transfer_begins_with_the_last_call(plan):
    found = measure(plan, times_of(plan, ISSUES, ENDS))
    np.testing.assert_allclose(found.transfer_s * 1e6, [50, 30, 20])
    np.testing.assert_allclose(found.call_s * 1e6, [70, 60, 90])
    # a member that ends before the last one calls has waited until its own end
    np.testing.assert_allclose(found.wait_s * 1e6, [70, 50, 130])
    np.testing.assert_allclose(found.inside_s * 1e6, [170, 110, 160])
    np.testing.assert_allclose(found.rank_wait_s * 1e6, [110, 140, 0])
    np.testing.assert_allclose(found.rank_inside_s * 1e6, [150, 200, 90])
    assert found.waiting() == pytest.approx(250 / 440)
    assert found.waiting(np.array([1])) == pytest.approx(50 / 110)
    assert found.last.tolist() == [2, 2, 2]
    # calls add up to more than the wall clock says, transfers do not
    assert found.call_s.sum() * 1e6 == pytest.approx(220)
    assert found.transfer_s.sum() < found.wall_s[0] == pytest.approx(200e-6)


def test_bandwidth_and_ratios_are_by_transfer_and_iterations_by_wall_time(plan):
    times = times_of(plan, ISSUES, ENDS)
    measured = measure(plan, times)
    bound = np.array([25e-6, 20e-6, 5e-6])
    base = Baselines(bound_s=bound, pass_bound_s=40e-6)
    fidelity = audit(plan, times, measured, baselines=base)
    part = fidelity.part("operation", "all_to_all")
    link_bytes = float(plan.bottleneck_bytes.sum())
    assert part.busbw_gbs == pytest.approx(link_bytes / 100e-6 / 1e9)
    assert part.over_bound.value == pytest.approx(100 / 50)
    assert part.waiting == pytest.approx(250 / 440)
    walls = fidelity.part("iteration")
    assert measured.pass_s == pytest.approx((220 - 0) * 1e-6)
    assert walls.over_bound.value == pytest.approx(220 / 40)
    made = summarize(
        *(plan, measured),
        backend="gloo",
        nodes="aaa",
        verified="full",
        fidelity=fidelity,
    )
    assert made.total_busbw_gbs == pytest.approx(part.busbw_gbs)
    assert made.transfer_us.max == pytest.approx(50)
    assert made.time_us.max == pytest.approx(90)
    assert made.transfer_s == pytest.approx(100e-6)
    assert made.wall_s == pytest.approx(220e-6)
    assert made.waiting == pytest.approx(250 / 440)
    assert made.rank_waiting == pytest.approx((110 / 150, 140 / 200, 0))


def test_on_a_device_a_member_arrives_when_its_operation_starts(plan):
    starts = np.array(ENDS) - [[30, 20, 10]] * 3
    found = measure(plan, times_of(plan, np.zeros((3, 3)), ENDS, starts))
    moved = np.max(ENDS, axis=0) - starts.max(axis=0)
    np.testing.assert_allclose(found.transfer_s * 1e6, moved)


@given(
    late=st.lists(st.integers(0, 500), min_size=9, max_size=9),
    moves=st.lists(st.integers(1, 300), min_size=3, max_size=3),
)
def test_transfers_of_a_chain_never_exceed_the_wall_clock(toy, late, moves):
    """Each rank computes before each call; all end ``moves`` after the last call."""
    made = make_plan(toy(world=3, iterations=(0,), layers=(0,)), dense=False)
    now = np.zeros(3, np.int64)
    issues, ends = np.zeros((3, 3), np.int64), np.zeros((3, 3), np.int64)
    for n in range(3):
        issues[:, n] = now + np.reshape(late, (3, 3))[n]
        now = ends[:, n] = np.full(3, issues[:, n].max() + moves[n])
    found = measure(made, times_of(made, issues, ends))
    np.testing.assert_allclose(found.transfer_s * 1e6, moves)
    waits = (issues.max(axis=0) - issues).sum()
    assert found.wait_s.sum() * 1e6 == pytest.approx(waits)
    assert found.transfer_s.sum() <= found.wall_s[0] + 1e-12
    assert 0 <= found.waiting() < 1


def test_operations_of_the_first_iteration_alone_are_start_up(toy):
    trace = toy(world=2, iterations=range(4))
    rows = trace.occurrences
    gradient = np.array([s.label == "gradient_sync" for s in trace.sites])[rows.site]
    some = trace.select(np.flatnonzero(~gradient | (rows.iteration == 0)))
    plan = make_plan(some)
    early = np.flatnonzero(start_up(plan))
    assert [plan.name(n) for n in early] == ["iteration 0, gradient_sync, call 0"]
    found = {(by, label): at for by, label, at in parts(plan)}
    assert found[START_UP, ""].tolist() == early.tolist()
    assert not set(found["all", ""]) & set(early)
    assert ("operation", "all_reduce") not in found
    # two iterations do not tell a broadcast at the start from one that comes rarely
    assert not start_up(make_plan(some, iterations=range(2))).any()
    assert not start_up(make_plan(trace)).any()
    # of a part of the run, whose first iteration is not that of the run
    alone = trace.select(np.flatnonzero(~gradient | (rows.iteration == 1)))
    assert not start_up(make_plan(alone, iterations=range(1, 4))).any()
    # an evaluation before it is no training step
    steps = replace(trace.steps, kind=("evaluation", *trace.steps.kind[1:]))
    later = make_plan(alone.replaced(steps=steps))
    (one,) = np.flatnonzero(start_up(later))
    assert later.name(one) == "iteration 1, gradient_sync, call 0"


def test_operations_one_after_another_take_as_long_as_the_busiest_rank_needs(toy):
    plan = make_plan(toy(world=4, groups=[(0, 2), (3, 1)]), ranks=(), dense=False)
    took = np.arange(1, len(plan) + 1) / 1e6
    want = np.zeros(3)
    for at, iteration in enumerate(np.unique(plan.iteration)):
        sums = np.zeros(4)
        for n in np.flatnonzero(plan.iteration == iteration):
            sums[list(plan.groups[plan.group[n]])] += took[n]
        want[at] = sums.max()
    assert serialized_time(plan, took) == pytest.approx(want.sum())
