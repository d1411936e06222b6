"""All passes on one of many ranks, over torch's process group without peers."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch.testing._internal.distributed.fake_pg import FakeStore

from moetraffic.launch.environment import RankEnvironment
from moetraffic.replay.options import Options
from moetraffic.replay.pace import parse_pace
from moetraffic.replay.plan.background import traffic_of
from moetraffic.replay.run import timed_pass
from moetraffic.replay.transport import Bound, Transport
from tests.replay.conftest import make_trace, planned


class FakeGroups(Transport):
    """Process groups whose operations end at once and move nothing."""

    def __init__(self, monkeypatch):
        super().__init__("fake")
        initialize = dist.init_process_group

        def without_peers(name, *, store, init_method, device_id, **more):
            initialize(name, store=FakeStore(), **more)

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
    return trace, traffic_of(layout, "tiny", world)


@pytest.mark.parametrize(
    "world", [64, *(pytest.param(n, marks=pytest.mark.slow) for n in (256, 1024))]
)
def test_one_of_many_ranks_goes_through_its_program(world, forked, monkeypatch):
    trace, background = many(world)

    def work(_):
        rank = world // 3
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begin = time.thread_time()
        plan, programs = planned(
            trace, of=(rank,), background=background, in_common=True
        )
        planned_s = time.thread_time() - begin
        more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        moves = FakeGroups(monkeypatch)
        moves.start(RankEnvironment(rank, world, 0), plan.used_groups, 30.0)
        ordered = []

        def noted(method):
            def bind(*arguments, **more):
                launch = method(*arguments, **more)
                return lambda: ordered.append(arguments) or launch()

            return bind

        moves.bind, moves.messages = noted(moves.bind), noted(moves.messages)
        options = Options(trace=Path("many.h5"), pace=parse_pace("captured"))
        program = programs[rank]
        bound = Bound(plan, program, moves)
        bound.warm_up()
        assert len(ordered) < len(program) / 2
        ordered.clear()
        timing = timed_pass(options, bound)
        assert (timing.end >= timing.issue).all()
        moves.stop()
        return planned_s, more, len(ordered), len(program), np.unique(program.kind)

    ((planned_s, more_kib, ran, count, kinds),) = forked(1, work)
    print(f"{world} ranks: {planned_s:.1f} s, {more_kib / 1024:.0f} MiB")
    assert planned_s < 30
    assert more_kib < 2**20
    assert ran == count
    assert len(kinds) > 3


@pytest.mark.parametrize("world", [64, pytest.param(1024, marks=pytest.mark.slow)])
def test_launches_and_waits_of_all_ranks_together_have_no_cycle(world):
    trace, background = many(world)
    edges = []  # of operations: one that a rank launches, or waits for, before another
    for first in range(0, world, 128):
        ranks = range(first, min(first + 128, world))
        plan, programs = planned(trace, of=ranks, background=background, in_common=True)
        for program in programs.values():
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
