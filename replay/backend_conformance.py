"""Conformance test of a communication backend.

It runs on three ranks or more, in a test suite such as
``tests/replay/backends/test_backend.py``, or from the command line::

    torchrun --nproc-per-node 3 -m moetraffic.replay.backend_conformance NAME
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from threading import Thread

import numpy as np
import torch

from moetraffic.errors import ReplayError
from moetraffic.launch import RankEnvironment, current_rank
from moetraffic.replay.backends.backend import Backend, Call, backend, run
from moetraffic.replay.execution.checking import compare, fill
from moetraffic.replay.plan.program import KINDS
from moetraffic.replay.plan.sizes import CUT, buffers
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
    made = groups(rank_env.world)
    moves.start(rank_env, made, timeout_s)
    test = _BackendTrial(moves, rank_env, made)
    for number in range(len(made)):
        test.every_kind(number)
    test.overlapping(0, 1)
    moves.stop()
    return test.wrong


class _BackendTrial:
    """Backend conformance test on one rank, and the violations it found."""

    def __init__(
        self, moves: Backend, rank_env: RankEnvironment, made: Sequence[tuple[int, ...]]
    ) -> None:
        self.wrong: list[str] = []
        self._moves = moves
        self._rank = rank_env.rank
        self._groups = made
        self._number = 0  # of operations so far, the same on all ranks

    def every_kind(self, group: int) -> None:
        """Test each kind of operation in a group, by size, sender and receiver."""
        members = self._groups[group]
        for kind in KINDS:
            if kind not in self._moves.kinds:
                continue
            for size in _SIZES:
                for sender, receiver in _ends(kind, members):
                    self._number += 1
                    if self._rank in members and _takes_part(
                        kind, self._rank, sender, receiver
                    ):
                        call = self._call(kind, group, size, sender, receiver)
                        self._try(call, f"{kind} of {size} bytes in {members}")

    def overlapping(self, one: int, other: int) -> None:
        """Test that operations of two groups with the same ranks overlap.

        Rank 0 delays the operation of the first group; that of the second must end
        earlier.
        """
        first, second = (
            self._call(ALL_TO_ALL, group, 64, -1, -1) for group in (one, other)
        )
        ended_s: dict[int, float] = {}

        def late() -> None:
            if self._rank == 0:
                time.sleep(0.5)
            run(self._moves, first)
            ended_s[one] = time.monotonic()

        thread = Thread(target=late)
        thread.start()
        run(self._moves, second)
        ended_s[other] = time.monotonic()
        thread.join()
        if ended_s[other] > ended_s[one]:
            self.wrong.append(
                "operations of different groups overlap, but one waited for the other"
            )

    def _try(self, call: Call, what: str) -> None:
        members = self._groups[call.group]
        launch = self._moves.bind(call)
        for again in range(_AGAIN):
            operation = self._number * _AGAIN + again
            fill(call, rank=self._rank, members=members, operation=operation)
            begin = time.monotonic_ns()
            work = launch()
            if work is not None:
                work.wait()
            if self._moves.device.type == "cuda":
                torch.cuda.synchronize(self._moves.device)
            if time.monotonic_ns() < begin:
                self.wrong.append(f"{what}: time went back")
            found = compare(call, rank=self._rank, members=members, operation=operation)
            if found is not None:
                self.wrong.append(f"{what}, started {again + 1} times: {found[1]}")

    def _call(
        self, kind: str, group: int, size: int, sender: int, receiver: int
    ) -> Call:
        members, rank = self._groups[group], self._rank
        width, me = len(members), members.index(rank)
        send_bytes: list[int] = []
        receive_bytes: list[int] = []
        if kind == ALL_TO_ALL:
            send_bytes = [_pair(size, me, other) for other in range(width)]
            receive_bytes = [_pair(size, other, me) for other in range(width)]
            sends, gets = sum(send_bytes), sum(receive_bytes)
        else:
            whole = size // width * width if kind in CUT else size
            send, receive = buffers(
                kind,
                np.array([whole]),
                np.array([width]),
                rank,
                np.array([sender], np.int32),
                np.array([receiver], np.int32),
            )
            sends, gets = int(send[0]), int(receive[0])
        return Call(
            kind=kind,
            group=group,
            send=self._moves.empty(sends),
            receive=self._moves.empty(gets),
            send_bytes=send_bytes,
            receive_bytes=receive_bytes,
            sender=sender,
            receiver=receiver,
        )


def _ends(kind: str, members: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield the (sender, receiver) pairs to test for a kind of operation."""
    if kind in ("broadcast", "scatter"):
        yield from ((m, -1) for m in members)
    elif kind in ("reduce", "gather"):
        yield from ((-1, m) for m in members)
    elif kind == "send_recv":
        for at, member in enumerate(members):
            yield member, members[(at + 1) % len(members)]
    else:
        yield -1, -1


def _takes_part(kind: str, rank: int, sender: int, receiver: int) -> bool:
    return kind != "send_recv" or rank in (sender, receiver)


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
