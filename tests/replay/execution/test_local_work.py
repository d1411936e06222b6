"""A rank that computes is not taken for lost, and one that does nothing is named."""

from __future__ import annotations

import time

import numpy as np
import pytest

from moetraffic.errors import ReplayError
from moetraffic.replay import local, make_plan
from moetraffic.replay.backends.backend import Backend
from moetraffic.replay.bench import operations
from moetraffic.replay.bench.sweep import Sweep
from moetraffic.replay.execution import local_work, payload
from moetraffic.replay.execution.local_work import LocalWork, count_meetings
from moetraffic.trace.trace import Trace

TIMEOUT_S = 1.0
"""Timeout of the backend in these tests."""
CHUNKS, CHUNK_S = 12, 0.2
"""Chunks of a slow rank's work: one takes less, and all take more than the timeout."""


def test_ranks_wait_for_the_work_of_others_beyond_the_timeout(forked):
    def work(rank_env):
        moves = Backend()
        moves.start(rank_env, [(0, 1, 2)], TIMEOUT_S)
        own = LocalWork(moves, 0, 3)
        counts = []
        for worker in (1, None, 2):
            rounds, told = 0, own._any_works

            def counted(working, told=told):
                nonlocal rounds
                rounds += 1
                return told(working)

            own._any_works = counted
            advance = own.chunks()
            for _ in range(CHUNKS if rank_env.rank == worker else 0):
                time.sleep(CHUNK_S)
                advance(local_work.CHUNK)
            advance(local_work.CHUNK - 1)
            own.meet()
            own._any_works = told
            counts.append(rounds)
        moves.stop()
        return counts

    assert forked(3, work) == [[CHUNKS + 1, 1, CHUNKS + 1]] * 3


def test_ranks_meet_around_large_operations_and_between_many(toy, monkeypatch):
    trace = toy(world=4, groups=[(0, 2), (1, 3)], iterations=(0, 1), layers=(1,))
    plan = make_plan(trace, ranks=())
    # of each iteration: 2 groups x (count, dispatch, combine), and an all-reduce
    by_iteration = np.argsort(plan.iteration, kind="stable")
    monkeypatch.setattr(local_work, "_OPERATION_BYTES", 0)
    monkeypatch.setattr(local_work, "CHUNK", 1 << 40)
    before, last = count_meetings(plan)
    assert (before.max(), last) == (0, 0)

    monkeypatch.setattr(local_work, "CHUNK", 1)  # every operation is a large one
    before, last = count_meetings(plan)
    assert before[by_iteration].tolist() == [2 * n + 1 for n in range(14)]
    assert last == 28
    chosen = np.zeros(14, bool)
    chosen[by_iteration[[3, 9]]] = True
    before, last = count_meetings(plan, chosen)
    assert before[by_iteration[[3, 9]]].tolist() == [1, 3]
    assert last == 4

    # two operations of a group, and any of others, are between two meetings
    monkeypatch.setattr(local_work, "_OPERATION_BYTES", 10**6)
    monkeypatch.setattr(local_work, "CHUNK", 2 * 10**6 + 10**5)
    before, last = count_meetings(plan)
    assert before[by_iteration].tolist() == [0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 4]
    assert last == 4


@pytest.fixture
def slow_rank(toy_file, replay_with, monkeypatch):
    """Replay where rank 1 takes long to compute the bytes of one operation."""
    monkeypatch.setattr(local, "silence_s", lambda timeout_s: 1.5 * timeout_s)
    path = toy_file(
        world=3, groups=[(0, 1), (2,)], iterations=(0,), layers=(1,), largest=300_000
    )
    with Trace.open(path) as trace:
        plan = make_plan(trace)
    program = plan.programs[1]
    slow = int(program.operation[program.receive_size.argmax()])

    def run(block_s):
        def fault(rank, arguments):
            local_work.CHUNK = 1 << 10  # of each block, the ranks hear
            if rank == 1:
                plain = payload._blocks

                def blocks(destination, operation, size, begin=0):
                    for n, block in enumerate(plain(destination, operation, size)):
                        if operation == slow:
                            time.sleep(block_s(n))
                        yield block

                payload._blocks = blocks

        return replay_with(path, fault, timeout_s=TIMEOUT_S)

    return run, plan.name(slow)


def test_a_rank_that_computes_beyond_the_timeout_is_not_silent(slow_rank):
    run, _ = slow_rank
    assert run(lambda n: CHUNK_S).verified == "full"


def test_a_rank_that_stops_computing_is_named(slow_rank):
    run, name = slow_rank
    with pytest.raises(ReplayError) as told:
        run(lambda n: 60.0 if n == 2 else 0.0)
    assert str(told.value).startswith(f"rank 1 at {name} did not answer")


def test_a_check_of_a_benchmark_beyond_the_timeout_is_not_silent(forked, monkeypatch):
    sweep = Sweep(sizes=(CHUNKS * 4096,), collectives=("reduce",))
    (call, _) = sweep.calls(2)

    def work(rank_env):
        moves = Backend()
        moves.start(rank_env, [(0, 1)], TIMEOUT_S)
        monkeypatch.setattr(operations, "_BLOCK", 1024)
        monkeypatch.setattr(local_work, "CHUNK", 1024)
        made = operations.Operation(call, sweep, rank_env.rank, 2, moves)
        plain = made._values

        def slow(*given):
            for block in plain(*given):
                # in the comparison of the root, with the sum of both ranks
                time.sleep(CHUNK_S if len(given[0]) > 1 else 0.0)
                yield block

        made._values = slow
        wrong = [made.wrong(7)]
        made._values = plain
        wrong.append(made.wrong(8))
        moves.stop()
        return wrong

    assert forked(2, work) == [[0, 0], [0, 0]]
