"""All-to-alls beside dense traffic: what the hook sees of it, and what it costs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist

from moetraffic.capture.hook import calls as hook
from moetraffic.capture.hook.calling_block import BlockSearch
from moetraffic.capture.hook.completion import CompletionTracker, DeviceClock
from moetraffic.errors import ReplayError
from moetraffic.replay.options import Options
from moetraffic.replay.plan.background import layout_pattern, traffic_of
from moetraffic.replay.run import timed_pass
from moetraffic.replay.transport import Bound, Transport
from moetraffic.trace.merge.log_format import CALL_FIELDS, CALL_HEAD, OPERATIONS
from tests.replay.conftest import planned

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
    beside = traffic_of(layout, "tiny", 8)

    def work(rank_env):
        plan, programs = planned(
            trace, dense=False, of=(rank_env.rank,), background=beside
        )
        program = programs[rank_env.rank]
        moves, notes = Transport(), Notes()
        moves.start(rank_env, plan.used_groups, 60.0)
        bound = Bound(plan, program, moves)
        moves.barrier = lambda: None  # what is noted is the traffic alone
        uninstall = hook.install(notes)
        timed_pass(Options(trace=Path("toy.h5")), bound)
        uninstall()
        sends = (program.sends(n).tolist() for n in range(len(program)))
        return notes.calls, [s for s in sends if s]

    pattern = layout_pattern(layout, "tiny")
    found = forked(8, work)
    for rank, (calls, sends) in enumerate(found):
        expected = Counter()
        for event in pattern.program(rank):
            call, members = event.call, pattern.group(event.call.group, rank)
            if call.operation == "all_to_all" or len(members) == 1:
                continue
            # in each of two iterations
            expected[(call.operation, members, *call.peers, call.size)] += 2
        seen = Counter(
            (c[0], tuple(c[1]), *c[2:5]) for c in calls if c[0] != "all_to_all"
        )
        assert seen == expected
        # and the trace's own bytes
        exchanged = [c[5] for c in calls if c[0] == "all_to_all"]
        assert exchanged == sends


@pytest.mark.slow
def test_the_slowdown_is_told_with_its_interval(toy_file, replay_with):
    result = replay_with(
        toy_file(world=4, largest=20_000),
        background="tp=2,dp=2,micro-batch=1",
        model="tiny",
        pairs=3,
        verify="none",
    )
    assert result.data["trials"] == 3
    for row in result.rows("background"):
        assert 0 < row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
    labels = {row["label"] for row in result.rows("operations")}
    assert "tp" in labels


def test_pairs_without_dense_traffic_are_refused(toy_file, replay_with):
    with pytest.raises(ReplayError, match="replay both, with --background"):
        replay_with(toy_file(world=2), pairs=2, dense=False)
