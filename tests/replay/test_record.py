"""A replay that is captured itself: the hook's own record is the plan, to the byte."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from moetraffic import Recorder
from moetraffic.analysis.pattern_trace import pattern_trace
from moetraffic.replay import make_plan
from moetraffic.replay.backends.backend import Backend
from moetraffic.replay.execution.engine import Engine
from moetraffic.replay.execution.pace import parse_pace
from moetraffic.replay.plan.background import BackgroundPattern
from moetraffic.replay.plan.program import KINDS
from moetraffic.trace.trace import Trace

BARRIER = 1  # byte to each rank, exchanged before a timed pass


def recorded(forked, plan, path, how="asap"):
    """Replay a plan with a recorder in every rank; the trace that this leaves."""

    def work(rank_env):
        moves = Backend()
        moves.start(rank_env, (*plan.groups, tuple(range(plan.world))), 30.0)
        engine = Engine(plan, rank_env.rank, moves, pace=parse_pace(how))
        engine.verify()
        with Recorder(path):
            engine.run()
        moves.stop()
        return "done"

    assert forked(plan.world, work) == ["done"] * plan.world
    return Trace.open(path)


def planned(plan) -> Counter:
    """What every rank is to put into every operation, in bytes."""
    found: Counter = Counter()
    for rank, program in plan.programs.items():
        for n in range(len(program)):
            kind, members = KINDS[program.kind[n]], plan.groups[program.group[n]]
            mine = tuple(program.sends(n).tolist())
            if kind == "send_recv":
                mine = (int(plan.size[program.operation[n]]),)
            elif kind != "all_to_all":  # what is reduced is both input and output
                mine = (int(program.send_size[n] or program.receive_size[n]),)
            found[rank, kind, members, mine] += 1
    return found


def seen(trace) -> Counter:
    """What the hook saw every rank put into every operation, in bytes."""
    found: Counter = Counter()
    for o in trace.find(kind=None).tolist():
        one, site = np.array([o]), trace.sites[trace.occurrences.site[o]]
        ranks = trace.groups[site.group].ranks
        square = site.operation == "all_to_all"
        rows = (trace.wire(one) if square else trace.volume(one)[..., None])[0]
        for at, rank in enumerate(ranks):
            if trace.present(one)[0, at]:
                mine = tuple(rows[at].tolist())
                if not square or set(mine) != {BARRIER}:
                    found[rank, site.operation, tuple(sorted(ranks)), mine] += 1
    return found


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "how",
    ["asap", *(pytest.param(n, marks=SLOW) for n in ("captured", "open-loop"))],
)
def test_the_record_of_a_replay_is_its_plan(toy, forked, tmp_path, how):
    trace = toy(world=4, groups=[(0, 2), (3, 1)], largest=500)
    plan = make_plan(trace)
    with recorded(forked, plan, tmp_path / "again.h5", how) as again:
        assert seen(again) == planned(plan)
        for rank, program in plan.programs.items():
            mine = make_plan(again, ranks=(rank,)).programs[rank]
            sent = [s for n in range(len(mine)) if (s := mine.sends(n).tolist())]
            want = [s for n in range(len(program)) if (s := program.sends(n).tolist())]
            # in order, after the byte by which ranks meet
            assert sent[1:] == want


@pytest.mark.slow
def test_a_computed_pattern_of_all_kinds_is_recorded_as_planned(forked, tmp_path):
    """Tensor, pipeline, data and expert parallel ranks; no times: one order for all."""
    pattern = BackgroundPattern(
        layout="tp=2,pp=2,micro-batch=1", model="tiny"
    ).pattern()
    plan = make_plan(pattern_trace(pattern, iterations=2))
    used = {KINDS[k] for k in plan.kind.tolist()}
    assert {"all_reduce", "send_recv"} <= used
    with recorded(forked, plan, tmp_path / "again.h5") as again:
        assert seen(again) == planned(plan)
