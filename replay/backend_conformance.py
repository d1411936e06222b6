"""Conformance test of a communication backend.

It runs on three ranks or more, in a test suite such as
``tests/replay/backends/test_backend.py``, or from the command line::

    torchrun --nproc-per-node 3 -m moetraffic.replay.backend_conformance NAME
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from threading import Thread

import numpy as np

from moetraffic.errors import ReplayError
from moetraffic.launch import RankEnvironment, current_rank
from moetraffic.patterns.bandwidth.moved_bytes import CUT
from moetraffic.replay.backends.backend import Backend, Call, finish, run
from moetraffic.replay.backends.choice import backend
from moetraffic.replay.execution.payload import fill_buffers, find_wrong
from moetraffic.replay.plan.program import KINDS
from moetraffic.replay.plan.sizes import buffers
from moetraffic.trace.model import ALL_TO_ALL

LEAST_RANKS = 3

_SIZES = (0, 4, 60, 4096, 200_004)  # bytes S, before rounding to equal parts
_UNEVEN = (0, 1, 7, 250_000, 64)  # bytes between pairs of ranks, used in turn
_AGAIN = 3  # number of times that each binding is started


def groups(world: int) -> list[tuple[int, ...]]:
    """List rank groups to test: all ranks twice, a subset, a pair, a single rank."""
    everyone = tuple(range(world))
    return [everyone, everyone, everyone[1:], (0, world - 1), (1,)]


def conform(
    moves: Backend, rank_env: RankEnvironment, *, timeout_s: float = 30.0
) -> list[str]:
    """Run the conformance test of a backend on one rank.

    Parameters
    ----------
    moves
        Backend that is not yet started; stopped on return.
    rank_env
        Rank of this process, of three or more.
    timeout_s
        Timeout of an operation, in seconds.

    Returns
    -------
    list of str
        Violations found by this rank; empty if the backend conforms.

    Raises
    ------
    ReplayError
        If there are too few ranks.
    """
    if rank_env.world < LEAST_RANKS:
        raise ReplayError(
            f"a backend is tested on {LEAST_RANKS} ranks or more, but there are "
            f"{rank_env.world}: start more"
        )
    unknown = set(moves.kinds) - set(KINDS)
    if unknown or ALL_TO_ALL not in moves.kinds:
        return [f"kinds are some of {KINDS}, all_to_all among them: {moves.kinds}"]
    made, rank = groups(rank_env.world), rank_env.rank
    moves.start(rank_env, made, timeout_s)
    wrong: list[str] = []
    number = 0  # of operations so far, the same on all ranks
    for group, members in enumerate(made):
        for kind, size, sender, receiver in _cases(moves, members):
            number += _AGAIN
            if rank in members and (kind != "send_recv" or rank in (sender, receiver)):
                call = _call(moves, rank, members, kind, group, size, sender, receiver)
                wrong += _violations(moves, call, rank, members, number)
    if "send_recv" in moves.kinds:
        wrong += _batch_violations(moves, rank, made[0], number + _AGAIN)
    first, second = (
        _call(moves, rank, made[group], ALL_TO_ALL, group, 64) for group in (0, 1)
    )
    if not _overlap(moves, first, second, delay_s=0.0 if rank else 0.5):
        wrong.append(
            "operations of different groups overlap, but one waited for the other"
        )
    moves.stop()
    return wrong


def _cases(
    moves: Backend, members: tuple[int, ...]
) -> Iterator[tuple[str, int, int, int]]:
    """Yield kind, size, sender and receiver of each operation to test in a group."""
    senders, receivers = [(m, -1) for m in members], [(-1, m) for m in members]
    ends = {
        "broadcast": senders,
        "scatter": senders,
        "reduce": receivers,
        "gather": receivers,
        "send_recv": list(zip(members, (*members[1:], members[0]), strict=True)),
    }
    for kind in (k for k in KINDS if k in moves.kinds):
        for size in _SIZES:
            for sender, receiver in ends.get(kind, [(-1, -1)]):
                yield kind, size, sender, receiver


def _violations(
    moves: Backend, call: Call, rank: int, members: tuple[int, ...], number: int
) -> Iterator[str]:
    """Bind an operation, start it several times, and yield what arrived wrong."""
    launch = moves.bind(call)
    for again in range(_AGAIN):
        operation = number + again
        fill_buffers(call, rank=rank, members=members, operation=operation)
        finish(moves, launch())
        found = find_wrong(call, rank=rank, members=members, operation=operation)
        if found is not None:
            size = max(len(call.send), len(call.receive))
            yield (
                f"{call.kind} of {size} bytes in {members}, started {again + 1} times: "
                f"{found[1]}"
            )


def _batch_violations(
    moves: Backend, rank: int, members: tuple[int, ...], number: int
) -> Iterator[str]:
    """Run a batch in which every rank receives from one neighbor and sends to one."""
    world = len(members)
    ends = [((rank - 1) % world, rank), (rank, (rank + 1) % world)]
    calls = [_call(moves, rank, members, "send_recv", 0, _SIZES[-1], *e) for e in ends]
    launch = moves.bind_batch(calls)
    for again in range(_AGAIN):
        operation = number + again
        for call in calls:
            fill_buffers(call, rank=rank, members=members, operation=operation)
        finish(moves, launch())
        for call in calls:
            found = find_wrong(call, rank=rank, members=members, operation=operation)
            if found is not None:
                yield f"messages of a batch, started {again + 1} times: {found[1]}"


def _overlap(moves: Backend, first: Call, second: Call, *, delay_s: float) -> bool:
    """Whether an operation ends before one of another group that rank 0 delays."""
    ended_s: list[float] = []

    def late() -> None:
        time.sleep(delay_s)
        run(moves, first)
        ended_s.append(time.monotonic())

    thread = Thread(target=late)
    thread.start()
    run(moves, second)
    now_s = time.monotonic()
    thread.join()
    return now_s <= ended_s[0]


def _call(
    moves: Backend,
    rank: int,
    members: tuple[int, ...],
    kind: str,
    group: int,
    size: int,
    sender: int = -1,
    receiver: int = -1,
) -> Call:
    width, me = len(members), members.index(rank)
    send_bytes: list[int] = []
    receive_bytes: list[int] = []
    if kind == ALL_TO_ALL:
        send_bytes = [_pair(size, me, other) for other in range(width)]
        receive_bytes = [_pair(size, other, me) for other in range(width)]
        sends, gets = sum(send_bytes), sum(receive_bytes)
    else:
        whole = size // width * width if kind in CUT else size
        ends = (np.array([end], np.int32) for end in (sender, receiver))
        send, receive = buffers(kind, np.array([whole]), np.array([width]), rank, *ends)
        sends, gets = int(send[0]), int(receive[0])
    return Call(
        kind=kind,
        group=group,
        send=moves.empty(sends),
        receive=moves.empty(gets),
        send_bytes=send_bytes,
        receive_bytes=receive_bytes,
        sender=sender,
        receiver=receiver,
    )


def _pair(size: int, source: int, destination: int) -> int:
    """Bytes between a pair of ranks: equal for all, uneven at the largest size."""
    if size < _SIZES[-1]:
        return size
    return _UNEVEN[(3 * source + destination) % len(_UNEVEN)]


def main(name: str) -> int:
    """Run the conformance test of a backend, given by name, on this rank."""
    rank_env = current_rank()
    if rank_env is None:
        raise ReplayError(
            "a conformance test of a backend runs on ranks, but this process is none: "
            "start it with torchrun or srun"
        )
    wrong = conform(backend(name), rank_env)
    for line in wrong:
        print(f"rank {rank_env.rank}: {line}")
    if not wrong and rank_env.rank == 0:
        print(f"{name} conforms on {rank_env.world} ranks")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
