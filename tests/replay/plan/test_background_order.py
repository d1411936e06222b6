"""Background operations stand where the pattern has them, between the exchanges."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from moetraffic.analysis.pattern_trace import pattern_trace
from moetraffic.replay.options import Options
from moetraffic.replay.plan.background import (
    expert_exchanges,
    layout_pattern,
    smallest,
    traffic_of,
)
from moetraffic.replay.plan.operations import KINDS
from moetraffic.replay.run import passes
from moetraffic.trace.model import ALL_TO_ALL
from tests.replay.conftest import make_trace, planned

from .test_launch_order import waiting


def beside(layout, *, iterations=2, micro_batch=1):
    """The pattern's own exchanges, with its dense calls as background."""
    layout = f"{layout},micro-batch={micro_batch}"
    pattern = layout_pattern(layout, "tiny")
    plan, programs = planned(
        pattern_trace(pattern, iterations=iterations),
        dense=False,
        background=traffic_of(layout, "tiny", pattern.layout.world),
    )
    return plan, programs, pattern


def sequence(plan, programs, rank):
    """(operation, ranks, layer, phase) of a rank's calls of the first iteration."""
    program = programs[rank]
    found = []
    for n, operation in enumerate(program.operation.tolist()):
        if plan.iteration[operation]:
            break
        site = plan.sites[plan.site[operation]]
        ranks = plan.groups[program.group[n]]
        found.append((site.operation, ranks, site.layer, site.phase))
    return found


def told(pattern, rank):
    calls = [e.call for e in pattern.program(rank)]
    groups = [
        next(g for g in pattern.layout.groups(c.group) if rank in g) for c in calls
    ]
    return [
        (c.operation, g, c.layer, c.phase)
        for c, g in zip(calls, groups, strict=True)
        if len(g) > 1 or c.operation == ALL_TO_ALL
    ]


@pytest.mark.parametrize(
    "layout", ["tp=2,dp=4,ep=4", "tp=2,dp=2,ep=2,accumulation=3", "dp=8,ep=8,zero=3"]
)
def test_each_rank_calls_in_the_order_of_the_pattern(layout):
    plan, programs, pattern = beside(layout)
    for rank in range(pattern.layout.world):
        assert sequence(plan, programs, rank) == told(pattern, rank)


@pytest.mark.parametrize(
    ("layout", "most"),
    [("tp=2,pp=2,dp=2,ep=2", 2), ("pp=2,dp=4,ep=4", 1), ("cp=2,dp=4,ep=2", 0)],
)
def test_stages_of_a_pipeline_keep_their_order_but_for_messages(layout, most):
    plan, programs, pattern = beside(layout)
    for rank in range(pattern.layout.world):
        mine = [c for c in sequence(plan, programs, rank) if c[0] != "send_recv"]
        theirs = [c for c in told(pattern, rank) if c[0] != "send_recv"]
        assert sorted(mine) == sorted(theirs)
        places = [
            [np.cumsum([c[0] == ALL_TO_ALL for c in calls])[n] for n in at]
            for calls in (mine, theirs)
            for at in [[n for n, c in enumerate(calls) if c[0] != ALL_TO_ALL]]
        ]
        off = np.abs(np.array(places[0]) - np.array(places[1]))
        # of 8 exchanges; another stage is a part of an iteration ahead or behind
        assert off.max(initial=0) <= most
    assert nx.is_directed_acyclic_graph(waiting(programs))


def test_the_next_exchange_waits_for_what_is_critical():
    plan, programs, _ = beside("tp=2,dp=2,ep=2")
    for program in programs.values():
        late = [
            plan.sites[s].label in ("gradient_sync", "gradient_norm")
            or plan.sites[s].label.endswith("_sync")
            for s in plan.site[program.operation]
        ]
        when = plan.iteration[program.operation]
        for n in range(1, len(program)):
            if when[n] != when[n - 1]:
                continue
            # everything of a micro-batch follows what was before it
            if not late[n - 1]:
                assert program.after[n] == n - 1
            # gradients are reduced beside others, and nothing waits for them
            assert program.after[n] < 0 or not late[program.after[n]]
        assert 1 < sum(late) < len(late) / 2
    for program in map(expert_exchanges, programs.values()):
        assert (np.diff(program.after) >= 0).all()
        assert (program.after < np.arange(len(program))).all()


def test_other_exchanges_are_mapped_to_the_same_share():
    """8 exchanges of the trace; the pattern has 4 of each micro-batch, 2 of them."""
    trace = make_trace(world=4, groups=[(0, 1, 2, 3)], iterations=(5,), layers=(1, 3))
    background = traffic_of("tp=2,dp=2,ep=2,micro-batch=1", "tiny", 4)
    _, programs = planned(trace, background=background, dense=False)
    program = programs[2]
    exchange = np.flatnonzero(program.stream == 0)
    assert len(exchange) == 6
    mine = np.flatnonzero(program.stream > 0)
    before = np.searchsorted(exchange, mine)
    places = [o.place for o in background.operations if 2 in background.groups[o.group]]
    assert before.tolist() == [int(np.floor(p * 6 + 1e-6)) for p in places]
    assert len(set(before.tolist())) > 3


def test_a_control_has_the_same_operations_at_their_smallest_sizes():
    plan, programs, _ = beside("tp=2,dp=2,ep=2")
    kinds = set()
    for program in programs.values():
        other = smallest(plan, program)
        dense = program.stream > 0
        # NCCL discards what is empty; none is larger than its own operation
        assert (other.send_size + other.receive_size)[dense].min() > 0
        assert (other.send_size <= program.send_size).all()
        assert (other.send_size + other.receive_size)[dense].max() <= 4 * 8 + 8
        assert (other.send_size == program.send_size)[~dense].all()
        assert (other.after == program.after).all()
        # it is what the third pass of a pair runs
        options = Options(trace=Path("run.h5"), repeat=1, pairs=2, verify="none")
        listed = passes(options, plan, program)
        names = ["run", "beside", "smallest", "alone", "alone", "smallest", "beside"]
        assert [name for name, _ in listed] == names
        assert (listed[2][1].send_size == other.send_size).all()
        kinds |= {KINDS[kind] for kind in program.kind[dense].tolist()}
    assert "all_reduce" in kinds
    assert len(kinds) > 1


def test_without_background_are_the_exchanges_alone():
    beside_4 = traffic_of("tp=2,dp=2,micro-batch=1", "tiny", 4)
    trace = make_trace(world=4, groups=[(0, 1), (2, 3)])
    _, programs = planned(trace, background=beside_4, dense=False)
    _, only = planned(trace, dense=False)
    for rank, program in programs.items():
        alone, want = expert_exchanges(program), only[rank]
        for name in ("send_bytes", "receive_bytes", "first", "operation", "batch"):
            assert getattr(alone, name).tolist() == getattr(want, name).tolist()
        assert (alone.after < np.arange(len(alone))).all()
