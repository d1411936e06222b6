"""The whole engine on one of many ranks, over torch's process group without peers."""

from __future__ import annotations

import resource
import time

import numpy as np
import pytest
import torch.distributed as dist
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch.testing._internal.distributed.fake_pg import FakeStore

from moetraffic.launch import RankEnvironment
from moetraffic.replay import make_plan
from moetraffic.replay.backends.backend import Backend
from moetraffic.replay.execution.engine import Engine
from moetraffic.replay.execution.pace import parse_pace
from moetraffic.replay.plan.background import BackgroundPattern
from tests.replay.conftest import make_trace


class FakeGroups(Backend):
    """Process groups whose operations end at once and move nothing."""

    def __init__(self, monkeypatch):
        super().__init__("fake")
        initialize = dist.init_process_group

        def without_peers(name, *, rank, world_size, timeout, **_):
            initialize(
                name,
                store=FakeStore(),
                rank=rank,
                world_size=world_size,
                timeout=timeout,
            )

        monkeypatch.setattr(dist, "init_process_group", without_peers)


def many(world):
    """A trace of groups of 64 ranks, and background traffic of groups across them."""
    trace = make_trace(
        world=world,
        groups=[tuple(range(r, r + 64)) for r in range(0, world, 64)],
        iterations=range(3),
        largest=300,
    )
    layout = f"tp=4,pp=2,dp={world // 8},micro-batch=1"
    return trace, BackgroundPattern(layout=layout, model="tiny").traffic(world)


@pytest.mark.parametrize(
    "world", [64, *(pytest.param(n, marks=pytest.mark.slow) for n in (256, 1024))]
)
def test_one_of_many_ranks_goes_through_its_program(world, forked, monkeypatch):
    trace, background = many(world)

    def work(_):
        rank = world // 3
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begin = time.thread_time()
        plan = make_plan(
            trace,
            ranks=(rank,),
            background=background,
            in_common=True,
        )
        planned_s = time.thread_time() - begin
        more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        moves = FakeGroups(monkeypatch)
        everyone = tuple(range(world))
        moves.start(
            RankEnvironment(rank, world, 0), (*plan.used_groups, everyone), 30.0
        )
        ordered = []
        bind = moves.bind

        def noted(call):
            launch = bind(call)
            return lambda: ordered.append(call.kind) or launch()

        moves.bind = noted
        engine = Engine(plan, rank, moves, pace=parse_pace("captured"))
        engine.warm_up(1)
        ordered.clear()
        timing = engine.run()
        program = plan.programs[rank]
        assert (timing.end >= timing.issue).all()
        moves.stop()
        return planned_s, more, len(ordered), len(program), np.unique(program.kind)

    ((planned_s, more_kib, ran, count, kinds),) = forked(1, work)
    print(f"{world} ranks: {planned_s:.1f} s, {more_kib / 1024:.0f} MiB")
    assert planned_s < 30
    assert more_kib < 2**20
    assert ran == count + 1  # and the barrier at the start
    assert len(kinds) > 3


@pytest.mark.parametrize("world", [64, pytest.param(1024, marks=pytest.mark.slow)])
def test_launches_and_waits_of_all_ranks_together_have_no_cycle(world):
    trace, background = many(world)
    edges = []  # of operations: one that a rank launches, or waits for, before another
    for first in range(0, world, 128):
        ranks = range(first, min(first + 128, world))
        plan = make_plan(trace, ranks=ranks, background=background, in_common=True)
        for program in plan.programs.values():
            order, waits = program.operation, program.after >= 0
            edges += [
                np.stack([order[:-1], order[1:]]),
                np.stack([order[program.after[waits]], order[waits]]),
            ]
    before, then = np.unique(np.concatenate(edges, axis=1), axis=1)
    assert (before != then).all()
    graph = coo_matrix(
        (np.ones(len(then)), (before, then)), shape=(len(plan), len(plan))
    )
    components, _ = connected_components(graph, connection="strong")
    print(f"{world} ranks: {len(then)} edges of {len(plan)} operations")
    assert components == len(plan)
