"""Ranks that replay move the trace's bytes; whatever fails is named with its place."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import replace

import numpy as np
import pytest

from moetraffic.errors import Interrupted, ReplayError
from moetraffic.replay import make_plan
from moetraffic.replay import rank as rank_module
from moetraffic.replay.agreement import gather
from moetraffic.replay.backends import Gloo
from moetraffic.replay.engine import Engine
from moetraffic.replay.failure import lost
from moetraffic.replay.local import replay
from moetraffic.replay.plan import Program
from moetraffic.replay.request import Request
from moetraffic.trace.trace import Trace

PLACE = r"iteration \d+, layer \d, \w+, (micro-batch|call) \d"


class Counting(Gloo):
    """Remembers what it was asked to move, and the bytes it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[int, list[int], list[int]]] = []

    def all_to_all(self, group, receive, send, receive_bytes, send_bytes):
        assert (len(receive), len(send)) == (sum(receive_bytes), sum(send_bytes))
        self.asked.append((group, receive_bytes, send_bytes))
        return super().all_to_all(group, receive, send, receive_bytes, send_bytes)


@pytest.mark.parametrize(
    ("world", "groups"), [(2, None), (4, [(0, 2), (3, 1)]), (3, [(2, 0), (1,)])]
)
def test_the_timed_pass_moves_exactly_the_traces_bytes_in_order(
    toy, forked, world, groups
):
    plan = make_plan(toy(world=world, groups=groups))

    def work(seat):
        moves = Counting()
        moves.start(seat, (*plan.groups, tuple(range(world))), 30.0)
        engine = Engine(plan, seat.rank, moves)
        engine.verify()
        moves.asked.clear()
        timing = engine.run()
        asked = moves.asked[1:]  # the first is the ranks' meeting
        times = gather(plan, seat.rank, moves, timing)
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
        for name in ("operation", "issue", "start", "end"):
            assert (getattr(gathered, name) == getattr(timing, name)).all()


def test_four_ranks_in_two_groups_give_a_trace_and_a_summary(
    toy_file, replay_with, tmp_path
):
    path = toy_file(world=4, groups=[(0, 2), (3, 1)])
    out = tmp_path / "replayed.h5"
    summary = replay_with(path, out=out, iterations=range(1, 3))
    assert (summary.ranks, summary.operations, summary.verified) == (4, 24, True)
    assert (summary.first_iteration, summary.last_iteration) == (1, 2)
    with Trace.open(path) as trace, Trace.open(out) as made:
        plan = make_plan(trace, iterations=range(1, 3))
        assert (make_plan(made).checksum == plan.checksum).all()
        assert summary.digest == plan.digest
        assert summary.rank_bytes == tuple(plan.rank_bytes)
        assert made.meta.source == str(path)
        for occurrence in make_plan(made).occurrence:
            issue, start, end = made.times(np.array([occurrence]))
            assert (issue <= start).all()
            assert (start <= end).all()
            assert (end - issue > 0).all()


def test_without_the_verifying_pass_it_says_so(toy_file, replay_with):
    assert not replay_with(toy_file(), verify=False).verified


def test_a_real_capture_is_replayed(captured, replay_with):
    summary = replay_with(captured, iterations=range(2))
    assert summary.ranks == 4
    assert summary.network_bytes > 0


# ---- faults ----------------------------------------------------------------------


def at_operation(n: int, then) -> None:
    """Make this rank do something instead of entering its n-th exchange of two ranks.

    Of the exchanges one is the agreement; two are an operation of the verifying pass.
    """
    plain = Gloo.all_to_all
    calls = iter(range(10**9))

    def all_to_all(self, *arguments):
        if next(calls) == 1 + 2 * n:
            then()
        return plain(self, *arguments)

    Gloo.all_to_all = all_to_all  # type: ignore[method-assign]


def named(trace: Trace, rank: int, n: int) -> str:
    plan = make_plan(trace)
    return plan.name(int(plan.programs[rank].operation[n]))


def failure(replay_with, path, fault, **options) -> str:
    with pytest.raises(ReplayError) as told:
        replay_with(path, fault, **options)
    sentence = str(told.value)
    assert "\n" not in sentence
    return sentence


def test_a_killed_rank_is_named_with_its_operation(toy_file, replay_with):
    def fault(rank, arguments):
        if rank == 1:
            at_operation(3, lambda: os.kill(os.getpid(), signal.SIGKILL))

    path = toy_file(world=3)
    sentence = failure(replay_with, path, fault)
    with Trace.open(path) as trace:
        assert sentence == f"rank 1 at {named(trace, 1, 3)} was ended by SIGKILL"


def test_a_rank_killed_in_the_timed_pass_is_named_there(toy_file, replay_with):
    def fault(rank, arguments):
        if rank == 0:
            # one more exchange is the meeting before the timed pass
            passed = 2 * 18 + 1
            at_operation(0, lambda: None)
            plain, calls = Gloo.all_to_all, iter(range(10**9))

            def all_to_all(self, *arguments):
                if next(calls) == 1 + passed + 7:
                    os.kill(os.getpid(), signal.SIGSEGV)
                return plain(self, *arguments)

            Gloo.all_to_all = all_to_all  # type: ignore[method-assign]

    path = toy_file()
    sentence = failure(replay_with, path, fault)
    with Trace.open(path) as trace:
        assert f"rank 0 at {named(trace, 0, 7)} was ended by SIGSEGV" in sentence


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGSTOP), "stopped by a signal"),
        (lambda: time.sleep(60), "did not answer"),
    ],
    ids=["stopped", "late"],
)
def test_a_rank_that_does_not_come_is_named(toy_file, replay_with, what, said):
    def fault(rank, arguments):
        if rank == 2:
            at_operation(4, what)

    path = toy_file(world=3)
    sentence = failure(replay_with, path, fault, timeout_s=2.0)
    with Trace.open(path) as trace:
        assert sentence.startswith(f"rank 2 at {named(trace, 2, 4)} ")
    assert said in sentence


def test_a_late_start_is_waited_for(toy_file, replay_with):
    def fault(rank, arguments):
        time.sleep(1.0 if rank == 1 else 0.0)

    assert replay_with(toy_file(), fault).operations == 18


def test_another_trace_on_one_rank_is_named_with_the_first_difference(
    toy_file, replay_with
):
    path, other = toy_file(world=3), toy_file(world=3, seed=1)

    def fault(rank, arguments):
        if rank == 2:
            arguments[0] = str(other)

    sentence = failure(replay_with, path, fault)
    assert re.match(rf"rank 2 at {PLACE} has another plan than rank 0 ", sentence)
    with Trace.open(path) as a, Trace.open(other) as b:
        plan = make_plan(a)
        differs = np.flatnonzero(plan.checksum != make_plan(b).checksum)
        assert plan.name(int(differs[0])) in sentence


def test_other_iterations_on_one_rank_are_named(toy_file, replay_with):
    path = toy_file()

    def fault(rank, arguments):
        if rank == 1:
            arguments += ["--iterations", "0:2"]

    sentence = failure(replay_with, path, fault)
    assert "rank 1" in sentence
    assert "12 operations" in sentence
    assert "not 18 with" in sentence


def test_a_file_that_one_rank_does_not_have_is_named(toy_file, replay_with, tmp_path):
    def fault(rank, arguments):
        if rank == 1:
            arguments[0] = str(tmp_path / "gone.h5")

    sentence = failure(replay_with, toy_file(), fault)
    assert sentence.startswith("rank 1 failed: ")
    assert "gone.h5" in sentence


@pytest.mark.parametrize("more", [8, -8])
def test_sending_other_than_planned_is_found_before_it_is_sent(
    toy_file, replay_with, more
):
    """gloo would abort the receiver of more, and keep old bytes where less comes."""
    path = toy_file(world=3)

    def fault(rank, arguments):
        if rank == 1:
            rank_module.make_plan = tampered(4, more)

    sentence = failure(replay_with, path, fault)
    with Trace.open(path) as trace:
        program = make_plan(trace).programs[1]
        size = int(program.sends(4)[2])
        place = named(trace, 1, 4)
    assert sentence.startswith(f"rank 1 at {place} sends {size + more} bytes to rank 2")
    assert f"whose plan says {size}" in sentence


def test_without_verification_too_many_bytes_still_end_with_a_name(
    toy_file, replay_with
):
    path = toy_file(world=2)

    def fault(rank, arguments):
        if rank == 0:
            rank_module.make_plan = tampered(4, 4096)

    sentence = failure(replay_with, path, fault, verify=False, timeout_s=3.0)
    with Trace.open(path) as trace:
        assert f"rank 1 at {named(trace, 1, 4)} " in sentence


def tampered(n: int, more: int):
    """Planning as it is, but a rank's n-th operation sends other bytes to the last."""

    def make(*arguments, **named):
        plan = make_plan(*arguments, **named)
        ((rank, program),) = plan.programs.items()
        sends = program.send_bytes.copy()
        sends[program.first[n + 1] - 1] += more
        return replace(plan, programs={rank: replace(program, send_bytes=sends)})

    return make


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda got: got.__setitem__(0, got[0] ^ 16), "byte 0 of"),
        (lambda got: got[64:].copy_(got[:-64].clone()), "bytes of offset"),
        (lambda got: got[-100:].fill_(0xA5), "nothing was received there"),
    ],
    ids=["flipped bit", "shift", "truncated"],
)
def test_bytes_that_change_on_the_way_are_named(toy_file, replay_with, harm, said):
    def fault(rank, arguments):
        if rank == 0:
            plain, calls = Gloo.all_to_all, iter(range(10**9))

            def all_to_all(self, group, receive, *rest):
                found = plain(self, group, receive, *rest)
                if next(calls) == 1 + 2 * 5 + 1:
                    harm(receive)
                return found

            Gloo.all_to_all = all_to_all  # type: ignore[method-assign]

    path = toy_file(largest=50_000)
    sentence = failure(replay_with, path, fault)
    with Trace.open(path) as trace:
        place = named(trace, 0, 5)
    assert re.match(
        rf"rank [01] at {re.escape(place)} sent bytes that did not", sentence
    )
    assert said in sentence


def test_a_lack_of_memory_is_named(toy_file, replay_with):
    def fault(rank, arguments):
        if rank == 1:
            Program.buffer_bytes = property(lambda self: (8, 1 << 60))  # type: ignore

    sentence = failure(replay_with, toy_file(), fault)
    assert sentence.startswith("rank 1 at start-up ")
    assert f"has no memory for buffers of 8 and {1 << 60} bytes" in sentence


def test_an_error_that_nobody_foresaw_is_named(toy_file, replay_with):
    def fault(rank, arguments):
        if rank == 1:
            at_operation(2, lambda: {}["a key that is not there"])

    sentence = failure(replay_with, toy_file(), fault)
    assert sentence.startswith("rank 1 ")
    assert "KeyError: 'a key that is not there'" in sentence


def test_gloos_message_loses_its_ornaments():
    said = (
        "[/build/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:54159: "
        "Connection reset by peer. This is typically caused by a remote worker hanging"
    )
    error = lost(2, "operation 3", RuntimeError(said))
    assert str(error) == (
        "rank 2 at operation 3 lost another rank: Read error [127.0.0.1]:54159: "
        "Connection reset by peer"
    )
    assert error.cause == "peer"
    own = lost(2, "operation 3", RuntimeError("CUDA error: out of memory\nmore"))
    assert (own.cause, own.reason) == ("own", "CUDA error: out of memory")


def test_ctrl_c_ends_all_ranks(toy_file, replay_with):
    def fault(rank, arguments):
        if rank == 1:
            at_operation(3, lambda: os.kill(os.getppid(), signal.SIGINT))

    with pytest.raises(Interrupted) as told:
        replay_with(toy_file(iterations=range(2000)), fault)
    assert told.value.signal == signal.SIGINT


def test_an_output_that_cannot_be_written_is_refused_before_any_work(
    tmp_path, toy_file
):
    there = tmp_path / "there.h5"
    there.write_text("kept")
    trace = tmp_path / "no-such-trace.h5"
    with pytest.raises(ReplayError, match=r"is not overwritten.*--force"):
        replay(Request(trace=trace, out=there))
    with pytest.raises(ReplayError, match=r"the folder .* does not exist"):
        replay(Request(trace=trace, out=tmp_path / "no" / "out.h5"))
    with pytest.raises(ReplayError, match="is the input itself"):
        replay(Request(trace=there, out=there, force=True))
    assert there.read_text() == "kept"
