"""A replay that was aborted goes on where all ranks had got to."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from moetraffic import Trace
from moetraffic.errors import ReplayError
from moetraffic.replay import make_plan
from moetraffic.replay.backends.process_groups import Gloo
from moetraffic.replay.checkpoint import Checkpoint, Resumption, joined
from moetraffic.replay.execution.engine import Engine
from moetraffic.replay.execution.pace import parse_pace
from moetraffic.replay.failure import RankError
from moetraffic.replay.plan.program import Timing
from moetraffic.replay.results.call_times import measure
from moetraffic.trace.model import CLOCK, UNKNOWN_TIME
from tests.replay.execution.test_pace import MS, at_times, spaced


def test_finished_iterations_are_counted_over_the_runs(toy, tmp_path):
    plan = make_plan(toy(iterations=(3, 5, 8)))
    program = plan.programs[1]
    when = plan.iteration[program.operation]
    held = Checkpoint(tmp_path, plan, 1, "a", 2)
    assert held.finished() == 0
    held.times(0)[:] = 7
    assert held.finished() == 3
    held.times(1)[:, when < 8] = 9
    held.times(1)[:, -1] = 9  # it overlapped an operation that had not ended
    again = Checkpoint(tmp_path, plan, 1, "a", 2)
    assert again.finished() == 5
    at = Resumption(kept=again.finished(), iterations=np.unique(plan.iteration))
    assert (at.run, at.iteration) == (1, 2)
    assert at.first(0, plan, program) == len(program)
    assert when[at.first(1, plan, program)] == 8
    assert at.sentence(2).startswith(
        "resumed at iteration 8 of run 2 of 2: 5 of 6 iterations are from before"
    )
    assert Resumption(kept=0, iterations=at.iterations).sentence(2) == ""
    assert (again.timing(0).end == 7).all()


def test_times_of_another_replay_or_clock_are_refused(toy, tmp_path):
    plan = make_plan(toy())
    Checkpoint(tmp_path, plan, 0, "a", 1)
    with pytest.raises(RankError, match="another trace, or with other options"):
        Checkpoint(tmp_path, plan, 0, "b", 1)
    with pytest.raises(RankError, match="another trace, or with other options"):
        Checkpoint(tmp_path, make_plan(toy(seed=4)), 0, "a", 1)
    path = tmp_path / "rank-0.json"
    known = json.loads(path.read_text())
    path.write_text(json.dumps({**known, "clock": "host before"}))
    with pytest.raises(RankError, match="clock is not comparable: give --resume"):
        Checkpoint(tmp_path, plan, 0, "a", 1)
    path.write_text(json.dumps(known))
    Checkpoint(tmp_path, plan, 0, "a", 1).finish()
    with pytest.raises(ReplayError, match="has ended: give --resume another folder"):
        Checkpoint(tmp_path, plan, 0, "a", 1)
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ReplayError, match="cannot hold the times"):
        Checkpoint(blocked, plan, 0, "a", 1)


def test_a_pause_is_in_no_time_and_durations_stay(toy):
    plan = make_plan(at_times(toy(iterations=(0, 1, 2)), spaced))
    at = Resumption(kept=2, iterations=np.unique(plan.iteration))
    pause, drift = 3600 * 10**9, 20e-6
    clocks = np.zeros(4, CLOCK)
    clocks["rank"] = [0, 1, 0, 1]
    clocks["local_ns"] = [0, 0, 10**13, 10**13]
    clocks["offset_ns"] = [0, -5000, 0, -5000 - round(10**13 * drift)]
    truth, times = {}, {}
    for rank, program in plan.programs.items():
        issue = program.due_ns + 17 * rank
        late = pause * (plan.iteration[program.operation] == 2)
        for found, own in ((truth, issue), (times, issue + late)):
            local = np.rint((own + 5000 * rank) / (1 - drift * rank)).astype(np.int64)
            found[rank] = Timing(
                operation=program.operation,
                issue=local,
                start=local,
                end=local + MS,
                due=np.full(len(local), UNKNOWN_TIME),
            )
    found = joined(plan, times, clocks, at)
    expected, measured = (measure(plan, t, clocks) for t in (truth, found))
    np.testing.assert_allclose(measured.transfer_s, expected.transfer_s, atol=1e-8)
    np.testing.assert_allclose(measured.wall_s, expected.wall_s, atol=1e-6)
    for timing in found.values():
        # the last iteration follows at once
        assert np.ptp([timing.issue.min(), timing.end.max()]) < 3 * 40 * MS
        assert (timing.due == UNKNOWN_TIME).all()
    new = Resumption(kept=3, iterations=at.iterations)
    assert joined(plan, times, clocks, new) is times


@pytest.mark.parametrize("pace", ["asap", "captured", "open-loop"])
def test_only_the_other_iterations_run(toy, forked, pace):
    plan = make_plan(at_times(toy(iterations=(0, 1, 2), largest=100), spaced))

    def work(rank_env):
        program = plan.programs[rank_env.rank]
        first = int(np.searchsorted(plan.iteration[program.operation], 1))
        times = np.full((3, len(program)), UNKNOWN_TIME)
        times[:, : first + 2] = 5  # two operations of an iteration that was aborted
        moves = Gloo()
        moves.start(rank_env, (*plan.groups, (0, 1)), 30.0)
        engine = Engine(plan, rank_env.rank, moves, pace=parse_pace(pace))
        begin = time.monotonic_ns()
        timing = engine.run(times, first)
        moves.stop()
        return first, begin, timing

    for first, begin, timing in forked(2, work):
        assert (timing.issue[:first] == 5).all()
        assert (timing.end[:first] == 5).all()
        assert (timing.issue[first:] >= begin).all()
        assert (timing.end[first:] >= timing.issue[first:]).all()
        if pace != "asap":  # the schedule begins anew
            assert timing.due[first] >= begin
            assert np.ptp(timing.due[first:]) > 50 * MS
            assert timing.due[first] - begin < 1000 * MS


@pytest.mark.slow
def test_a_killed_replay_goes_on_and_says_so(toy, tmp_path):
    trace, out, folder = (tmp_path / n for n in ("in.h5", "out.h5", "times"))
    at_times(toy(iterations=range(40), largest=100), spaced).save(trace)
    words = [
        *(sys.executable, "-m", "moetraffic.replay", str(trace), "-o", str(out)),
        *("--resume", str(folder), "--repeat", "2", "--pace", "captured", "--json"),
    ]

    def ended() -> int:
        path = folder / "rank-1.run-1.npy"
        if not path.exists():
            return 0
        try:
            return int((np.load(path)[1] != UNKNOWN_TIME).sum())
        except ValueError:  # its header is not written yet
            return 0

    first = subprocess.Popen(words, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while ended() < 100 and time.monotonic() < deadline:
        time.sleep(0.02)
    first.send_signal(signal.SIGTERM)
    said = first.communicate(timeout=30)[1].decode()
    assert first.returncode == 128 + signal.SIGTERM
    assert f"goes on from the times in {folder}" in said
    assert not out.exists()
    before = np.load(folder / "rank-1.run-1.npy")
    second = subprocess.run(words, capture_output=True, text=True, check=True)
    result = json.loads(second.stdout)
    (note,) = [n for n in result["notes"] if n.startswith("resumed")]
    iteration = int(note.split()[3])
    assert 10 <= iteration < 40
    assert f"of run 2 of 2: {40 + iteration} of 80 iterations are from before" in note
    kept = slice(0, 7 * iteration)  # seven operations an iteration
    after = np.load(folder / "rank-1.run-1.npy")
    np.testing.assert_array_equal(after[:, kept], before[:, kept])
    assert (after[1] != UNKNOWN_TIME).all()
    assert result["fidelity"]["runs"] == 2
    assert result["wall_s"] < 2 * 40 * 0.04  # the pause is not in it
    with Trace.open(out) as found:
        assert len(found.find()) == 80 * 7 / 2
    third = subprocess.run(words, capture_output=True, text=True, check=False)
    assert third.returncode == 2
