"""All-to-alls beside dense traffic: what the hook sees of it, and what it costs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch.distributed as dist

import moetraffic.replay.results.audit  # noqa: F401 - once, not in each forked rank
from moetraffic.capture.hook import calls as hook
from moetraffic.capture.hook.calling_block import BlockSearch
from moetraffic.capture.hook.completion import CompletionTracker, DeviceClock
from moetraffic.errors import ReplayError
from moetraffic.replay.backends.backend import create
from moetraffic.replay.execution.control import gather_times
from moetraffic.replay.execution.engine import Engine
from moetraffic.replay.plan.background import BackgroundPattern, expert_exchanges
from moetraffic.replay.plan.planning import make_plan
from moetraffic.replay.plan.selection import Depth, Verification
from moetraffic.trace.merge.log_format import CALL_FIELDS, CALL_HEAD, OPERATIONS

LAYOUTS = [
    "tp=2,pp=2,dp=2,micro-batch=1",
    # with groups of experts, and of their replicas
    *(
        pytest.param(f"{layout},micro-batch=1", marks=pytest.mark.slow)
        for layout in ("tp=2,pp=2,dp=2,ep=2", "tp=2,dp=4,ep=2", "pp=2,dp=4,ep=2")
    ),
]


class Notes:
    """What a hook is told of: operation, members, bytes of the input."""

    def __init__(self):
        self.calls = []
        self.groups = []
        self.numbers = {}
        self.blocks = BlockSearch(self.number)
        self.completion = CompletionTracker(lambda _: None, DeviceClock(lambda _: None))

    def put(self, record):
        words = np.frombuffer(record, np.int64).tolist()
        call = dict(zip(CALL_FIELDS, words, strict=False))
        sent = words[CALL_HEAD : CALL_HEAD + call["sends"]]
        peers = call["source"], call["destination"]
        members = self.groups[call["group"]]
        operation = OPERATIONS[call["operation"]]
        self.calls.append((operation, members, *peers, call["bytes"], sent))

    def meet(self, group):
        self.groups.append(tuple(dist.get_process_group_ranks(group)))
        return len(self.groups) - 1

    def number(self, kind, name):
        return self.numbers.setdefault((kind, name), len(self.numbers))

    def failed(self, operation, error):
        raise error


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_8_ranks_issue_the_patterns_collectives_on_their_groups(toy, forked, layout):
    trace = toy(world=8, iterations=(0, 1), largest=300)
    beside = BackgroundPattern(layout=layout, model="tiny")

    def work(rank_env):
        plan = make_plan(
            trace,
            dense=False,
            ranks=(rank_env.rank,),
            background=beside.traffic(rank_env.world),
        )
        moves, notes = create("gloo"), Notes()
        moves.start(rank_env, (*plan.groups, tuple(range(rank_env.world))), 60.0)
        engine = Engine(plan, rank_env.rank, moves)
        uninstall = hook.install(notes)
        timing = engine.run()
        uninstall()
        gather_times(plan, rank_env.rank, moves, timing)
        moves.stop()
        program = plan.programs[rank_env.rank]
        sends = (program.sends(n).tolist() for n in range(len(program)))
        return notes.calls, [s for s in sends if s]

    pattern = beside.pattern()
    found = forked(8, work)
    assert [f for f in found if isinstance(f, Exception)] == []
    for rank, (calls, sends) in enumerate(found):
        expected = Counter()
        for event in pattern.program(rank):
            call, members = event.call, pattern.group(event.call.group, rank)
            if call.operation == "all_to_all" or len(members) == 1:
                continue
            # in each of two iterations
            expected[(call.operation, members, *call.peers, call.size)] += 2
        seen = Counter(c[:5] for c in calls if c[0] != "all_to_all")
        assert seen == expected
        # and the trace's own bytes, beside the byte by which ranks meet
        exchanged = [c[5] for c in calls if c[0] == "all_to_all" and c[5] != [1] * 8]
        assert exchanged == sends


@pytest.mark.slow
def test_the_slowdown_is_told_with_its_interval(toy_file, replay_with):
    summary = replay_with(
        toy_file(world=4, largest=20_000),
        alongside=BackgroundPattern(layout="tp=2,dp=2,micro-batch=1", model="tiny"),
        pairs=3,
        verify=Verification(depth=Depth.NONE),
    )
    found = summary.fidelity
    assert found.pairs == 3
    assert 0 < found.slowdown.low <= found.slowdown.value <= found.slowdown.high
    assert "tp" in {p.label for p in found.parts if p.by == "stream"}


def test_without_is_the_exchanges_alone(toy):
    beside = BackgroundPattern(layout="tp=2,dp=2,micro-batch=1", model="tiny").traffic(
        4
    )
    trace = toy(world=4, groups=[(0, 1), (2, 3)])
    plan = make_plan(trace, background=beside, dense=False)
    alone = expert_exchanges(plan)
    only = make_plan(trace, dense=False)
    for rank, program in alone.programs.items():
        want = only.programs[rank]
        assert program.send_bytes.tolist() == want.send_bytes.tolist()
        assert program.receive_bytes.tolist() == want.receive_bytes.tolist()
        assert program.first.tolist() == want.first.tolist()
        assert program.operation.tolist() == want.operation.tolist()
        assert (program.stream == 0).all()
        assert program.after.max() < len(program)
    with pytest.raises(ReplayError, match="--background"):
        expert_exchanges(only)


def test_pairs_without_dense_traffic_are_refused(toy_file, replay_with):
    with pytest.raises(ReplayError, match="replay both, with --background"):
        replay_with(toy_file(world=2), pairs=2, dense=False)
