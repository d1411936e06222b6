"""Operations are issued when the capture says, on streams that overlap or follow."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moetraffic.errors import ReplayError
from moetraffic.replay.pace import Pace, parse_pace, wait_until
from moetraffic.replay.plan.program import UNKNOWN_GAP
from moetraffic.trace.model import UNKNOWN_TIME
from tests.replay.conftest import planned
from tests.timed import with_times

MS = 1_000_000


def at_times(trace, when):
    """The trace with ``when(site, iteration) -> (issue, end)`` ns of all ranks."""
    every, width = trace.occurrences, trace.width[trace.occurrences.site]
    pairs = np.array(
        [
            when(trace.sites[s], i)
            for s, i in zip(every.site, every.iteration.tolist(), strict=True)
        ]
    )
    issue, end = (
        {w: np.repeat(pairs[width == w, at, None], w, 1) for w in {*width.tolist()}}
        for at in (0, 1)
    )
    return with_times(trace, {"issue": issue, "start": issue, "end": end})


def spaced(site, iteration):
    """A dispatch takes 1 ms, 4 ms later the combine begins; the all-reduce is last."""
    places = {"dispatch": 5, "combine": 10, "": 1}
    at = 40 * iteration + places[site.phase] + 15 * (site.layer == 3)
    if site.operation == "all_reduce":
        at = 40 * iteration + 35
    return at * MS, (at + 1) * MS


def beside(site, iteration):
    """As ``spaced``, but the all-reduce goes on from first dispatch to last combine."""
    if site.operation == "all_reduce":
        return (40 * iteration + 5) * MS + 1, (40 * iteration + 27) * MS
    return spaced(site, iteration)


def test_gaps_and_predecessors_are_the_captured_ones(toy):
    _, programs = planned(at_times(toy(iterations=(0, 1)), spaced))
    program = programs[1]
    assert program.chained
    assert program.after.tolist() == [*range(-1, 13)]
    # count, dispatch, combine of layer 1, then of layer 3, then the all-reduce
    each = [3, 4, 5, 3, 4, 9]
    assert program.gap_ns.tolist() == [g * MS for g in [0, *each, 5, *each]]
    issued = [1, 5, 10, 16, 20, 25, 35]
    assert program.due_ns.tolist() == [
        (t + 40 * i - 1) * MS for i in (0, 1) for t in issued
    ]


def test_what_the_capture_saw_overlap_may_overlap(toy):
    plan, programs = planned(at_times(toy(iterations=(0, 1)), beside))
    program = programs[0]
    assert plan.streams == ("experts", "world")
    assert not program.chained
    (reduce, _) = np.flatnonzero(program.stream == 1)
    # it waits for the count exchange alone, and nothing of its iteration waits for it
    assert program.after[reduce] == 0
    assert reduce not in program.after[:7].tolist()
    first_of_next = np.flatnonzero(plan.iteration[program.operation] == 1)[0]
    assert program.after[first_of_next] == reduce
    assert program.waits.all()


def test_unknown_times_leave_one_order_for_all_ranks(toy):
    trace = toy(world=4, groups=[(0, 2), (3, 1)])
    unknown = np.full(trace.panels["call_2/issue"].shape, UNKNOWN_TIME)
    plan, programs = planned(with_times(trace, {"issue": {2: unknown}}))
    for program in programs.values():
        assert set(program.gap_ns.tolist()) == {UNKNOWN_GAP}
        assert set(program.after.tolist()) == {-1}
    how = parse_pace("captured")
    with pytest.raises(ReplayError, match=r"needs the captured times.*--pace asap"):
        how.check_program(plan, programs[0], 60.0)


@given(wait_us=st.integers(-50, 1500))
@settings(max_examples=10, deadline=None)
def test_a_wait_never_ends_early(wait_us):
    due = time.monotonic_ns() + 1000 * wait_us
    assert wait_until(due) >= due


@given(factor=st.floats(0.001, 1000))
@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
def test_a_pace_reads_what_it_writes(factor):
    one = Pace(schedule="scaled", factor=float(f"{factor:g}"))
    assert parse_pace(str(one)) == one


@pytest.mark.parametrize(
    "text",
    ["fast", "scaled", "scaled:", "scaled:x", "asap:2", "scaled:0", "scaled:nan"],
)
def test_what_is_no_pace_is_refused(text):
    with pytest.raises(ReplayError):
        parse_pace(text)


def test_a_pace_that_cannot_be_kept_is_refused(toy):
    plan, programs = planned(at_times(toy(iterations=(0, 1)), spaced))
    with pytest.raises(ReplayError, match=r"rank 0 pauses for 9 s: raise --timeout"):
        parse_pace("scaled:1000").check_program(plan, programs[0], 5.0)
    with pytest.raises(ReplayError, match=r"rank 0 pauses for 0\.01 s"):
        parse_pace("open-loop").check_program(plan, programs[0], 0.005)
