"""Ranks that replay move the trace's bytes; whatever fails is named with its place."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.replay import make_plan
from moetraffic.replay.backends.backend import Backend
from moetraffic.replay.execution.control import gather_times
from moetraffic.replay.execution.engine import Engine
from moetraffic.replay.plan.selection import Depth, Verification
from moetraffic.trace.trace import Trace

PLACE = r"iteration \d+, layer \d, \w+, (micro-batch|call) \d"


class Counting(Backend):
    """Remembers what it was asked to move, and the bytes it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[int, list[int], list[int]]] = []

    def bind(self, call):
        gets, gives = call.receive_bytes, call.send_bytes
        if call.kind == "all_to_all":
            assert (len(call.receive), len(call.send)) == (sum(gets), sum(gives))
        launch = super().bind(call)

        def start():
            self.asked.append((call.group, gets, gives))
            return launch()

        return start


@pytest.mark.parametrize(
    ("world", "groups"), [(2, None), (4, [(0, 2), (3, 1)]), (3, [(2, 0), (1,)])]
)
def test_the_timed_pass_moves_exactly_the_traces_bytes_in_order(
    toy, forked, world, groups
):
    plan = make_plan(toy(world=world, groups=groups))

    def work(rank_env):
        moves = Counting()
        moves.start(rank_env, (*plan.groups, tuple(range(world))), 30.0)
        engine = Engine(plan, rank_env.rank, moves)
        engine.verify(np.ones(len(plan), bool))
        moves.asked.clear()
        timing = engine.run()
        asked = moves.asked[1:]  # the first is the ranks' meeting
        times = gather_times(plan, rank_env.rank, moves, timing)
        moves.stop()
        return asked, timing, times

    found = forked(world, work)
    for rank, (asked, timing, times) in enumerate(found):
        program = plan.programs[rank]
        assert asked == [
            (int(program.group[n]), list(program.receives(n)), list(program.sends(n)))
            for n in range(len(program))
        ]
        assert (timing.issue <= timing.start).all()
        assert (timing.start <= timing.end).all()
        assert (timing.end[:-1] <= timing.issue[1:]).all()
        assert (times == {}) == (rank != 0)
        gathered = found[0][2][rank]
        for name in ("operation", "issue", "start", "end", "due"):
            assert (getattr(gathered, name) == getattr(timing, name)).all()


def test_four_ranks_in_two_groups_give_a_trace_and_a_summary(
    toy_file, replay_with, tmp_path
):
    path = toy_file(world=4, groups=[(0, 2), (3, 1)])
    out = tmp_path / "replayed.h5"
    summary = replay_with(path, out=out, iterations=range(1, 3))
    assert (summary.ranks, summary.operations, summary.verified) == (4, 26, "full")
    assert (summary.first_iteration, summary.last_iteration) == (1, 2)
    with Trace.open(path) as trace, Trace.open(out) as made:
        plan = make_plan(trace, iterations=range(1, 3))
        assert (make_plan(made).checksum == plan.checksum).all()
        assert summary.digest == plan.digest
        assert summary.rank_bytes == tuple(plan.rank_bytes)
        assert made.meta.source == f"{path} with --pace asap"
        for occurrence in make_plan(made).occurrence:
            issue, start, end = made.times(np.array([occurrence]))
            assert (issue <= start).all()
            assert (start <= end).all()
            assert (end - issue > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("checks", "said"),
    [
        (Verification(depth=Depth.NONE), "none"),
        (Verification(depth=Depth.SAMPLE, share=0.2), "sample of 0.2, seed 0"),
    ],
)
def test_it_says_how_much_was_verified(toy_file, replay_with, checks, said):
    assert replay_with(toy_file(), verify=checks).verified == said


def test_a_real_capture_is_replayed(captured, replay_with):
    summary = replay_with(captured, iterations=range(2))
    assert summary.ranks == 4
    assert summary.network_bytes > 0
