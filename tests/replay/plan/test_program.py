"""A plan does exactly what the trace says, in the order in which each rank did it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moetraffic.errors import ReplayError
from moetraffic.replay import make_plan
from moetraffic.trace.model import UNKNOWN_TIME
from moetraffic.trace.panel import ArrayPanel
from tests.timed import with_times


def matrices(plan) -> dict[int, np.ndarray]:
    """Each operation's matrix over the world, put together from all programs."""
    found = {}
    for operation in range(len(plan)):
        sent = np.zeros((plan.world, plan.world), np.int64)
        received = np.zeros_like(sent)
        for rank, program in plan.programs.items():
            for n in np.flatnonzero(program.operation == operation):
                members = list(plan.groups[program.group[n]])
                sent[rank, members] += program.sends(n)
                received[members, rank] += program.receives(n)
        np.testing.assert_array_equal(sent, received)
        found[operation] = sent
    return found


@pytest.mark.parametrize(
    ("world", "groups"), [(2, None), (4, [(0, 2), (3, 1)]), (5, [(4, 0, 2), (1, 3)])]
)
def test_programs_move_the_traces_bytes_between_the_same_ranks(toy, world, groups):
    trace = toy(world=world, groups=groups)
    plan = make_plan(trace, dense=False)
    found = matrices(plan)
    for operation, occurrence in enumerate(plan.occurrence):
        site = trace.sites[trace.occurrences.site[occurrence]]
        ranks = list(trace.groups[site.group].ranks)
        want = np.zeros((world, world), np.int64)
        want[np.ix_(ranks, ranks)] = trace.wire(np.array([occurrence]))[0]
        np.testing.assert_array_equal(found[operation], want)
        off = want * ~np.eye(world, dtype=bool)
        assert plan.total_bytes[operation] == want.sum()
        assert plan.network_bytes[operation] == off.sum()
        busiest = max(off.sum(axis=0).max(), off.sum(axis=1).max())
        assert plan.bottleneck_bytes[operation] == busiest
        largest = max(want.sum(axis=0).max(), want.sum(axis=1).max())
        assert plan.largest_bytes[operation] == largest
    everything = sum(found.values())
    np.testing.assert_array_equal(plan.rank_bytes, everything.sum(axis=1))


def test_each_rank_keeps_its_own_order(toy):
    trace = toy(world=4, groups=[(0, 2), (3, 1)])
    plan = make_plan(trace, dense=False)
    assert len(plan) == 3 * 2 * 2 * 3  # iterations, groups, layers, calls
    for rank, program in plan.programs.items():
        sites = [plan.sites[s] for s in plan.site[program.operation]]
        when = plan.iteration[program.operation].tolist()
        told = [(i, s.layer, s.phase) for i, s in zip(when, sites, strict=True)]
        assert told == [
            (i, layer, phase)
            for i in range(3)
            for layer in (3, 1)
            for phase in ("", "dispatch", "combine")
        ]
        assert {rank in plan.groups[g] for g in program.group} == {True}


def test_where_times_are_unknown_the_order_is_that_of_the_sites(toy):
    trace = toy(iterations=(0,))
    assert make_plan(trace).programs[0].operation.tolist() == [3, 4, 5, 0, 1, 2, 6]
    unknown = np.full(trace.panels["call_2/issue"].shape, UNKNOWN_TIME)
    plan = make_plan(with_times(trace, {"issue": {2: unknown}}))
    assert plan.programs[0].operation.tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_buffers_hold_the_largest_operation(toy):
    plan = make_plan(toy(world=3), dense=False)
    for program in plan.programs.values():
        sends = [int(program.sends(n).sum()) for n in range(len(program))]
        receives = [int(program.receives(n).sum()) for n in range(len(program))]
        assert program.buffer_bytes == (max(sends), max(receives))


def test_only_asked_iterations_are_planned(toy):
    trace = toy(iterations=range(10))
    whole = make_plan(trace, dense=False)
    part = make_plan(trace, iterations=range(3, 5), dense=False)
    assert set(part.iteration.tolist()) == {3, 4}
    assert set(part.occurrence.tolist()) == {
        o for o, i in zip(whole.occurrence, whole.iteration, strict=True) if i in (3, 4)
    }
    assert part.left_out == {"all_reduce": 2}
    assert whole.left_out == {"all_reduce": 10}


def test_only_asked_ranks_get_a_program_and_the_rest_is_the_same(toy):
    trace = toy(world=4, groups=[(0, 2), (3, 1)])
    whole, one, none = (make_plan(trace, ranks=r) for r in (None, (2,), ()))
    assert list(one.programs) == [2]
    assert not none.programs
    assert whole.digest == one.digest == none.digest
    assert (one.programs[2].send_bytes == whole.programs[2].send_bytes).all()
    assert (one.checksum == whole.checksum).all()


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10**6), more=st.integers(1, 1 << 40))
def test_the_digest_tells_any_changed_byte_count(toy, place, more):
    trace = toy()
    panel = trace.panels["call_2/wire"]
    wire = panel.read(0, panel.shape[0]).copy()
    cells = wire[1:].reshape(-1)  # the first matrix is that of several calls
    cells[place % cells.size] += more
    other = trace.replaced(panels=trace.panels | {"call_2/wire": ArrayPanel(wire)})
    a, b = make_plan(trace), make_plan(other)
    assert a.digest != b.digest
    (differs,) = np.flatnonzero(a.checksum != b.checksum)
    assert (a.occurrence == b.occurrence).all()
    same = np.delete(np.arange(len(a)), differs)
    assert (a.total_bytes[same] == b.total_bytes[same]).all()
    assert b.total_bytes[differs] - a.total_bytes[differs] == more


def test_the_digest_tells_groups_and_iterations(toy):
    plans = [
        make_plan(toy(world=4, groups=[(0, 2), (1, 3)])),
        make_plan(toy(world=4, groups=[(0, 1), (2, 3)])),
        make_plan(toy(world=4, groups=[(0, 2), (1, 3)], iterations=(0, 1, 3))),
    ]
    assert len({p.digest for p in plans}) == 3


def test_a_large_trace_is_read_in_blocks_with_the_same_result(toy, monkeypatch):
    trace = toy(world=4, groups=[(0, 1, 2), (3,)], iterations=range(30))
    whole = make_plan(trace)
    monkeypatch.setattr("moetraffic.replay.plan.sizes._BLOCK_CELLS", 9 * 7)
    blocks = make_plan(trace)
    for rank in range(4):
        a, b = whole.programs[rank], blocks.programs[rank]
        assert (a.send_bytes == b.send_bytes).all()
        assert (a.receive_bytes == b.receive_bytes).all()
    assert (whole.checksum == blocks.checksum).all()


def test_operations_are_named_for_people(toy):
    plan = make_plan(toy())
    assert plan.name(0) == "iteration 0, layer 1, count_exchange, call 0"
    assert plan.name(4) == "iteration 1, layer 1, dispatch, micro-batch 0"


def test_another_number_of_ranks_is_refused(toy):
    with pytest.raises(ReplayError, match=r"trace has 2 and there are 4.*--nproc 2"):
        make_plan(toy(), world=4)


def test_absent_members_are_refused_with_what_is_complete(toy):
    trace = toy(iterations=range(5), absent=[(1, 3), (1, 4)])
    with pytest.raises(
        ReplayError,
        match=r"14 of 35 lack one \(rank 1 in iteration 3\).*--iterations 0:3",
    ):
        make_plan(trace)
    assert len(make_plan(trace, iterations=range(0, 3))) == 21
    with pytest.raises(ReplayError, match="choose other iterations"):
        make_plan(trace, iterations=range(3, 5))


def test_nothing_to_replay_is_refused(toy):
    with pytest.raises(ReplayError, match=r"iterations 7:9 of trace holds none"):
        make_plan(toy(), iterations=range(7, 9))
    with pytest.raises(ReplayError, match=r"has the layers 1, 3, but .* --layers"):
        make_plan(toy(), layers=[7])


def test_negative_bytes_are_refused(toy):
    trace = toy(iterations=(0,))
    wire = trace.panels["call_2/wire"].read(0, 5).copy()
    wire[1, 0, 1] = -8
    trace.panels["call_2/wire"] = ArrayPanel(wire)
    with pytest.raises(ReplayError, match="cannot be negative"):
        make_plan(trace)


@pytest.mark.slow
def test_planning_needs_no_torch():
    code = (
        "import sys, moetraffic.replay.__main__, moetraffic.replay.results.result;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
