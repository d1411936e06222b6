"""A plan does exactly what the trace says, in the order in which each rank did it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moetraffic.errors import ReplayError
from moetraffic.replay.options import Options
from moetraffic.replay.plan import matrices as matrices_module
from moetraffic.replay.plan.operations import operations
from moetraffic.replay.run import counted_name
from moetraffic.replay.transport import Bound, Transport
from moetraffic.trace.model import UNKNOWN_TIME
from moetraffic.trace.panel import ArrayPanel
from moetraffic.trace.trace import Trace
from tests.replay.conftest import make_trace, planned
from tests.timed import with_times


def matrices(plan, programs) -> dict[int, np.ndarray]:
    """Each operation's matrix over the world, put together from all programs."""
    found = {}
    for operation in range(len(plan)):
        sent = np.zeros((plan.world, plan.world), np.int64)
        received = np.zeros_like(sent)
        for rank, program in programs.items():
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
    plan, programs = planned(trace, dense=False)
    found = matrices(plan, programs)
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
    plan, programs = planned(trace, dense=False)
    assert len(plan) == 3 * 2 * 2 * 3  # iterations, groups, layers, calls
    for rank, program in programs.items():
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
    assert planned(trace)[1][0].operation.tolist() == [3, 4, 5, 0, 1, 2, 6]
    unknown = np.full(trace.panels["call_2/issue"].shape, UNKNOWN_TIME)
    _, programs = planned(with_times(trace, {"issue": {2: unknown}}))
    assert programs[0].operation.tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_only_asked_iterations_are_planned(toy):
    trace = toy(iterations=range(10))
    whole = operations(trace, dense=False)
    part = operations(trace, iterations=range(3, 5), dense=False)
    assert set(part.iteration.tolist()) == {3, 4}
    assert set(part.occurrence.tolist()) == {
        o for o, i in zip(whole.occurrence, whole.iteration, strict=True) if i in (3, 4)
    }
    assert part.left_out == {"all_reduce": 2}
    assert whole.left_out == {"all_reduce": 10}


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10**6), more=st.integers(1, 1 << 40))
def test_the_digest_tells_any_changed_byte_count(toy, place, more):
    trace = toy()
    panel = trace.panels["call_2/wire"]
    wire = panel.read(0, panel.shape[0]).copy()
    cells = wire[1:].reshape(-1)  # the first matrix is that of several calls
    cells[place % cells.size] += more
    other = trace.replaced(panels=trace.panels | {"call_2/wire": ArrayPanel(wire)})
    a, b = operations(trace), operations(other)
    assert a.digest != b.digest
    (differs,) = np.flatnonzero(a.total_bytes != b.total_bytes)
    assert (a.occurrence == b.occurrence).all()
    same = np.delete(np.arange(len(a)), differs)
    assert (a.total_bytes[same] == b.total_bytes[same]).all()
    assert b.total_bytes[differs] - a.total_bytes[differs] == more


def test_the_digest_tells_groups_and_iterations(toy):
    plans = [
        operations(toy(world=4, groups=[(0, 2), (1, 3)])),
        operations(toy(world=4, groups=[(0, 1), (2, 3)])),
        operations(toy(world=4, groups=[(0, 2), (1, 3)], iterations=(0, 1, 3))),
    ]
    assert len({p.digest for p in plans}) == 3


def test_a_large_trace_is_read_in_blocks_with_the_same_result(toy, monkeypatch):
    trace = toy(world=4, groups=[(0, 1, 2), (3,)], iterations=range(30))
    plan, whole = planned(trace)
    monkeypatch.setattr(matrices_module, "BLOCK_CELLS", 9 * 7)
    again, blocks = planned(trace)
    for rank in range(4):
        assert (whole[rank].send_bytes == blocks[rank].send_bytes).all()
        assert (whole[rank].receive_bytes == blocks[rank].receive_bytes).all()
    assert plan.digest == again.digest


def test_another_number_of_ranks_is_refused(toy):
    with pytest.raises(ReplayError, match=r"trace has 2 and there are 4.*--nproc 2"):
        operations(toy(), world=4)


def test_absent_members_are_refused_with_what_is_complete(toy):
    trace = toy(iterations=range(5), absent=[(1, 3), (1, 4)])
    with pytest.raises(
        ReplayError,
        match=r"14 of 35 lack one \(rank 1 in iteration 3\).*--iterations 0:3",
    ):
        operations(trace)
    assert len(operations(trace, iterations=range(0, 3))) == 21
    with pytest.raises(ReplayError, match="choose other iterations"):
        operations(trace, iterations=range(3, 5))


def test_nothing_to_replay_is_refused(toy):
    with pytest.raises(ReplayError, match=r"iterations 7:9 of trace holds none"):
        operations(toy(), iterations=range(7, 9))
    with pytest.raises(ReplayError, match=r"has the layers 1, 3, but .* --layers"):
        operations(toy(), layers=[7])


def test_negative_bytes_are_refused(toy):
    trace = toy(iterations=(0,))
    wire = trace.panels["call_2/wire"].read(0, 5).copy()
    wire[1, 0, 1] = -8
    trace.panels["call_2/wire"] = ArrayPanel(wire)
    with pytest.raises(ReplayError, match="cannot be negative"):
        operations(trace)


# ---- verification and warm-up ----------------------------------------------------


@pytest.fixture(scope="module")
def overlapped_on_rank_0() -> Trace:
    """Rank 0 called each all-reduce before its last all-to-all had ended.

    Rank 1 called every operation after the end of the one before.
    """
    trace = make_trace(world=2, iterations=(0, 1))
    issue = trace.panels["call_2/issue"].read(0, len(trace.occurrences)).copy()
    reduces = [site.operation == "all_reduce" for site in trace.sites]
    reduced = np.array(reduces)[trace.occurrences.site]
    for iteration in (0, 1):
        here = trace.occurrences.iteration == iteration
        last = issue[here & ~reduced, 0].max()
        issue[here & reduced, 0] = last + 5  # each all-to-all takes 20 ns
    return with_times(trace, {"issue": {2: issue}, "start": {2: issue}})


def test_all_ranks_verify_in_one_order(overlapped_on_rank_0):
    plan, programs = planned(overlapped_on_rank_0)
    assert [programs[rank].chained for rank in (0, 1)] == [False, True]
    # operations are numbered by site, then by iteration
    verified = [*range(0, len(plan), 2), *range(1, len(plan), 2)]
    options = Options(trace=Path("run.h5"))
    for program in programs.values():
        assert plan.order(program.operation).tolist() == verified
        names = [counted_name(options, plan, program, n) for n in range(14)]
        assert names == [plan.name(operation) for operation in verified]
        # the pass after it is in the order of the program
        names = [counted_name(options, plan, program, 14 + n) for n in range(14)]
        assert names == [plan.name(operation) for operation in program.operation]


def test_a_correct_network_is_found_correct(
    overlapped_on_rank_0, replay_with, tmp_path
):
    path = tmp_path / "overlapped.h5"
    overlapped_on_rank_0.save(path)
    assert replay_with(path).data["verified"] == "full"


def test_the_warm_up_runs_each_group_kind_and_size_class_once(toy, monkeypatch):
    plan, programs = planned(toy(world=4, groups=[(0, 2), (1, 3)], iterations=range(6)))
    size_class = np.log2(plan.largest_bytes + 1).astype(int)
    keys = list(zip(plan.group, plan.kind, size_class, strict=True))
    moves, ran = Transport(), set()
    monkeypatch.setattr(moves, "run", lambda launch: None)
    for rank in range(4):
        bound, own = Bound(plan, programs[rank], moves), []
        monkeypatch.setattr(bound, "bind", own.append)
        bound.warm_up()
        ran |= set(programs[rank].operation[own].tolist())
    assert len({keys[n] for n in ran}) == len(ran) == len({*keys})
    assert 6 < len(ran) < len(plan) / 3
