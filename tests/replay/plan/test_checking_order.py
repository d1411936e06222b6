"""Ranks verify and warm up operations in one order, whatever each did in the capture.

In the capture of these traces rank 0 issued each iteration's all-reduce before its last
all-to-all had ended, and rank 1 issued every operation after the end of the one before.
"""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.replay import make_plan
from moetraffic.trace.trace import Trace
from tests.replay.conftest import make_trace
from tests.timed import with_times


@pytest.fixture(scope="module")
def overlapped_on_rank_0() -> Trace:
    trace = make_trace(world=2, iterations=(0, 1))
    issue = trace.panels["call_2/issue"].read(0, len(trace.occurrences)).copy()
    reduces = [site.operation == "all_reduce" for site in trace.sites]
    reduced = np.array(reduces)[trace.occurrences.site]
    for iteration in (0, 1):
        here = trace.occurrences.iteration == iteration
        last = issue[here & ~reduced, 0].max()
        issue[here & reduced, 0] = last + 5  # each all-to-all takes 20 ns
    return with_times(trace, {"issue": {2: issue}, "start": {2: issue}})


def test_all_ranks_verify_in_the_order_of_the_operations(overlapped_on_rank_0):
    plan = make_plan(overlapped_on_rank_0)
    assert [plan.programs[rank].chained for rank in (0, 1)] == [False, True]
    # operations are numbered by site, then by iteration
    verified = [*range(0, len(plan), 2), *range(1, len(plan), 2)]
    for rank, program in plan.programs.items():
        order = plan.checking_order(rank)
        assert program.operation[order].tolist() == verified
        names = [plan.counted_name(rank, n, verified=True) for n in range(14)]
        assert names == [plan.name(operation) for operation in verified]
        # the pass after it is in the order of the program
        names = [plan.counted_name(rank, 14 + n, verified=True) for n in range(14)]
        assert names == [plan.name(operation) for operation in program.operation]


def test_a_correct_network_is_found_correct(
    overlapped_on_rank_0, replay_with, tmp_path
):
    path = tmp_path / "overlapped.h5"
    overlapped_on_rank_0.save(path)
    result = replay_with(path)
    assert (result.operations, result.verified) == (14, "full")
