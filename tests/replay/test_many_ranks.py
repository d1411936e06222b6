"""All passes on one of many ranks, over torch's process group without peers."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist
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
    assert more_kib < 2**20
    assert ran == count
    assert len(kinds) > 3
