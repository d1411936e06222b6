"""The timed pass moves the trace's bytes in order, at their times, side by side."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from moetraffic.replay import transport
from moetraffic.replay.options import Options
from moetraffic.replay.pace import parse_pace
from moetraffic.replay.payload import verify
from moetraffic.replay.plan.operations import KINDS
from moetraffic.replay.run import timed_pass
from moetraffic.replay.transport import Bound, Transport
from moetraffic.trace.model import UNKNOWN_TIME
from tests.replay.conftest import planned
from tests.replay.test_pace import at_times, beside, spaced

SLOW = pytest.mark.slow


def run(forked, made, how="asap", world=2, moves_of=Transport, **options):
    """Replay a plan; each rank's begin, times as arrays, and what it was asked for."""
    plan, programs = made
    asked_options = Options(trace=Path("toy.h5"), pace=parse_pace(how), **options)

    def work(rank_env):
        moves, asked = moves_of(), []
        moves.start(rank_env, plan.used_groups, 30.0)
        bound = Bound(plan, programs[rank_env.rank], moves)
        verify(bound)
        bind = moves.bind

        def noted(kind, group, send, receive, sends, receives, **more):
            asked.append([kind, group, list(sends), list(receives)])
            return bind(kind, group, send, receive, sends, receives, **more)

        moves.bind = noted
        begin = time.monotonic_ns()
        timing = timed_pass(asked_options, bound)
        moves.stop()
        return begin, timing, asked

    ranks = []
    for begin, timing, asked in forked(world, work):
        ranks.append((begin, {k: np.array(v) for k, v in timing.items()}, asked))
    return ranks


@pytest.mark.parametrize(
    ("world", "groups", "how"),
    [
        (2, None, "asap"),
        (4, [(0, 2), (3, 1)], "asap"),
        pytest.param(3, [(2, 0), (1,)], "open-loop", marks=SLOW),
        (4, [(0, 2), (3, 1)], "captured"),
    ],
)
def test_exactly_the_traces_bytes_are_moved_in_order(toy, forked, world, groups, how):
    plan, programs = planned(toy(world=world, groups=groups))
    for rank, (_, timing, asked) in enumerate(
        run(forked, (plan, programs), how, world)
    ):
        program = programs[rank]
        assert asked == [
            [
                KINDS[program.kind[n]],
                int(program.group[n]),
                program.sends(n).tolist(),
                program.receives(n).tolist(),
            ]
            for n in range(len(program))
        ]
        assert (timing["operation"] == program.operation).all()
        assert (timing["issue"] <= timing["end"]).all()
        if how != "open-loop":
            assert (timing["end"][:-1] <= timing["issue"][1:]).all()


def test_a_long_program_is_bound_in_turn(toy, forked, monkeypatch):
    made = planned(toy(iterations=range(12)))
    monkeypatch.setattr(transport, "PREPARED", 8)
    for _, timing, asked in run(forked, made):
        assert len(asked) == len(made[0])
        assert (timing["issue"][1:] >= timing["end"][:-1]).all()


@pytest.mark.parametrize(
    ("text", "stretch"),
    [
        ("captured", 1.0),
        *(pytest.param(f"scaled:{n:g}", n, marks=SLOW) for n in (0.5, 2.0)),
    ],
)
def test_at_a_pace_of_gaps_each_is_due_a_gap_after_what_it_waits_for(
    toy, forked, text, stretch
):
    made = planned(at_times(toy(iterations=(0, 1), largest=100), spaced))
    for rank, (begin, timing, _) in enumerate(run(forked, made, text)):
        program = made[1][rank]
        due = timing["end"][program.after[1:]] + np.rint(program.gap_ns[1:] * stretch)
        assert (timing["due"][1:] == due).all()
        assert timing["due"][0] >= begin
        assert (timing["issue"] >= timing["due"]).all()


def test_as_soon_as_possible_nothing_is_due(toy, forked):
    made = planned(at_times(toy(iterations=(0, 1), largest=100), spaced))
    for _, timing, _ in run(forked, made):
        assert set(timing["due"].tolist()) == {UNKNOWN_TIME}


class SlowOperation(Transport):
    """An all-reduce takes 60 ms longer here."""

    def bind(self, kind, *arguments, **more):
        launch = super().bind(kind, *arguments, **more)
        if kind != "all_reduce":
            return launch

        class Later:
            def __init__(self, work):
                self.work = work

            def wait(self):
                self.work.wait()
                time.sleep(0.06)

        return lambda: Later(launch())


@pytest.mark.parametrize("text", ["asap", pytest.param("captured", marks=SLOW)])
def test_streams_overlap_and_iterations_do_not(toy, forked, text):
    plan, programs = planned(at_times(toy(iterations=(0, 1), largest=100), beside))
    for rank, (_, timing, _) in enumerate(
        run(forked, (plan, programs), text, moves_of=SlowOperation)
    ):
        program, issue, end = programs[rank], timing["issue"], timing["end"]
        when = plan.iteration[program.operation]
        dense = program.stream == 1
        assert (end >= issue).all()
        for iteration in (0, 1):
            (slow,) = np.flatnonzero(dense & (when == iteration))
            others = np.flatnonzero(~dense & (when == iteration))
            # exchanges go on while the all-reduce does, one after the other
            assert (end[others] < end[slow]).sum() >= 3
            assert (issue[others[1:]] >= end[others[:-1]]).all()
        assert issue[when == 1].min() >= end[when == 0].max()


def test_an_open_loop_issues_at_absolute_times_whatever_has_ended(toy, forked):
    plan, programs = planned(at_times(toy(iterations=(0, 1), largest=100), spaced))
    for rank, (_, timing, _) in enumerate(
        run(forked, (plan, programs), "open-loop", moves_of=SlowOperation)
    ):
        program, due = programs[rank], timing["due"]
        assert (due - due[0]).tolist() == (program.due_ns - program.due_ns[0]).tolist()
        assert (timing["issue"] >= due).all()
        (slow, _) = np.flatnonzero(program.stream == 1)
        # 60 ms are longer than the rest of the iteration: the next one is not late
        assert timing["end"][slow] > timing["issue"][slow + 1]
