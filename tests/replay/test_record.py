"""A replay that is captured itself: the hook's own record is the plan, to the byte."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from moetraffic import Recorder
from moetraffic.analysis.pattern_trace import pattern_trace
from moetraffic.replay.options import Options
from moetraffic.replay.pace import parse_pace
from moetraffic.replay.payload import verify
from moetraffic.replay.plan.background import layout_pattern
from moetraffic.replay.plan.operations import KINDS
from moetraffic.replay.run import timed_pass
from moetraffic.replay.transport import Bound, Transport
from moetraffic.trace.trace import Trace
from tests.replay.conftest import planned

BARRIER = 8  # bytes that ranks add up before a timed pass


def recorded(forked, made, path, how="asap"):
    """Replay a plan with a recorder in every rank; the trace that this leaves."""

    plan, programs = made
    options = Options(trace=path, pace=parse_pace(how))

    def work(rank_env):
        moves = Transport()
        moves.start(rank_env, plan.groups, 30.0)
        bound = Bound(plan, programs[rank_env.rank], moves)
        verify(bound)
        with Recorder(path):
            timed_pass(options, bound)
        moves.stop()
        return "done"

    assert forked(plan.world, work) == ["done"] * plan.world
    return Trace.open(path)


def asked(plan, programs) -> Counter:
    """What every rank is to put into every operation, in bytes."""
    found: Counter = Counter()
    for rank, program in programs.items():
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
                world = len(ranks) == trace.meta.world
                if square or not world or mine != (BARRIER,):
                    found[rank, site.operation, tuple(sorted(ranks)), mine] += 1
    return found


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "how",
    ["asap", *(pytest.param(n, marks=SLOW) for n in ("captured", "open-loop"))],
)
def test_the_record_of_a_replay_is_its_plan(toy, forked, tmp_path, how):
    trace = toy(world=4, groups=[(0, 2), (3, 1)], largest=500)
    made = planned(trace)
    with recorded(forked, made, tmp_path / "again.h5", how) as again:
        assert seen(again) == asked(*made)
        _, recorded_programs = planned(again)
        for rank, program in made[1].items():
            # in order
            for name in ("send_bytes", "receive_bytes"):
                sent = getattr(recorded_programs[rank], name).tolist()
                assert sent == getattr(program, name).tolist()


@pytest.mark.slow
def test_a_computed_pattern_of_all_kinds_is_recorded_as_planned(forked, tmp_path):
    """Tensor, pipeline, data and expert parallel ranks; no times: one order for all."""
    pattern = layout_pattern("tp=2,pp=2,micro-batch=1", "tiny")
    made = planned(pattern_trace(pattern, iterations=2))
    used = {KINDS[k] for k in made[0].kind.tolist()}
    assert {"all_reduce", "send_recv"} <= used
    with recorded(forked, made, tmp_path / "again.h5") as again:
        assert seen(again) == asked(*made)
